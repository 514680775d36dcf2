"""Barlow Twins (Zbontar et al. 2021): redundancy reduction as the method itself."""

import jax
from ml_collections import ConfigDict

from metamask_jax.core.types import PyTree
from metamask_jax.methods.base import (
    Inputs,
    Method,
    Output,
    Recipe,
    Variables,
    apply_views,
    init_module,
    keep_state,
    redundancy_loss,
)
from metamask_jax.models import ProjectionHead


def barlow_twins(config: ConfigDict, axis_name: str | None) -> Method:
    """A projection head of its own and the loss of `config.loss`, the same as drr's."""
    head = ProjectionHead(widths=config.method.head, last_norm=True, dtype=config.train.dtype, axis_name=axis_name)
    redundancy = redundancy_loss(config, axis_name)

    def init(key: jax.Array, encoder_params: PyTree, dim: int) -> Variables:
        del encoder_params
        return Variables(*init_module(head, key, 2, dim), state={})

    def loss(variables: Variables, inputs: Inputs) -> Output:
        z, batch_stats = apply_views(head, variables.params, variables.batch_stats, inputs.h)
        return Output(redundancy(z), batch_stats, memory={})

    return Method(init, loss, keep_state)


# Three layers as wide as each other; the paper's 8192 are for ImageNet.
BARLOW_TWINS = Recipe(barlow_twins, defaults={"head": (2048, 2048, 2048)}, min_views=2)
