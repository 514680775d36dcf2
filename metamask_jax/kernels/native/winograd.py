"""Convolutions by fewer multiplications (Winograd 1980; Lavin and Gray 2015).

A tile of `m` outputs of a one-dimensional filter with `r` taps is a product of polynomials read backwards, and takes
`m + r - 1` multiplications, one per point at which they are evaluated, where the sum itself takes `m * r`:

    y  =  A^T [ (G w) * (B^T x) ]           two dimensions: the same on both axes

With images and channels, every point is one matrix product. The weight gradient is the exact transpose of the same
formula, so the three operations share their three matrices. Tiles are of 4x4 outputs, unless others fit a small image
far better: 3x3 kernels then take 4 times fewer multiplications in all of them, 5x5 kernels 6.25 times. A sum of
convolutions is summed before the last transform.

A kernel of three taps that moves by two pixels is the sum of two that move by one: the outer taps meet every other
pixel, the middle one those in between. Their matrices side by side have 9 points for 4 outputs, so that 3x3 kernels
take 1.8 times fewer multiplications. Its input gradient is of the same kind: tiles of 8x8 pixels from 5x5.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
from llvmlite import ir

from metamask_jax.kernels.geometry import Geometry
from metamask_jax.kernels.native.emit import VECTOR, Emitter, Index, Product, value
from metamask_jax.kernels.native.ffi import Body, call, parts, shares
from metamask_jax.kernels.native.points import (
    Matrices,
    Matrix,
    matrices_of,
    strided_matrices,
    tiles_of,
    transposed,
    transposed_strided_matrices,
)
from metamask_jax.kernels.native.tiles import Images, apart, for_tiles, gather
from metamask_jax.kernels.native.transform import Grid, Square, transform

# Tiles whose transforms are multiplied at once: whole pieces of a product on every machine. Few, so that they stay in a
# core's own cache; more where the kernel at all points stays in none, and is read from memory for every block.
_BLOCK, _LONG_BLOCK = 24, 66
_LARGE = 2**23  # numbers
_TILE, _FAR_LESS = 4, 0.7  # the usual tile; another one must multiply so much less


class _Plan(NamedTuple):
    """How a convolution is cut into tiles.

    Attributes:
      matrices: of both axes.
      first: row and column of the pixel at which the first tile of an image begins; in the padding if negative.
      image: height and width of the input.
      output: height and width of the output.
    """

    matrices: Matrices
    first: tuple[int, int]
    image: tuple[int, int]
    output: tuple[int, int]

    @property
    def products(self) -> int:
        """Of an image and each pair of channels."""
        return prod(self.tiles) * self.matrices.side**2

    @property
    def tiles(self) -> tuple[int, int]:
        """How many there are from top to bottom and from left to right."""
        down, across = (-(-size // len(self.matrices.output)) for size in self.output)
        return down, across


def suits(geometry: Geometry) -> bool:
    """Whether there are matrices for the window and its stride, and it never lies in the padding alone."""
    (taps, columns), (stride, across) = geometry.window, geometry.strides
    if taps != columns or stride != across or taps < 3 or max(map(max, geometry.padding)) >= taps:
        return False
    lows = [low for low, _ in geometry.padding]
    return bool(tiles_of(taps, stride)) and (stride == 1 or lows[0] == lows[1] < 2)


def conv(x: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    """Convolves `x` `[n, h, w, in]` with `w` `[r, r, in, out]` into `[n, oh, ow, out]`."""
    return _conv_sum([(x, w)], _forward(geometry))


def conv_tangent(x: jax.Array, w: jax.Array, dx: jax.Array, dw: jax.Array, geometry: Geometry) -> jax.Array:
    """`conv(dx, w) + conv(x, dw)`."""
    return _conv_sum([(dx, w), (x, dw)], _forward(geometry))


def conv_dx(dy: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    """Input gradient: a convolution of `dy` `[n, oh, ow, out]` with the kernel turned round."""
    return _conv_sum([(dy, jnp.swapaxes(w[::-1, ::-1], 2, 3))], _backward(geometry))


def conv_dw(x: jax.Array, dy: jax.Array, geometry: Geometry) -> jax.Array:
    """Weight gradient `[r, r, in, out]` from `x` `[n, h, w, in]` and `dy` `[n, oh, ow, out]`."""
    plan, channels, out = _forward(geometry), x.shape[3], dy.shape[3]
    matrices = plan.matrices
    # Kernels of many channels are cut by input channels, so that no sum is cut; each part then transforms all of `dy`.
    rounds = shares(len(x), channels * out)
    count = parts(channels // VECTOR) if rounds == 1 else 1
    batch = len(x) // rounds
    block = _block(matrices, channels * out, batch * prod(plan.tiles))
    scratch = rounds * count * sum(_dw_sizes(matrices, block, channels // count, out))
    shapes = (rounds, *geometry.window, channels, out), (scratch,)
    settings = plan, batch, channels, out, block, count
    return call(_conv_dw, settings, (x, dy), *shapes, parts=rounds * count)[0].sum(axis=0)


def _forward(geometry: Geometry) -> _Plan:
    first = -geometry.padding[0][0], -geometry.padding[1][0]
    (taps, _), (stride, _) = geometry.window, geometry.strides
    plans = {}
    for tile in tiles_of(taps, stride):
        matrices = strided_matrices(tile) if stride == 2 else matrices_of(taps, tile)
        plans[tile] = _Plan(matrices, first, geometry.image, geometry.output)
    return _least(plans)


def _backward(geometry: Geometry) -> _Plan:
    if geometry.strides == (1, 1):
        return _forward(geometry.mirrored)
    plans, low = {}, geometry.padding[0][0]
    for tile in tiles_of(geometry.window[0], 2):
        matrices = transposed_strided_matrices(tile, low)
        plans[tile] = _Plan(matrices, (low - 1, low - 1), geometry.output, geometry.image)
    return _least(plans)


def _least(plans: Mapping[int, _Plan]) -> _Plan:
    """That of the usual tile, or one that multiplies far less."""
    usual, least = plans[_TILE], min(plans.values(), key=lambda plan: plan.products)
    return least if least.products <= _FAR_LESS * usual.products else usual


def _conv_sum(pairs: Sequence[tuple[jax.Array, jax.Array]], plan: _Plan) -> jax.Array:
    """The sum of the convolutions of pairs `(x, w)`, all of the same shapes."""
    batch, (channels, out) = len(pairs[0][0]), pairs[0][1].shape[2:]
    operands = [array for x, w in pairs for array in (x, _transformed(w, plan.matrices.kernel))]
    count = parts(batch)
    block = _block(plan.matrices, channels * out, batch // count * prod(plan.tiles))
    shapes = (batch, *plan.output, out), (count * sum(_sizes(plan.matrices, block, channels, out)),)
    settings = plan, batch, channels, out, block, len(pairs), count
    return call(_conv, settings, operands, *shapes, parts=count)[0]


def _transformed(w: jax.Array, matrix: Matrix) -> jax.Array:
    """The transformed kernel, the right side of a product at every point; computed once for all passes that need it."""
    channels, out = w.shape[2:]
    count = parts(channels // VECTOR)
    shape = len(matrix) ** 2, apart(channels * out)
    return call(_kernel, (matrix, channels, out, count), (w,), shape, parts=count)[0]


def _block(matrices: Matrices, kernel: int, tiles: int) -> int:
    """How many of all tiles to multiply at once with kernels of so many numbers at each point."""
    return min(_LONG_BLOCK if len(matrices.kernel) ** 2 * kernel > _LARGE else _BLOCK, tiles)


def _sizes(matrices: Matrices, block: int, channels: int, out: int) -> list[int]:
    """Numbers in each array that a part of a convolution needs: inputs and outputs at all points, and for borders."""
    return [
        *(matrices.side**2 * apart(block * count) for count in (channels, out)),
        *_border_sizes(channels, out, matrices),
    ]


def _dw_sizes(matrices: Matrices, block: int, channels: int, out: int) -> list[int]:
    """The same of a weight gradient: inputs, gradients and products, and for borders."""
    inputs, gradients, *border = _sizes(matrices, block, channels, out)
    return [inputs, gradients, len(matrices.kernel) ** 2 * apart(channels * out), *border]


def _border_sizes(channels: int, out: int, matrices: Matrices) -> list[int]:
    """Zeros, room for what is not needed, and a table of places (of 64 bits) of a tile's pixels."""
    largest = max(len(matrices.input[0]), len(matrices.output))
    return [channels, out, -(-2 * largest**2 // VECTOR) * VECTOR]


def _arrays(emit: Emitter, scratch: ir.Value, part: ir.Value, sizes: Sequence[int]) -> list[ir.Value]:
    """Addresses of a part's own arrays, one after the other."""
    found = [emit.at(scratch, emit.scaled(part, sum(sizes)))]
    for size in sizes[:-1]:
        found.append(emit.at(found[-1], size))
    return found


def _kernel(matrix: Matrix, channels: int, out: int, count: int) -> Body:
    """The transformed kernel, packed at every point; each part has some of the input channels."""
    (side, taps), point = (len(matrix), len(matrix[0])), apart(channels * out)

    def body(emit: Emitter, buffers: Sequence[ir.Value], part: ir.Value) -> None:
        w, kernel = buffers
        before = emit.scaled(part, channels // count)

        def piece(start: Index, vectors: int) -> None:
            def channel(c: ir.Value) -> None:
                c = emit.builder.add(c, before)
                here = emit.at(w, emit.scaled(c, out), start)
                for v, there in enumerate(emit.packed(kernel, channels, start, vectors, c)):
                    source = Square(emit.at(here, v * emit.lanes), taps * channels * out, channels * out)
                    transform(emit, matrix, source, Square(there, side * point, point))

            emit.repeat(channels // count, channel)

        emit.columns(out, piece)

    return body


def _conv(plan: _Plan, batch: int, channels: int, out: int, block: int, pairs: int, count: int) -> Body:
    """Each part convolves some of the images, and sums over the pairs."""
    matrices, share = plan.matrices, batch // count
    side, tile = matrices.side, len(matrices.output)
    image, output = (*plan.image, channels), (*plan.output, out)
    points = [apart(size) for size in (block * channels, channels * out, block * out)]
    sizes = _sizes(matrices, block, channels, out)

    def body(emit: Emitter, buffers: Sequence[ir.Value], part: ir.Value) -> None:
        *operands, y, scratch = buffers
        inputs, outputs, zeros, spare, table = _arrays(emit, scratch, part, sizes)
        emit.zero(channels, zeros)
        pictures = [emit.at(x, emit.scaled(part, share * prod(image))) for x in operands[::2]]
        y = emit.at(y, emit.scaled(part, share * prod(output)))
        results = Images(y, output, (0, 0), tile, spare)

        def some(first: Index, length: int) -> None:
            def multiply(weights: ir.Value, *, accumulate: bool) -> None:
                product = Product(a_row=channels, c_row=None, sums=((channels, 1),), accumulate=accumulate)

                def point(p: ir.Value) -> None:
                    places = zip((inputs, weights, outputs), (p, _row(emit, matrices, p), p), points, strict=True)
                    emit.product(product, length, out, *(emit.at(a, emit.scaled(i, size)) for a, i, size in places))

                emit.repeat(side**2, point)

            def scatter(t: ir.Value, grid: Callable[[Index], Grid]) -> None:
                def piece(start: Index, vectors: int) -> None:
                    for v, here in enumerate(emit.packed(outputs, length, start, vectors, t)):
                        target = grid(emit.builder.add(value(start), value(v * emit.lanes)))
                        transform(emit, matrices.output, Square(here, side * points[2], points[2]), target)

                emit.columns(out, piece)

            for i, (x, weights) in enumerate(zip(pictures, operands[1::2], strict=True)):
                source = Images(x, image, plan.first, matrices.step, zeros)
                gather(emit, source, (first, length), plan.tiles, matrices.input, (inputs, block), table)
                multiply(weights, accumulate=i > 0)
            for_tiles(emit, results, (first, length), plan.tiles, tile, table, scatter)

        emit.pieces(share * prod(plan.tiles), block, some)

    return body


def _conv_dw(plan: _Plan, batch: int, channels: int, out: int, block: int, count: int) -> Body:
    """Each part has a share of the images and some of the input channels."""
    matrices, own = plan.matrices, channels // count
    side, rows, taps = matrices.side, len(matrices.kernel), len(matrices.kernel[0])
    image, output = (*plan.image, channels), (*plan.output, out)
    points = [apart(size) for size in (block * own, block * out, own * out)]
    sizes = _dw_sizes(matrices, block, own, out)

    def body(emit: Emitter, buffers: Sequence[ir.Value], part: ir.Value) -> None:
        x, dy, dw, scratch = buffers
        inputs, gradients, products, zeros, _, table = _arrays(emit, scratch, part, sizes)
        share, place = emit.divided(part, count)
        x = emit.at(x, emit.scaled(share, batch * prod(image)), emit.scaled(place, own))
        dy = emit.at(dy, emit.scaled(share, batch * prod(output)))
        dw = emit.at(dw, emit.scaled(share, taps**2 * channels * out), emit.scaled(place, own * out))
        emit.zero(rows**2 * points[2], products)
        emit.zero(own + out, zeros)  # and what is spare elsewhere: gradients may have more channels
        pictures = Images(x, image, plan.first, matrices.step, zeros)
        slopes = Images(dy, output, (0, 0), len(matrices.output), zeros)

        def some(first: Index, length: int) -> None:
            product = Product(a_row=1, c_row=None, sums=((length, own),), accumulate=True)

            def multiply(p: ir.Value) -> None:
                places = zip((inputs, gradients, products), (p, p, _row(emit, matrices, p)), points, strict=True)
                emit.product(product, own, out, *(emit.at(a, emit.scaled(i, size)) for a, i, size in places))

            back = transposed(matrices.output)
            tiles = (first, length), plan.tiles
            gather(emit, pictures, *tiles, matrices.input, (inputs, block), table, channels=own)
            gather(emit, slopes, *tiles, back, (gradients, block), table, packed=True)
            emit.repeat(side**2, multiply)

        def finish(start: Index, vectors: int) -> None:
            def channel(c: ir.Value) -> None:
                there = emit.at(dw, emit.scaled(c, out), start)
                for v, here in enumerate(emit.packed(products, own, start, vectors, c)):
                    target = Square(emit.at(there, v * emit.lanes), taps * channels * out, channels * out)
                    source = Square(here, rows * points[2], points[2])
                    transform(emit, transposed(matrices.kernel), source, target)

            emit.repeat(own, channel)

        emit.pieces(batch * prod(plan.tiles), block, some)
        emit.columns(out, finish)

    return body


def _row(emit: Emitter, matrices: Matrices, p: ir.Value) -> ir.Value:
    """The place of a point's kernel among all kernels; the last one of an axis is that of all further points."""
    last = value(len(matrices.kernel) - 1)
    if len(matrices.kernel) == matrices.side:
        return p
    down, across = (
        emit.builder.select(emit.builder.icmp_unsigned("<", i, last), i, last) for i in emit.divided(p, matrices.side)
    )
    return emit.builder.add(emit.builder.mul(down, value(len(matrices.kernel))), across)
