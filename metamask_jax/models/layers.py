"""Layers the encoders and heads are made of: convolution, BatchNorm and dense layer, as PyTorch has them."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.nn import initializers
from jax.typing import DTypeLike

from metamask_jax.core import collectives
from metamask_jax.core.types import PyTree
from metamask_jax.kernels import conv2d
from metamask_jax.kernels.moments import moments, spread

Initializer = initializers.Initializer

# He et al.'s, in the fan-out form of torchvision's ResNets.
kaiming_normal = initializers.variance_scaling(2.0, "fan_out", "normal")
# PyTorch's default for convolutions and linear layers: uniform in +-1/sqrt(fan_in).
torch_uniform = initializers.variance_scaling(1 / 3, "fan_in", "uniform")
INITIALIZERS: dict[str, Initializer] = {"he": kaiming_normal, "torch": torch_uniform}  # of convolutions, by name
BATCH_NORM_MOMENTUM = 0.9  # weight of the old value in a running average


def scaled(channels: int, width: float) -> int:
    """Number of channels of a layer under a width multiplier, at least one."""
    return max(1, round(channels * width))


def as_output(x: jax.Array) -> jax.Array:
    """Features leave a module in at least float32, whatever it computes in: losses need the precision."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


class Conv(nn.Module):
    """Convolution without bias (a BatchNorm follows), by `kernels.conv2d`.

    Attributes:
      features: number of output channels.
      window: height and width of the kernel.
      stride: vertical and horizontal step.
      padding: zeros on each side.
      kernel_init: initialiser of the kernel `[window, window, in, features]`.
      dtype: what to compute in; the kernel itself is float32.
    """

    features: int
    window: int
    stride: int
    padding: int
    kernel_init: Initializer
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Convolves `x` `[batch, height, width, in]`."""
        kernel = self.param("kernel", self.kernel_init, (self.window, self.window, x.shape[-1], self.features))
        pad = (self.padding, self.padding)
        strides = (self.stride, self.stride)
        return conv2d(x.astype(self.dtype), kernel.astype(self.dtype), strides=strides, padding=(pad, pad))


class BatchNorm(nn.Module):
    """BatchNorm with PyTorch's constants, in a form whose derivatives of any order take few passes over memory.

    Statistics are kept and computed in float32 under any `dtype`. The running variance is the biased one (divided by
    n), as the normalisation uses it; PyTorch keeps the unbiased one, so its running variance is larger by n/(n-1).

    Attributes:
      train: whether to normalise by the batch's statistics (and update the running ones).
      dtype: what the output is in.
      axis_name: mapped axis over which statistics are synchronised, if any.
    """

    train: bool
    dtype: DTypeLike
    axis_name: str | None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalises `x` `[..., channels]` over all axes but the last."""
        shape = x.shape[-1:]
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, shape)
        running_var = self.variable("batch_stats", "var", jnp.ones, shape)
        scale = self.param("scale", initializers.ones, shape)
        bias = self.param("bias", initializers.zeros, shape)
        x = as_output(x)
        if self.train:
            near = running_mean.value
            mean, var = collectives.moments(*moments(x, near), near, self.axis_name)
            if not self.is_initializing():
                for running, new in ((running_mean, mean), (running_var, var)):
                    running.value = BATCH_NORM_MOMENTUM * running.value + (1 - BATCH_NORM_MOMENTUM) * new
        else:
            mean, var = running_mean.value, running_var.value
        return spread(x, mean, bias, scale * lax.rsqrt(var + 1e-5)).astype(self.dtype)


def dense(features: int, *, dtype: DTypeLike, name: str) -> nn.Dense:
    """Linear layer with bias; weights as PyTorch's default, bias zero."""
    return nn.Dense(features, dtype=dtype, kernel_init=torch_uniform, name=name)


def count_parameters(params: PyTree) -> dict[str, int]:
    """Counts the numbers in each top-level part of a parameter pytree.

    Args:
      params: mapping of part names to pytrees of arrays (or of `jax.ShapeDtypeStruct`).

    Returns:
      Number of parameters of each part, in the order of `params`.

    Example:
      >>> count_parameters({"encoder": {"kernel": jnp.zeros((3, 4))}, "mask": jnp.zeros(5)})
      {'encoder': 12, 'mask': 5}
    """
    return {part: sum(leaf.size for leaf in jax.tree.leaves(tree)) for part, tree in params.items()}
