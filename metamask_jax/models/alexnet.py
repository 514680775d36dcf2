"""AlexNet's convolutions (`conv`), and with two dense layers (`fc`), for images of any usual size.

Kernels are initialised uniformly in +-1/sqrt(fan_in), PyTorch's default, as the AlexNets of contrastive multiview
coding are, unless told otherwise.
"""

from collections.abc import Callable
from functools import partial

import jax
from flax import linen as nn
from jax.typing import DTypeLike

from metamask_jax.kernels import max_pool
from metamask_jax.models.layers import INITIALIZERS, BatchNorm, Conv, as_output, dense, scaled

_DENSE = 4096


class AlexNet(nn.Module):
    """Five convolutions, BatchNorm and ReLU after each, then the mean over pixels or two dense layers.

    Attributes:
      with_dense: whether two dense layers of `4096 * width`, with BatchNorm and ReLU, follow the flattened map.
      width: multiplier of all channel counts (contrastive multiview coding uses 0.5).
      stem: `"imagenet"` for the original first layer (11x11, stride 4), `"cifar"` for one that brings a small image
        to 32x32 (stride 1 from 32 pixels, 2 from 64, 3 from 96).
      image_size: height and width of the images.
      dtype: what to compute in; parameters and BatchNorm statistics are float32.
      axis_name: mapped axis over which BatchNorm statistics are synchronised, if any.
      remat: whether the backward pass computes the activations inside each layer again instead of keeping them.
      initializer: of the convolutions, a key of `layers.INITIALIZERS`.
    """

    with_dense: bool
    width: float
    stem: str
    image_size: int
    dtype: DTypeLike
    axis_name: str | None
    remat: bool = False
    initializer: str = "torch"

    @property
    def features(self) -> int:
        """Length of the representation."""
        return scaled(_DENSE if self.with_dense else 256, self.width)

    @property
    def smallest(self) -> int:
        """Side of the smallest images it can encode: the pools need 15 pixels, and dense layers take one size only."""
        window, stride, padding = self._stem
        least = 14 * stride + window - 2 * padding
        return max(least, self.image_size) if self.with_dense else least

    @property
    def _stem(self) -> tuple[int, int, int]:
        """Window, stride and padding of the first convolution; the small one leaves about 32x32 pixels."""
        stride = max(1, self.image_size // 32)
        return (11, 4, 2) if self.stem == "imagenet" else (2 * stride + 1, stride, stride)

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Encodes images.

        Args:
          x: one view `[batch, image_size, image_size, channels]`, any number of channels; without dense layers also
            a smaller one, down to `smallest`.
          train: whether BatchNorm uses the batch's statistics (and updates the running ones).

        Returns:
          `[batch, features]` in float32.
        """
        if x.shape[1] != x.shape[2] or not self.smallest <= x.shape[1] <= self.image_size:
            fewer = "" if self.smallest == self.image_size else f", or fewer pixels, down to {self.smallest}"
            raise ValueError(f"x.shape={x.shape}; expected images of {self.image_size}x{self.image_size}{fewer}")
        norm = partial(BatchNorm, train=train, dtype=self.dtype, axis_name=self.axis_name)
        start = INITIALIZERS[self.initializer]
        layers = [(96, *self._stem), (256, 5, 1, 2), (384, 3, 1, 1), (384, 3, 1, 1), (256, 3, 1, 1)]
        for i, (channels, window, stride, padding) in enumerate(layers, start=1):
            conv = partial(Conv, scaled(channels, self.width), window, stride, padding, start, self.dtype)

            # Submodules belong to the module that the rematerialised function is given, under their usual names.
            def layer(module: nn.Module, x: jax.Array, i: int = i, conv: Callable[..., Conv] = conv) -> jax.Array:
                del module
                x = nn.relu(norm(name=f"bn{i}")(conv(name=f"conv{i}")(x)))
                return max_pool(x, window=3, stride=2, padding=0) if i in (1, 2, 5) else x

            x = (nn.remat(layer) if self.remat else layer)(self, x)
        if not self.with_dense:
            return as_output(x).mean((1, 2))
        x = x.reshape(x.shape[0], -1)
        for i in (6, 7):
            x = dense(self.features, dtype=self.dtype, name=f"fc{i}")(x)
            x = nn.relu(norm(name=f"bn{i}")(x))
        return as_output(x)
