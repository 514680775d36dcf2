"""The three convolution operations on a CPU.

XLA's CPU convolution is good forward and for the input gradient and slow for the weight gradient, which is
written here as a matrix product. Kernels of one pixel are matrix products in all three operations.
`benchmarks/conv.py` prints what each choice gains.

`conv`, `conv_dx` and `conv_dw` are the only places where a kernel is chosen.
"""

from collections.abc import Callable, Iterator

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
        patches = jnp.concatenate(list(_shifted_views(x, geometry)), axis=-1)
        return patches.reshape(-1, patch_size).T @ dy.reshape(-1, out_channels)

    def add_chunk(dw: jax.Array, operands: list[jax.Array]) -> tuple[jax.Array, None]:
        return dw + product(*operands), None

    chunks = [a[:whole].reshape(-1, chunk, *a.shape[1:]) for a in (x, dy)]
    dw, _ = lax.scan(add_chunk, jnp.zeros((patch_size, out_channels), x.dtype), chunks)
    if whole < batch:
        dw = dw + product(x[whole:], dy[whole:])
    return dw.reshape(*geometry.window, x.shape[3], out_channels)


def _shifted_views(x: jax.Array, geometry: Geometry) -> Iterator[jax.Array]:
    """For each pixel of the window, the input pixels `[n, oh, ow, in]` it meets, row by row."""
    x = jnp.pad(x, ((0, 0), *geometry.padding, (0, 0)))
    (height, width), (vertical, horizontal) = geometry.output, geometry.strides
    for i in range(geometry.window[0]):
        for j in range(geometry.window[1]):
            last = (x.shape[0], i + (height - 1) * vertical + 1, j + (width - 1) * horizontal + 1, x.shape[3])
            yield lax.slice(x, (0, i, j, 0), last, (1, vertical, horizontal, 1))
