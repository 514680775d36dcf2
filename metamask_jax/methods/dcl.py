"""DCL (Chuang et al. 2020): the contrastive loss, debiased for negatives that share the anchor's class."""

import jax
from ml_collections import ConfigDict

from metamask_jax.core.losses import debiased_nt_xent
from metamask_jax.methods.base import Method, Recipe
from metamask_jax.methods.contrast import contrastive


def dcl(config: ConfigDict, axis_name: str | None) -> Method:
    """As SimCLR, with the debiased loss."""

    def loss(z: jax.Array, bank: jax.Array | None) -> jax.Array:
        return debiased_nt_xent(
            z,
            temperature=config.method.temperature,
            positive_prior=config.method.positive_prior,
            bank=bank,
            chunk_size=config.loss.chunk_size,
            axis_name=axis_name,
        )

    return contrastive(config, axis_name, loss)


DCL = Recipe(dcl, defaults={"head": (512, 128), "temperature": 0.5, "positive_prior": 0.1, "bank_size": 0}, min_views=2)
