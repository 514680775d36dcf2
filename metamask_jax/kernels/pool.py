"""Max-pooling whose derivatives are fast on a CPU."""

from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def max_pool(x: jax.Array, *, window: int, stride: int, padding: int) -> jax.Array:
    """Takes the maximum over square windows.

    Where several pixels of a window share the maximum, the first of them has the gradient.

    Example:
      >>> max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1), window=2, stride=2, padding=0)[0, :, :, 0].tolist()
      [[5.0, 7.0], [13.0, 15.0]]

    Args:
      x: images `[batch, height, width, channels]`.
      window: height and width of the window.
      stride: step between windows.
      padding: width of the border added on each side; it is never the maximum.

    Returns:
      `[batch, out_height, out_width, channels]`.
    """
    shifts, windows = (partial(form, window=window, stride=stride, padding=padding) for form in (by_shifts, by_windows))
    return lax.platform_dependent(x, cpu=shifts, default=windows)


def by_windows(x: jax.Array, *, window: int, stride: int, padding: int) -> jax.Array:
    """By XLA's own reduction, whose derivatives accelerators have instructions for, and pass over memory once each."""
    lowest = np.array(-np.inf, x.dtype)
    borders = [(0, 0), (padding, padding), (padding, padding), (0, 0)]
    return lax.reduce_window(x, lowest, lax.max, (1, window, window, 1), (1, stride, stride, 1), borders)


def by_shifts(x: jax.Array, *, window: int, stride: int, padding: int) -> jax.Array:
    """As elementwise maxima of shifted views, whose derivatives of any order are cheap on a CPU.

    The gradient of XLA's own reduction scatters there pixel by pixel.
    """
    for axis in (1, 2):
        size = x.shape[axis]
        outputs = (size + 2 * padding - window) // stride + 1
        # With the axis cut into blocks of one stride, each offset in the window is a contiguous slice of blocks,
        # and its transpose a plain pad, not a scatter.
        blocks = outputs - 1 + -(-window // stride)
        borders = [(0, 0, 0)] * x.ndim
        borders[axis] = (padding, blocks * stride - size - padding, 0)
        x = lax.pad(x, jnp.array(-jnp.inf, x.dtype), borders)
        x = x.reshape(*x.shape[:axis], blocks, stride, *x.shape[axis + 1 :])
        phases = [lax.index_in_dim(x, i, axis + 1, keepdims=False) for i in range(stride)]
        offsets = (divmod(i, stride) for i in range(window))
        x = reduce(_maximum, [lax.slice_in_dim(phases[r], q, q + outputs, axis=axis) for q, r in offsets])
    return x


def _maximum(a: jax.Array, b: jax.Array) -> jax.Array:
    # The gradient of `jnp.maximum` asks which operand *equals* the result. A compiler that computes an operand twice,
    # rounded differently, then finds neither: gradients silently lost. Asking which is larger has no such trap.
    return jnp.where((b > a) | jnp.isnan(b), b, a)
