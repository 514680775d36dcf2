"""The convolution operations on a CPU.

XLA's CPU convolution is slow for the weight gradient and middling elsewhere. Where channels fill vector registers, or
nearly do, native kernels take over (`kernels.native`): Winograd's for small windows that move by one pixel or two,
direct ones for the rest. Without them, the weight gradient of a wide layer is a matrix product of patches. A kernel of
one pixel that skips none is a matrix product anyway. `benchmarks/conv.py` times every kernel on every layer of the
encoders.

The four functions that follow are the only places where a kernel is chosen. The choice does not depend on the size of
the batch, so that splitting a batch over devices changes results by no more than the order of a sum does.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from metamask_jax.kernels import lax_kernels
from metamask_jax.kernels.geometry import Geometry
from metamask_jax.kernels.switch import has_native

Kernel = Callable[..., jax.Array]  # takes the operands and the geometry

# Patches of one chunk should stay in the cache between being written and being multiplied.
_CHUNK_BYTES = 4 * 2**20

# Channels may be filled up with zeros as long as this multiplies the work by no more than:
_MOST_WASTE = 2.0

# With fewer channels, laying out patches costs more time than the faster multiplications save.
_MANY_CHANNELS = 64


def conv(x: jax.Array, w: jax.Array, *, geometry: Geometry) -> jax.Array:
    """Convolves `x` `[n, h, w, in]` with `w` `[kh, kw, in, out]` into `[n, oh, ow, out]`."""
    return _run(CONV[choose("conv", geometry, w.shape[2:])], geometry, x, w)


def conv_dx(dy: jax.Array, w: jax.Array, *, geometry: Geometry) -> jax.Array:
    """Input gradient `[n, h, w, in]` from `dy` `[n, oh, ow, out]` and `w` `[kh, kw, in, out]`."""
    return _run(CONV_DX[choose("conv_dx", geometry, w.shape[2:])], geometry, dy, w)


def conv_dw(x: jax.Array, dy: jax.Array, *, geometry: Geometry) -> jax.Array:
    """Weight gradient `[kh, kw, in, out]` from `x` `[n, h, w, in]` and `dy` `[n, oh, ow, out]`."""
    return _run(CONV_DW[choose("conv_dw", geometry, (x.shape[3], dy.shape[3]))], geometry, x, dy)


def conv_tangent(x: jax.Array, w: jax.Array, dx: jax.Array, dw: jax.Array, *, geometry: Geometry) -> jax.Array:
    """`conv(dx, w) + conv(x, dw)`."""
    return _run(CONV_TANGENT[choose("conv_tangent", geometry, w.shape[2:])], geometry, x, w, dx, dw)


def choose(operation: str, geometry: Geometry, channels: Sequence[int]) -> str:
    """Name of the kernel of an operation for a geometry and its numbers of input and output channels."""
    plain = geometry.is_pointwise and operation != "conv_dw"
    if has_native() and not (plain and geometry.strides == (1, 1)):
        from metamask_jax.kernels.native import suits_winograd

        for name in ("winograd", "direct") if suits_winograd(geometry) else ("direct",):
            filled = _filled(name, operation, channels)
            if prod(filled) <= _MOST_WASTE * prod(channels):
                return name
    if plain:
        return "pointwise"
    return "patches" if operation == "conv_dw" and max(channels) >= _MANY_CHANNELS else "lax"


def _run(kernel: Kernel, geometry: Geometry, *operands: jax.Array) -> jax.Array:
    """Runs a kernel in at least float32: a CPU has no fast bfloat16, and sums need the longer type."""
    given = operands[0].dtype
    dtype = jnp.promote_types(given, jnp.float32)
    return kernel(*(operand.astype(dtype) for operand in operands), geometry).astype(given)


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
    """Weight gradient as patches times output gradient, one chunk of images after the other."""

    def product(x: jax.Array, dy: jax.Array) -> jax.Array:
        patches = _patches(x, geometry)
        return patches.reshape(-1, patches.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])

    dw = _sum_chunks(product, (x, dy), size=_images_per_chunk(x, geometry))
    return dw.reshape(*geometry.window, x.shape[3], dy.shape[3])


def _sum_chunks(function: Callable[..., jax.Array], arrays: Sequence[jax.Array], *, size: int) -> jax.Array:
    """`function(*arrays)` for a function that sums over the leading axis, at most `size` entries at a time."""
    chunks = -(-len(arrays[0]) // size)
    if chunks == 1:
        return function(*arrays)
    entries = -(-len(arrays[0]) // chunks)

    def split(array: jax.Array) -> jax.Array:
        """Zeros, which add nothing, fill up the last chunk."""
        array = jnp.pad(array, [(0, chunks * entries - len(array))] + [(0, 0)] * (array.ndim - 1))
        return array.reshape(chunks, entries, *array.shape[1:])

    pieces = [split(array) for array in arrays]
    first = jax.eval_shape(function, *(piece[0] for piece in pieces))
    total, _ = lax.scan(lambda total, chunk: (total + function(*chunk), None), jnp.zeros_like(first), pieces)
    return total


def _images_per_chunk(x: jax.Array, geometry: Geometry) -> int:
    """How many images have patches that fill a chunk."""
    (height, width), (rows, columns) = geometry.output, geometry.window
    return max(1, _CHUNK_BYTES // (height * width * rows * columns * x.shape[3] * x.dtype.itemsize))


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


def _lax(kernel: Callable[..., jax.Array]) -> Kernel:
    return lambda a, b, geometry: kernel(a, b, geometry=geometry)


def _filled(name: str, operation: str, channels: Sequence[int]) -> list[int]:
    """Input and output channels that a native kernel computes with: whole vectors for the columns of its products."""
    from metamask_jax.kernels.native import VECTOR

    whole = (0, 1) if name == "winograd" else (0,) if operation == "conv_dx" else (1,)
    return [-(-count // VECTOR) * VECTOR if i in whole else count for i, count in enumerate(channels)]


# What each axis of an array is: 0 for input channels, 1 for output channels, None for anything else.
_IMAGE, _GRADIENT, _KERNEL = (None, None, None, 0), (None, None, None, 1), (None, None, 0, 1)
_AXES: dict[str, tuple[tuple[int | None, ...], ...]] = {
    "conv": (_IMAGE, _KERNEL, _GRADIENT),
    "conv_tangent": (_IMAGE, _KERNEL, _IMAGE, _KERNEL, _GRADIENT),
    "conv_dx": (_GRADIENT, _KERNEL, _IMAGE),
    "conv_dw": (_IMAGE, _GRADIENT, _KERNEL),
}


def _native(name: str, operation: str) -> Kernel:
    """A kernel whose compiler is loaded when it is first used."""
    *kinds, result = _AXES[operation]

    def kernel(*arguments: Any) -> jax.Array:
        from metamask_jax.kernels.native import KERNELS

        *operands, geometry = arguments
        axes = [axis for kind, a in zip(kinds, operands, strict=True) for axis in zip(kind, a.shape, strict=True)]
        channels = [dict(axes)[i] for i in (0, 1)]
        spare = [more - count for more, count in zip(_filled(name, operation, channels), channels, strict=True)]
        operands = [
            jnp.pad(a, [(0, 0 if axis is None else spare[axis]) for axis in kind])
            for kind, a in zip(kinds, operands, strict=True)
        ]
        y = KERNELS[name][operation](*operands, geometry)
        return y[tuple(slice(None if axis is None else channels[axis]) for axis in result)]

    return kernel


def _twice(kernel: Kernel) -> Kernel:
    """The tangent in terms of the convolution."""
    return lambda x, w, dx, dw, geometry: kernel(dx, w, geometry) + kernel(x, dw, geometry)


# Every kernel of each operation by name; all take and give the same arrays.
CONV: dict[str, Kernel] = {
    "lax": _lax(lax_kernels.conv),
    "pointwise": _pointwise_conv,
    "direct": _native("direct", "conv"),
    "winograd": _native("winograd", "conv"),
}
CONV_DX: dict[str, Kernel] = {
    "lax": _lax(lax_kernels.conv_dx),
    "pointwise": _pointwise_conv_dx,
    "direct": _native("direct", "conv_dx"),
    "winograd": _native("winograd", "conv_dx"),
}
CONV_DW: dict[str, Kernel] = {
    "lax": _lax(lax_kernels.conv_dw),
    "patches": _patches_conv_dw,
    "direct": _native("direct", "conv_dw"),
    "winograd": _native("winograd", "conv_dw"),
}
CONV_TANGENT: dict[str, Kernel] = {name: _twice(kernel) for name, kernel in CONV.items()} | {
    "winograd": _native("winograd", "conv_tangent"),
}
