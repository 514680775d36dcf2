"""CMC's encoder (Tian et al. 2019): one for the lightness of a Lab image, one for its colour."""

import jax
import jax.numpy as jnp
from flax import linen as nn


class SplitEncoder(nn.Module):
    """Two encoders that share nothing; the representation is `[lightness half, colour half]`.

    Attributes:
      lightness: sees channel L.
      color: sees channels a and b; as many features as the other.
    """

    lightness: nn.Module
    color: nn.Module

    @property
    def features(self) -> int:
        """Length of the representation, of both halves together."""
        return self.lightness.features + self.color.features

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Encodes one view `[batch, height, width, (L, a, b)]` to `[batch, features]` in float32."""
        if x.shape[-1] != 3:
            raise ValueError(f"x.shape={x.shape}; expected three channels, L, a and b")
        halves = self.lightness(x[..., :1], train=train), self.color(x[..., 1:], train=train)
        return jnp.concatenate(halves, axis=-1)
