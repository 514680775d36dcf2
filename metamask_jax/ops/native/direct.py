"""Convolutions of any geometry as products of lines of overlapping windows, which need no copy, with the kernel."""

from collections.abc import Sequence
from math import prod

import jax
import jax.numpy as jnp
from jax import lax
from llvmlite import ir

from metamask_jax.ops.geometry import Geometry
from metamask_jax.ops.native.emit import Emitter, Index, Product
from metamask_jax.ops.native.ffi import Body, call, parts

# Images and gradients of one round of the weight gradient should stay in a core's own cache.
_ROUND_BYTES = 2**20


def conv(x: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    """Convolves `x` `[n, h, w, in]` with `w` `[kh, kw, in, out]` into `[n, oh, ow, out]`."""
    return _inside(jnp.pad(x, ((0, 0), *geometry.padding, (0, 0))), w, geometry.strides)


def conv_dx(dy: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    """Input gradient `[n, h, w, in]` from `dy` `[n, oh, ow, out]` and `w` `[kh, kw, in, out]`.

    The pixels that have the same remainder modulo the stride meet the same taps of the kernel: each such grid of
    pixels is a convolution of its own, of stride 1.
    """
    vertical, horizontal = geometry.strides
    counts = [-(-(size + low) // stride) for size, (low, _), stride in _axes(geometry)]
    phases = [[_phase(dy, w[i::vertical, j::horizontal], counts) for j in range(horizontal)] for i in range(vertical)]
    dx = jnp.stack([jnp.stack(row, axis=3) for row in phases], axis=2)  # [n, count, stride, count, stride, in]
    dx = dx.reshape(len(dy), counts[0] * vertical, counts[1] * horizontal, -1)
    for axis, (size, (low, _), _) in enumerate(_axes(geometry), start=1):
        dx = lax.slice_in_dim(dx, low, low + size, axis=axis)
    return dx


def conv_dw(x: jax.Array, dy: jax.Array, geometry: Geometry) -> jax.Array:
    """Weight gradient `[kh, kw, in, out]` from `x` `[n, h, w, in]` and `dy` `[n, oh, ow, out]`."""
    x = jnp.pad(x, ((0, 0), *geometry.padding, (0, 0)))
    channels, out = x.shape[3], dy.shape[3]
    most = max(1, _ROUND_BYTES // ((x[0].size + dy[0].size) * x.dtype.itemsize))
    images = max(size for size in range(1, most + 1) if len(x) % size == 0)
    count = parts(geometry.window[0])  # of its rows
    settings = x.shape, dy.shape, geometry.window, geometry.strides, images, count
    shapes = (*geometry.window, channels, out), (count * images * dy[0].size,)
    return call(_conv_dw, settings, (x, dy), *shapes, parts=count)[0]


def _axes(geometry: Geometry) -> list[tuple[int, tuple[int, int], int]]:
    return list(zip(geometry.image, geometry.padding, geometry.strides, strict=True))


def _phase(dy: jax.Array, taps: jax.Array, counts: Sequence[int]) -> jax.Array:
    """The input gradient of a stride-1 convolution with these taps, as many pixels as told."""
    if 0 in taps.shape[:2]:  # a stride longer than the kernel: no output has met these pixels
        return jnp.zeros((len(dy), *counts, taps.shape[2]), dy.dtype)
    sizes = zip(dy.shape[1:3], taps.shape[:2], counts, strict=True)
    spatial = [(window - 1, count - size, 0) for size, window, count in sizes]
    dy = lax.pad(dy, jnp.zeros((), dy.dtype), [(0, 0, 0), *spatial, (0, 0, 0)])
    return _inside(dy, jnp.swapaxes(taps[::-1, ::-1], 2, 3), (1, 1))


def _inside(x: jax.Array, w: jax.Array, strides: tuple[int, int]) -> jax.Array:
    """Convolves without padding."""
    sizes = zip(x.shape[1:3], w.shape[:2], strides, strict=True)
    output = *((size - window) // stride + 1 for size, window, stride in sizes), w.shape[3]
    count = parts(len(x))
    shapes = (len(x), *output), (count * w.size,)
    return call(_conv, (x.shape, w.shape, strides, output, count), (x, w), *shapes, parts=count)[0]


def _conv(
    image: Sequence[int], kernel: Sequence[int], strides: tuple[int, int], output: Sequence[int], count: int
) -> Body:
    batch, height, width, channels = image
    rows, columns, _, out = kernel
    lines, pixels, _ = output
    product = Product(
        a_row=strides[1] * channels,
        c_row=out,
        sums=((rows, width * channels), (columns * channels, 1)),  # a row of the window is contiguous
        accumulate=False,
    )

    def body(emit: Emitter, buffers: Sequence[ir.Value], part: ir.Value) -> None:
        x, w, y, packed = buffers
        x = emit.at(x, emit.scaled(part, batch // count * height * width * channels))
        y = emit.at(y, emit.scaled(part, batch // count * lines * pixels * out))
        packed = emit.at(packed, emit.scaled(part, prod(kernel)))
        emit.pack(product.depth, out, w, packed)

        def piece(start: Index, vectors: int) -> None:
            def picture(n: ir.Value) -> None:
                a = emit.at(x, emit.scaled(n, height * width * channels))
                c = emit.at(y, emit.scaled(n, lines * pixels * out))

                def line(i: ir.Value) -> None:
                    left = emit.at(a, emit.scaled(i, strides[0] * width * channels))
                    target = emit.at(c, emit.scaled(i, pixels * out))
                    emit.rows(product, pixels, (start, vectors), left, packed, target)

                emit.repeat(lines, line)

            emit.repeat(batch // count, picture)

        emit.columns(out, piece)

    return body


def _conv_dw(
    image: Sequence[int],
    output: Sequence[int],
    window: tuple[int, int],
    strides: tuple[int, int],
    images: int,
    count: int,
) -> Body:
    batch, height, width, channels = image
    _, lines, pixels, out = output
    rows, columns = window
    product = Product(
        a_row=1,
        c_row=out,
        sums=(
            (images, height * width * channels),
            (lines, strides[0] * width * channels),
            (pixels, strides[1] * channels),
        ),
        accumulate=True,
    )

    def body(emit: Emitter, buffers: Sequence[ir.Value], part: ir.Value) -> None:
        x, dy, dw, packed = buffers
        size = columns * channels * out
        x = emit.at(x, emit.scaled(part, rows // count * width * channels))
        dw = emit.at(dw, emit.scaled(part, rows // count * size))
        packed = emit.at(packed, emit.scaled(part, product.depth * out))
        emit.zero(rows // count * size, dw)

        def some(n: ir.Value) -> None:
            emit.pack(product.depth, out, emit.at(dy, emit.scaled(n, product.depth * out)), packed)
            a = emit.at(x, emit.scaled(n, images * height * width * channels))

            def line(i: ir.Value) -> None:
                left, target = emit.at(a, emit.scaled(i, width * channels)), emit.at(dw, emit.scaled(i, size))
                emit.product(product, columns * channels, out, left, packed, target)

            emit.repeat(rows // count, line)

        emit.repeat(batch // images, some)

    return body
