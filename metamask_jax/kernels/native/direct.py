"""Convolutions of any geometry, as products of rows of overlapping windows, read where they are, with the kernel."""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from llvmlite import ir

from metamask_jax.kernels.geometry import Geometry
from metamask_jax.kernels.native.emit import VECTOR, Emitter, Index, Product, value
from metamask_jax.kernels.native.ffi import Body, call, parts, shares

# Images and gradients of one round of the weight gradient should stay in a core's own cache.
_ROUND_BYTES = 2**20
_MOST_ROWS = 24  # height of the highest piece of a product on any machine
_TERMS = 256  # length of a sum within a sum; that of one image if it is longer


def conv(x: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    """Convolves `x` `[n, h, w, in]` with `w` `[kh, kw, in, out]` into `[n, oh, ow, out]`."""
    return _inside(jnp.pad(x, ((0, 0), *geometry.padding, (0, 0))), w, geometry.strides)


def conv_dx(dy: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    """Input gradient `[n, h, w, in]` from `dy` `[n, oh, ow, out]` and `w` `[kh, kw, in, out]`.

    Pixels that have the same remainder modulo the stride meet the same taps of the kernel: each such grid of pixels is
    a convolution of its own, of stride 1.
    """
    rows, columns = (_grids(*axis) for axis in zip(geometry.image, geometry.padding, geometry.strides, strict=True))
    grids = [[_grid(dy, w, (row, column)) for column in columns] for row in rows]
    dx = jnp.stack([jnp.stack(line, axis=3) for line in grids], axis=2)  # [n, count, stride, count, stride, in]
    dx = dx.reshape(len(dy), dx.shape[1] * dx.shape[2], dx.shape[3] * dx.shape[4], -1)
    return dx[:, : geometry.image[0], : geometry.image[1]]


def conv_dw(x: jax.Array, dy: jax.Array, geometry: Geometry) -> jax.Array:
    """Weight gradient `[kh, kw, in, out]` from `x` `[n, h, w, in]` and `dy` `[n, oh, ow, out]`."""
    x = jnp.pad(x, ((0, 0), *geometry.padding, (0, 0)))
    channels, out = x.shape[3], dy.shape[3]
    rounds = shares(len(x), channels * out)
    batch = len(x) // rounds
    most = max(1, _ROUND_BYTES // ((x[0].size + dy[0].size) * x.dtype.itemsize))
    images = max(size for size in range(1, most + 1) if batch % size == 0)
    count = parts(out // VECTOR) if rounds == 1 else 1
    settings = (batch, *x.shape[1:]), dy.shape[1:], geometry.window, geometry.strides, images, count
    scratch = rounds * images * prod(dy.shape[1:3]) * (out + count * _MOST_ROWS)
    shapes = (rounds, *geometry.window, channels, out), (scratch,)
    return call(_conv_dw, settings, (x, dy), *shapes, parts=rounds * count)[0].sum(axis=0)


class _Grid(NamedTuple):
    """Along one axis, the pixels whose position has a certain remainder modulo the stride.

    Attributes:
      taps: the first tap of the kernel that they meet, and the distance from one such tap to the next.
      first: the output to which the first tap of the first pixel belongs.
      length: how many pixels there are.
    """

    taps: tuple[int, int]
    first: int
    length: int


def _grids(size: int, padding: tuple[int, int], stride: int) -> list[_Grid]:
    """The grids of an axis, by their remainders."""
    starts = [divmod(remainder + padding[0], stride) for remainder in range(stride)]
    return [_Grid((tap, stride), first, -(-size // stride)) for first, tap in starts]


def _grid(dy: jax.Array, w: jax.Array, axes: tuple[_Grid, _Grid]) -> jax.Array:
    """The input gradient of a grid of pixels."""
    w = w[tuple(slice(axis.taps[0], None, axis.taps[1]) for axis in axes)]
    if 0 in w.shape[:2]:  # a stride longer than the kernel: these pixels are in no output
        return jnp.zeros((len(dy), *(axis.length for axis in axes), w.shape[2]), dy.dtype)
    sizes = zip(dy.shape[1:3], w.shape[:2], axes, strict=True)
    spatial = [(window - 1 - axis.first, axis.first + axis.length - size, 0) for size, window, axis in sizes]
    dy = lax.pad(dy, jnp.zeros((), dy.dtype), [(0, 0, 0), *spatial, (0, 0, 0)])
    return _inside(dy, jnp.swapaxes(w[::-1, ::-1], 2, 3), (1, 1))


def _inside(x: jax.Array, w: jax.Array, strides: tuple[int, int]) -> jax.Array:
    """Convolves without padding."""
    sizes = zip(x.shape[1:3], w.shape[:2], strides, strict=True)
    output = *((size - window) // stride + 1 for size, window, stride in sizes), w.shape[3]
    count = parts(len(x))
    shapes = (len(x), *output), (count * w.size,)
    images = max(1, _ROUND_BYTES // (x[0].size * x.dtype.itemsize))
    return call(_conv, (x.shape, w.shape, strides, output, images, count), (x, w), *shapes, parts=count)[0]


def _conv(
    image: Sequence[int],
    kernel: Sequence[int],
    strides: tuple[int, int],
    output: Sequence[int],
    images: int,
    count: int,
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
        emit.pack((product.depth, out), out, w, packed)

        def some(first: Index, length: int) -> None:
            def piece(start: Index, vectors: int) -> None:
                right = emit.at(packed, emit.scaled(start, product.depth))

                def picture(n: ir.Value) -> None:
                    n = emit.builder.add(value(first), n)
                    a = emit.at(x, emit.scaled(n, height * width * channels))
                    c = emit.at(y, emit.scaled(n, lines * pixels * out))

                    def line(i: ir.Value) -> None:
                        left = emit.at(a, emit.scaled(i, strides[0] * width * channels))
                        target = emit.at(c, emit.scaled(i, pixels * out), start)
                        emit.rows(product, pixels, vectors, left, right, target)

                    emit.repeat(lines, line)

                emit.repeat(length, picture)

            emit.columns(out, piece)

        emit.pieces(batch // count, images, some)

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
    lines, pixels, out = output
    rows, columns = window
    depth = images * lines * pixels
    most = max(1, _TERMS // (lines * pixels))
    terms = lines * pixels * max(count for count in range(1, most + 1) if images % count == 0)
    taps = (images, height * width * channels), (lines, strides[0] * width * channels), (pixels, strides[1] * channels)

    def body(emit: Emitter, buffers: Sequence[ir.Value], part: ir.Value) -> None:
        x, dy, dw, scratch = buffers
        features = out // count
        height_of_piece = emit.machine.rows(min(emit.machine.vectors, features // emit.lanes))
        share, place = emit.divided(part, count)
        x = emit.at(x, emit.scaled(share, prod(image)))
        dy = emit.at(dy, emit.scaled(share, batch * prod(output)), emit.scaled(place, features))
        dw = emit.at(dw, emit.scaled(share, rows * columns * channels * out), emit.scaled(place, features))
        packed = emit.at(scratch, emit.scaled(part, depth * (features + height_of_piece)))
        panel = emit.at(packed, depth * features)

        def some(n: Index, *, accumulate: bool) -> None:
            emit.pack((depth, features), out, emit.at(dy, emit.scaled(n, depth * out)), packed)
            a = emit.at(x, emit.scaled(n, images * height * width * channels))

            def line(i: ir.Value) -> None:
                left = emit.at(a, emit.scaled(i, width * channels))
                target = emit.at(dw, emit.scaled(i, columns * channels * out))

                def piece(start: Index, rows: int) -> None:
                    # The same pixels of all windows, side by side: memory with kilobytes in between is read only once.
                    emit.gather(rows, taps, emit.at(left, start), panel)
                    product = Product(1, out, ((depth // terms, terms * rows), (terms, rows)), accumulate)
                    emit.product(product, rows, features, panel, packed, emit.at(target, emit.scaled(start, out)))

                emit.pieces(columns * channels, height_of_piece, piece)

            emit.repeat(rows, line)

        some(0, accumulate=False)
        if batch > images:
            emit.repeat(batch // images - 1, lambda n: some(emit.builder.add(n, value(1)), accumulate=True))

    return body
