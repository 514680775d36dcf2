"""A representation longer than the trunk that it comes from, at little cost."""

import jax
from flax import linen as nn
from jax.typing import DTypeLike

from metamask_jax.models.layers import BatchNorm, as_output, dense


class WidenedEncoder(nn.Module):
    """An encoder with one more layer after its pooled features: linear, BatchNorm, ReLU.

    Attributes:
      trunk: the encoder.
      features: length of the representation.
      dtype: what to compute in; parameters and BatchNorm statistics are float32.
      axis_name: mapped axis over which BatchNorm statistics are synchronised, if any.
    """

    trunk: nn.Module
    features: int
    dtype: DTypeLike
    axis_name: str | None

    @property
    def smallest(self) -> int:
        """Side of the smallest picture that the trunk takes."""
        return getattr(self.trunk, "smallest", 1)

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Encodes one view `[batch, height, width, channels]` to `[batch, features]` in float32."""
        h = self.trunk(x, train=train)
        h = dense(self.features, dtype=self.dtype, name="widen")(h)
        norm = BatchNorm(train=train, dtype=self.dtype, axis_name=self.axis_name, name="widen_bn")
        return as_output(nn.relu(norm(h)))
