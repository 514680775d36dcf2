"""HCL (Robinson et al. 2021): the debiased contrastive loss, with more weight on hard negatives."""

import jax
from ml_collections import ConfigDict

from metamask_jax.core.losses import hard_nt_xent
from metamask_jax.methods.base import Method, Recipe
from metamask_jax.methods.contrast import contrastive


def hcl(config: ConfigDict, axis_name: str | None) -> Method:
    """As SimCLR, with the loss of hard negatives."""

    def loss(z: jax.Array, bank: jax.Array | None) -> jax.Array:
        return hard_nt_xent(
            z,
            temperature=config.method.temperature,
            positive_prior=config.method.positive_prior,
            concentration=config.method.concentration,
            bank=bank,
            chunk_size=config.loss.chunk_size,
            axis_name=axis_name,
        )

    return contrastive(config, axis_name, loss)


HCL = Recipe(
    hcl,
    defaults={"head": (512, 128), "temperature": 0.5, "positive_prior": 0.1, "concentration": 1.0, "bank_size": 0},
    min_views=2,
)
