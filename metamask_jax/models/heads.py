"""The small networks after an encoder: projection heads and predictors.

All linear layers have a bias, also those before a BatchNorm that cancels it: the parameter counts of the paper
(9.46 M and 1.58 M for its two heads) include them.
"""

from collections.abc import Sequence

import jax
from flax import linen as nn
from jax.typing import DTypeLike

from metamask_jax.models.layers import BatchNorm, as_output, dense


class ProjectionHead(nn.Module):
    """Linear-BatchNorm-ReLU layers; the last one without ReLU.

    Attributes:
      widths: output length of each linear layer.
      last_norm: whether a BatchNorm follows the last linear layer.
      dtype: what to compute in; parameters and BatchNorm statistics are float32.
      axis_name: mapped axis over which BatchNorm statistics are synchronised, if any.
    """

    widths: Sequence[int]
    last_norm: bool
    dtype: DTypeLike
    axis_name: str | None

    @property
    def features(self) -> int:
        """Length of the projection."""
        return self.widths[-1]

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Projects one view's features `[batch, dim]` to `[batch, features]` in float32."""
        for i, width in enumerate(self.widths, start=1):
            last = i == len(self.widths)
            x = dense(width, dtype=self.dtype, name=f"fc{i}")(x)
            if self.last_norm or not last:
                x = BatchNorm(train=train, dtype=self.dtype, axis_name=self.axis_name, name=f"bn{i}")(x)
            if not last:
                x = nn.relu(x)
        return as_output(x)


def predictor(*, hidden: int, out: int, dtype: DTypeLike, axis_name: str | None) -> ProjectionHead:
    """BYOL's and SimSiam's predictor: Linear-BatchNorm-ReLU, then a bare linear layer."""
    return ProjectionHead(widths=(hidden, out), last_norm=False, dtype=dtype, axis_name=axis_name)
