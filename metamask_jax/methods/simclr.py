"""SimCLR (Chen et al. 2020): a projection head and the contrastive loss (paper Eq. 1)."""

import jax
from ml_collections import ConfigDict

from metamask_jax.core.losses import nt_xent
from metamask_jax.methods.base import Method, Recipe
from metamask_jax.methods.contrast import contrastive


def simclr(config: ConfigDict, axis_name: str | None) -> Method:
    """NT-Xent, against a bank of past projections too if there is one."""

    def loss(z: jax.Array, bank: jax.Array | None) -> jax.Array:
        return nt_xent(
            z,
            temperature=config.method.temperature,
            bank=bank,
            chunk_size=config.loss.chunk_size,
            axis_name=axis_name,
        )

    return contrastive(config, axis_name, loss)


# Head and temperature are those of MetaMask's own program; SimCLR's paper has 0.5 for CIFAR-10.
SIMCLR = Recipe(simclr, defaults={"head": (2048, 256), "temperature": 0.07, "bank_size": 0}, min_views=2)
