"""What BYOL, SimSiam and NNCLR share: a projection head, and a predictor after it."""

from typing import NamedTuple

import jax
from ml_collections import ConfigDict

from metamask_jax.core.types import PyTree
from metamask_jax.methods.base import apply_views, init_module
from metamask_jax.models import ProjectionHead, predictor


class Siamese(NamedTuple):
    """A projection head and a predictor; their params and statistics are under "head" and "predictor"."""

    head: ProjectionHead
    predictor: ProjectionHead

    @classmethod
    def build(cls, config: ConfigDict, axis_name: str | None, *, last_norm: bool) -> "Siamese":
        """Builds both from `config.method.head` and `config.method.predictor`."""
        dtype, widths = config.train.dtype, config.method.head
        return cls(
            ProjectionHead(widths=widths, last_norm=last_norm, dtype=dtype, axis_name=axis_name),
            predictor(hidden=config.method.predictor, out=widths[-1], dtype=dtype, axis_name=axis_name),
        )

    def init(self, key: jax.Array, dim: int) -> tuple[PyTree, PyTree]:
        """Params and BatchNorm statistics for features of length `dim`."""
        keys = jax.random.split(key)
        head = init_module(self.head, keys[0], 2, dim)
        prediction = init_module(self.predictor, keys[1], 2, self.head.features)
        params, batch_stats = zip(head, prediction, strict=True)
        return dict(zip(self._fields, params, strict=True)), dict(zip(self._fields, batch_stats, strict=True))

    def apply(self, params: PyTree, batch_stats: PyTree, h: jax.Array) -> tuple[jax.Array, jax.Array, PyTree]:
        """Projections and predictions, both [views, batch, dim], of features, and the statistics after them."""
        z, head_stats = apply_views(self.head, params["head"], batch_stats["head"], h)
        p, predictor_stats = apply_views(self.predictor, params["predictor"], batch_stats["predictor"], z)
        return z, p, {"head": head_stats, "predictor": predictor_stats}
