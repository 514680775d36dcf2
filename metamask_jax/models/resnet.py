"""ResNets (He et al. 2016) with the structure of torchvision's.

Modules are named so that torchvision's names follow by replacing `_` with `.`: `layer1_0/conv1` is its
`layer1.0.conv1`, `layer2_0/downsample_0` its `layer2.0.downsample.0`. Convolutions are initialised as there
(He's normal distribution, fan-out) unless told otherwise; the last BatchNorm scale of a block starts at one.
"""

from collections.abc import Sequence
from functools import partial

import jax
from flax import linen as nn
from jax.typing import DTypeLike

from metamask_jax.kernels import max_pool
from metamask_jax.models.layers import INITIALIZERS, BatchNorm, Conv, as_output, scaled


class _Block(nn.Module):
    """Residual block: two 3x3 convolutions, or a bottleneck of 1x1, 3x3 and 1x1 with four times the output."""

    channels: int
    stride: int
    bottleneck: bool
    train: bool
    dtype: DTypeLike
    axis_name: str | None
    initializer: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        conv = partial(Conv, kernel_init=INITIALIZERS[self.initializer], dtype=self.dtype)
        norm = partial(BatchNorm, train=self.train, dtype=self.dtype, axis_name=self.axis_name)
        out = self.channels * (4 if self.bottleneck else 1)
        if self.bottleneck:  # the stride is in the 3x3, as torchvision has it
            layers = [(self.channels, 1, 1), (self.channels, 3, self.stride), (out, 1, 1)]
        else:
            layers = [(out, 3, self.stride), (out, 3, 1)]

        y = x
        for i, (channels, window, stride) in enumerate(layers, start=1):
            y = conv(channels, window, stride, padding=window // 2, name=f"conv{i}")(y)
            y = norm(name=f"bn{i}")(y)
            if i < len(layers):
                y = nn.relu(y)
        if x.shape[-1] != out or self.stride != 1:
            x = conv(out, 1, self.stride, padding=0, name="downsample_0")(x)
            x = norm(name="downsample_1")(x)
        return nn.relu(x + y)


class ResNet(nn.Module):
    """Residual network up to its global average pool.

    Attributes:
      blocks: number of blocks in each stage (four in the usual networks), each twice as wide as the one before.
      bottleneck: whether blocks are bottlenecks (50 layers and more).
      width: multiplier of all channel counts.
      stem: `"cifar"` (3x3, stride 1, no pool) or `"imagenet"` (7x7, stride 2, then a max-pool).
      dtype: what to compute in; parameters and BatchNorm statistics are float32.
      axis_name: mapped axis over which BatchNorm statistics are synchronised, if any.
      remat: whether the backward pass computes the activations inside each block again instead of keeping them.
      initializer: of the convolutions, a key of `layers.INITIALIZERS`.
    """

    blocks: Sequence[int]
    bottleneck: bool
    width: float
    stem: str
    dtype: DTypeLike
    axis_name: str | None
    remat: bool = False
    initializer: str = "he"

    @property
    def features(self) -> int:
        """Length of the representation."""
        return scaled(32 * 2 ** len(self.blocks), self.width) * (4 if self.bottleneck else 1)

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Encodes images.

        Args:
          x: one view `[batch, height, width, channels]`, any size and number of channels.
          train: whether BatchNorm uses the batch's statistics (and updates the running ones).

        Returns:
          `[batch, features]` in float32.
        """
        window, stride = (7, 2) if self.stem == "imagenet" else (3, 1)
        start = INITIALIZERS[self.initializer]
        x = Conv(scaled(64, self.width), window, stride, window // 2, start, self.dtype, name="conv1")(x)
        x = nn.relu(BatchNorm(train=train, dtype=self.dtype, axis_name=self.axis_name, name="bn1")(x))
        if self.stem == "imagenet":
            x = max_pool(x, window=3, stride=2, padding=1)
        block = nn.remat(_Block) if self.remat else _Block
        for stage, blocks in enumerate(self.blocks, start=1):
            for i in range(blocks):
                x = block(
                    channels=scaled(32 * 2**stage, self.width),
                    stride=2 if stage > 1 and i == 0 else 1,
                    bottleneck=self.bottleneck,
                    train=train,
                    dtype=self.dtype,
                    axis_name=self.axis_name,
                    initializer=self.initializer,
                    name=f"layer{stage}_{i}",
                )(x)
        return as_output(x).mean((1, 2))
