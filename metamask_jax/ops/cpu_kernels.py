"""The three convolution operations on a CPU.

XLA's CPU convolution is good forward and for the input gradient and slow for the weight gradient, which is
written here as a matrix product. Kernels of one pixel are matrix products in all three operations.
`benchmarks/conv.py` prints what each choice gains.

`conv`, `conv_dx` and `conv_dw` are the only places where a kernel is chosen.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from metamask_jax.ops import lax_kernels
from metamask_jax.ops.geometry import Geometry

Kernel = Callable[[jax.Array, jax.Array, Geometry], jax.Array]

# Patches of one chunk should stay in the cache between being written and being multiplied.
_CHUNK_BYTES = 4 * 2**20


def conv(x: jax.Array, w: jax.Array, *, geometry: Geometry) -> jax.Array:
    """Convolves `x` `[n, h, w, in]` with `w` `[kh, kw, in, out]` into `[n, oh, ow, out]`."""
    return _run(_pointwise_conv if geometry.is_pointwise else _lax_conv, x, w, geometry)


def conv_dx(dy: jax.Array, w: jax.Array, *, geometry: Geometry) -> jax.Array:
    """Input gradient `[n, h, w, in]` from `dy` `[n, oh, ow, out]` and `w` `[kh, kw, in, out]`."""
    return _run(_pointwise_conv_dx if geometry.is_pointwise else _lax_conv_dx, dy, w, geometry)


def conv_dw(x: jax.Array, dy: jax.Array, *, geometry: Geometry) -> jax.Array:
    """Weight gradient `[kh, kw, in, out]` from `x` `[n, h, w, in]` and `dy` `[n, oh, ow, out]`."""
    return _run(_patches_conv_dw, x, dy, geometry)


def _run(kernel: Kernel, a: jax.Array, b: jax.Array, geometry: Geometry) -> jax.Array:
    """Runs a kernel in at least float32: a CPU has no fast bfloat16, and sums need the longer type."""
    dtype = jnp.promote_types(a.dtype, jnp.float32)
    return kernel(a.astype(dtype), b.astype(dtype), geometry).astype(a.dtype)


def _lax_conv(x: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    return lax_kernels.conv(x, w, geometry=geometry)


def _lax_conv_dx(dy: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    return lax_kernels.conv_dx(dy, w, geometry=geometry)


def _pointwise_conv(x: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    vertical, horizontal = geometry.strides
    return x[:, ::vertical, ::horizontal] @ w[0, 0]


def _pointwise_conv_dx(dy: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    dx = dy @ w[0, 0].T
    # The pixels a stride skips, between two outputs and after the last one, have gradient zero.
    sizes = zip(geometry.image, geometry.output, geometry.strides, strict=True)
    spatial = [(0, size - 1 - (out - 1) * stride, stride - 1) for size, out, stride in sizes]
    return lax.pad(dx, jnp.zeros((), dx.dtype), [(0, 0, 0), *spatial, (0, 0, 0)])


def _patches_conv_dw(x: jax.Array, dy: jax.Array, geometry: Geometry) -> jax.Array:
    """Weight gradient as patches times output gradient, a chunk of images at a time."""
    batch, height, width, out_channels = dy.shape
    patch_size = geometry.window[0] * geometry.window[1] * x.shape[3]
    chunk = max(1, min(batch, _CHUNK_BYTES // (height * width * patch_size * x.dtype.itemsize)))
    whole = batch - batch % chunk

    def product(x: jax.Array, dy: jax.Array) -> jax.Array:
        return _patches(x, geometry).reshape(-1, patch_size).T @ dy.reshape(-1, out_channels)

    def add_chunk(dw: jax.Array, operands: list[jax.Array]) -> tuple[jax.Array, None]:
        return dw + product(*operands), None

    chunks = [a[:whole].reshape(-1, chunk, *a.shape[1:]) for a in (x, dy)]
    dw, _ = lax.scan(add_chunk, jnp.zeros((patch_size, out_channels), x.dtype), chunks)
    if whole < batch:
        dw = dw + product(x[whole:], dy[whole:])
    return dw.reshape(*geometry.window, x.shape[3], out_channels)


def _patches(x: jax.Array, geometry: Geometry) -> jax.Array:
    """Input pixels `[n, oh, ow, kh * kw * in]` that the window meets at each output pixel."""
    x = jnp.pad(x, ((0, 0), *geometry.padding, (0, 0)))
    # First the columns of the window, then its rows: kh + kw slices, where kh * kw would take long to compile.
    for axis in (2, 1):
        outputs, stride = geometry.output[axis - 1], geometry.strides[axis - 1]
        starts = range(geometry.window[axis - 1])
        views = [lax.slice_in_dim(x, i, i + (outputs - 1) * stride + 1, stride, axis) for i in starts]
        x = jnp.concatenate(views, axis=-1)
    return x
