"""SimCLR (Chen et al. 2020): a projection head and the contrastive loss (paper Eq. 1)."""

import jax
from ml_collections import ConfigDict

from metamask_jax.losses import nt_xent
from metamask_jax.methods.base import Method, Output, PyTree, Variables, apply_views, init_module
from metamask_jax.models import ProjectionHead


def simclr(config: ConfigDict, axis_name: str | None) -> Method:
    """Builds the method from the whole configuration, of which it uses `method`, `loss.chunk_size`, `train.dtype`."""
    head = ProjectionHead(widths=config.method.head, last_norm=True, dtype=config.train.dtype, axis_name=axis_name)

    def init(key: jax.Array, dim: int) -> Variables:
        params, batch_stats = init_module(head, key, 2, dim)
        return Variables(params, batch_stats, state={})

    def loss(params: PyTree, batch_stats: PyTree, state: PyTree, h: jax.Array) -> Output:
        del state
        z, batch_stats = apply_views(head, params, batch_stats, h)
        value = nt_xent(
            z, temperature=config.method.temperature, chunk_size=config.loss.chunk_size, axis_name=axis_name
        )
        return Output(value, batch_stats, memory={})

    return Method(init, loss, update=lambda state, params, memory: state)
