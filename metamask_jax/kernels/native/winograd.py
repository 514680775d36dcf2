"""Convolutions of stride 1 by fewer multiplications (Winograd 1980; Lavin and Gray 2015).

A tile of `m` outputs of a one-dimensional filter with `r` taps is a product of polynomials read backwards, and takes
`m + r - 1` multiplications, one per point at which they are evaluated, where the sum itself takes `m * r`:

    y  =  A^T [ (G w) * (B^T x) ]           two dimensions: the same on both axes

With images and channels, every point is one matrix product. The weight gradient is the exact transpose of the same
formula, so the three operations share their three matrices. Tiles are of 4x4 outputs: 3x3 kernels then take 4 times
fewer multiplications in all of them, 5x5 kernels 6.25 times. A sum of convolutions is summed before the last transform.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
from llvmlite import ir

from metamask_jax.kernels.geometry import Geometry
from metamask_jax.kernels.native.emit import VECTOR, Emitter, Index, Product, value
from metamask_jax.kernels.native.ffi import Body, call, parts, shares
from metamask_jax.kernels.native.points import POINTS, Matrix, matrices_of, transposed
from metamask_jax.kernels.native.transform import transform

_BLOCK = 66  # tiles whose transforms are multiplied at once: whole pieces of a product on every machine


class _Tiles(NamedTuple):
    """How the output is cut into tiles.

    Attributes:
      size: height and width of a tile.
      down: tiles from top to bottom.
      across: tiles from left to right.
    """

    size: int
    down: int
    across: int

    @property
    def covered(self) -> tuple[int, int]:
        """Height and width of all tiles together."""
        return self.down * self.size, self.across * self.size


def suits(geometry: Geometry) -> bool:
    """Whether the window is square, has known points, moves by single pixels and never lies in the padding alone."""
    rows, columns = geometry.window
    return rows == columns and rows in POINTS and geometry.strides == (1, 1) and max(map(max, geometry.padding)) < rows


def conv(x: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    """Convolves `x` `[n, h, w, in]` with `w` `[r, r, in, out]` into `[n, oh, ow, out]`."""
    return _conv_sum([(x, w)], geometry)


def conv_tangent(x: jax.Array, w: jax.Array, dx: jax.Array, dw: jax.Array, geometry: Geometry) -> jax.Array:
    """`conv(dx, w) + conv(x, dw)`."""
    return _conv_sum([(dx, w), (x, dw)], geometry)


def _conv_sum(pairs: Sequence[tuple[jax.Array, jax.Array]], geometry: Geometry) -> jax.Array:
    """The sum of the convolutions of pairs `(x, w)`, all of the same shapes."""
    tiles, (channels, out) = _tiles(geometry), pairs[0][1].shape[2:]
    operands = [array for x, w in pairs for array in (_padded(x, geometry), _transformed(w))]
    image, points = operands[0].shape, len(operands[1])
    count = parts(image[0])
    block = min(_BLOCK, image[0] // count * tiles.down * tiles.across)
    shapes = (image[0], *tiles.covered, out), (count * points * (_apart(block * channels) + _apart(block * out)),)
    settings = image, out, geometry.window[0], tiles, block, len(pairs), count
    y, _ = call(_conv, settings, operands, *shapes, parts=count)
    return y[:, : geometry.output[0], : geometry.output[1]]


def conv_dx(dy: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    """Input gradient: the convolution of `dy` `[n, oh, ow, out]` with the kernel turned round."""
    return conv(dy, jnp.swapaxes(w[::-1, ::-1], 2, 3), geometry.mirrored)


def conv_dw(x: jax.Array, dy: jax.Array, geometry: Geometry) -> jax.Array:
    """Weight gradient `[r, r, in, out]` from `x` `[n, h, w, in]` and `dy` `[n, oh, ow, out]`."""
    tiles = _tiles(geometry)
    # The input gradient pads `dy` in the same way, so that XLA computes it once for both.
    x, dy = _padded(x, geometry), _padded(dy, geometry.mirrored, at_least=tiles.covered)
    channels, out = x.shape[3], dy.shape[3]
    # Kernels of many channels are cut by input channels, so that no sum is cut; each part then transforms all of `dy`.
    rounds = shares(len(x), channels * out)
    count = parts(channels // VECTOR) if rounds == 1 else 1
    image = len(x) // rounds, *x.shape[1:]
    block = min(_BLOCK, image[0] * tiles.down * tiles.across)
    arrays = channels // count * out, block * channels // count, block * out
    scratch = rounds * count * matrices_of(geometry.window[0]).side ** 2 * sum(map(_apart, arrays))
    corner = geometry.mirrored.padding[0][0], geometry.mirrored.padding[1][0]
    settings = image, dy.shape[1:], corner, geometry.window[0], tiles, block, count
    shapes = (rounds, *geometry.window, channels, out), (scratch,)
    return call(_conv_dw, settings, (x, dy), *shapes, parts=rounds * count)[0].sum(axis=0)


def _tiles(geometry: Geometry) -> _Tiles:
    """The tiles that cover the output."""
    size = len(matrices_of(geometry.window[0]).output)
    height, width = geometry.output
    return _Tiles(size, -(-height // size), -(-width // size))


def _padded(x: jax.Array, geometry: Geometry, at_least: tuple[int, int] = (0, 0)) -> jax.Array:
    """Pads images to all pixels that the tiles reach, and to `at_least` pixels after the padding at the start."""
    reached = (covered + window - 1 for covered, window in zip(_tiles(geometry).covered, geometry.window, strict=True))
    sizes = zip(geometry.image, geometry.padding, reached, at_least, strict=True)
    pads = [(low, max(reached - low, least) - size) for size, (low, _), reached, least in sizes]
    return jnp.pad(x, ((0, 0), *pads, (0, 0)))


def _transformed(w: jax.Array) -> jax.Array:
    """The transformed kernel, the right side of a product at every point; computed once for all passes that need it."""
    (channels, out), points = w.shape[2:], matrices_of(len(w)).side ** 2
    count = parts(channels // VECTOR)
    (kernel,) = call(_kernel, (w.shape, count), (w,), (points, _apart(channels * out)), parts=count)
    return kernel


def _apart(numbers: int) -> int:
    """Distance from one point to the next: with powers of two, a cache would hold few points of a tile at once."""
    return numbers + VECTOR


def _kernel(shape: Sequence[int], count: int) -> Body:
    """The transformed kernel, packed at every point; each part has some of the input channels."""
    taps, _, channels, out = shape
    matrices, point = matrices_of(taps), _apart(channels * out)

    def body(emit: Emitter, buffers: Sequence[ir.Value], part: ir.Value) -> None:
        w, kernel = buffers
        before = emit.scaled(part, channels // count)

        def piece(start: Index, vectors: int) -> None:
            def channel(c: ir.Value) -> None:
                c = emit.builder.add(c, before)
                here = emit.at(w, emit.scaled(c, out), start)
                for v, there in enumerate(emit.packed(kernel, channels, start, vectors, c)):
                    source = emit.at(here, v * emit.lanes), taps * channels * out, channels * out
                    transform(emit, matrices.kernel, source, (there, matrices.side * point, point))

            emit.repeat(channels // count, channel)

        emit.columns(out, piece)

    return body


def _conv(image: Sequence[int], out: int, taps: int, tiles: _Tiles, block: int, pairs: int, count: int) -> Body:
    """Each part convolves some of the images, and sums over the pairs."""
    channels = image[3]
    matrices = matrices_of(taps)
    side = matrices.side
    batch = image[0] // count
    output = *tiles.covered, out
    sizes = [_apart(size) for size in (block * channels, channels * out, block * out)]

    def body(emit: Emitter, buffers: Sequence[ir.Value], part: ir.Value) -> None:
        *operands, y, inputs = buffers
        images = [emit.at(x, emit.scaled(part, batch * prod(image[1:]))) for x in operands[::2]]
        y = emit.at(y, emit.scaled(part, batch * prod(output)))
        inputs = emit.at(inputs, emit.scaled(part, side**2 * (sizes[0] + sizes[2])))
        outputs = emit.at(inputs, side**2 * sizes[0])

        def some(first: Index, length: int) -> None:
            def multiply(weights: ir.Value, *, accumulate: bool) -> None:
                product = Product(a_row=channels, c_row=None, sums=((channels, 1),), accumulate=accumulate)

                def point(p: ir.Value) -> None:
                    arrays = zip((inputs, weights, outputs), sizes, strict=True)
                    places = (emit.at(array, emit.scaled(p, size)) for array, size in arrays)
                    emit.product(product, length, out, *places)

                emit.repeat(side**2, point)

            def scatter(t: ir.Value) -> None:
                there = _corner(emit, y, output, tiles.size, _place(emit, first, t, tiles))

                def piece(start: Index, vectors: int) -> None:
                    for v, here in enumerate(emit.packed(outputs, length, start, vectors, t)):
                        target = emit.at(there, start, v * emit.lanes), output[1] * out, out
                        transform(emit, matrices.output, (here, side * sizes[2], sizes[2]), target)

                emit.columns(out, piece)

            for i, (x, weights) in enumerate(zip(images, operands[1::2], strict=True)):
                _gather(emit, (x, image[1:]), (first, length), tiles, matrices.input, (inputs, block, channels))
                multiply(weights, accumulate=i > 0)
            emit.repeat(length, scatter)

        emit.pieces(batch * tiles.down * tiles.across, block, some)

    return body


def _conv_dw(
    image: Sequence[int],
    output: Sequence[int],
    corner: tuple[int, int],
    taps: int,
    tiles: _Tiles,
    block: int,
    count: int,
) -> Body:
    """Each part has a share of the images and some of the input channels. Gradients begin at the corner of `output`."""
    matrices = matrices_of(taps)
    side, back = matrices.side, transposed(matrices.output)
    channels, out = image[3] // count, output[2]

    def body(emit: Emitter, buffers: Sequence[ir.Value], part: ir.Value) -> None:
        x, dy, dw, products = buffers
        sizes = [_apart(size) for size in (block * channels, block * out, channels * out)]
        share, place = emit.divided(part, count)
        x = emit.at(x, emit.scaled(share, prod(image)), emit.scaled(place, channels))
        dy = emit.at(dy, emit.scaled(share, image[0] * prod(output)), (corner[0] * output[1] + corner[1]) * out)
        dw = emit.at(dw, emit.scaled(share, taps**2 * image[3] * out), emit.scaled(place, channels * out))
        products = emit.at(products, emit.scaled(part, side**2 * sum(sizes)))
        inputs = emit.at(products, side**2 * sizes[2])
        outputs = emit.at(inputs, side**2 * sizes[0])
        emit.zero(side**2 * sizes[2], products)

        def some(first: Index, length: int) -> None:
            product = Product(a_row=1, c_row=None, sums=((length, channels),), accumulate=True)

            def multiply(p: ir.Value) -> None:
                arrays = zip((inputs, outputs, products), sizes, strict=True)
                emit.product(product, channels, out, *(emit.at(array, emit.scaled(p, size)) for array, size in arrays))

            _gather(emit, (x, image[1:]), (first, length), tiles, matrices.input, (inputs, block, channels))
            _gather(emit, (dy, output), (first, length), tiles, back, (outputs, block, out), packed=True)
            emit.repeat(side**2, multiply)

        def finish(start: Index, vectors: int) -> None:
            def channel(c: ir.Value) -> None:
                there = emit.at(dw, emit.scaled(c, out), start)
                for v, here in enumerate(emit.packed(products, channels, start, vectors, c)):
                    tap = count * channels * out
                    target = emit.at(there, v * emit.lanes), taps * tap, tap
                    transform(emit, transposed(matrices.kernel), (here, side * sizes[2], sizes[2]), target)

            emit.repeat(channels, channel)

        emit.pieces(image[0] * tiles.down * tiles.across, block, some)
        emit.columns(out, finish)

    return body


def _gather(
    emit: Emitter,
    source: tuple[ir.Value, Sequence[int]],
    some: tuple[Index, int],
    tiles: _Tiles,
    matrix: Matrix,
    target: tuple[ir.Value, int, int],
    *,
    packed: bool = False,
) -> None:
    """Transforms tiles of images.

    Args:
      emit: where to write the code.
      source: images, and the height, width and channels of each.
      some: the first tile, and how many to transform.
      tiles: how an image is cut.
      matrix: the transform along one axis.
      target: an array `[points, tiles, channels]` with spare room (`_apart`), and its numbers of tiles and channels.
      packed: whether each point's part is laid out as the right side of a product.
    """
    images, shape = source
    transformed, room, channels = target
    point = _apart(room * channels)

    def tile(t: ir.Value) -> None:
        here = _corner(emit, images, shape, tiles.size, _place(emit, some[0], t, tiles))

        def piece(start: Index, vectors: int) -> None:
            row = emit.at(transformed, emit.scaled(t, channels), start)
            plain = [emit.at(row, v * emit.lanes) for v in range(vectors)]
            places = emit.packed(transformed, some[1], start, vectors, t) if packed else plain
            for v, there in enumerate(places):
                pixels = emit.at(here, start, v * emit.lanes), shape[1] * shape[2], shape[2]
                transform(emit, matrix, pixels, (there, len(matrix) * point, point))

        emit.columns(channels, piece)

    emit.repeat(some[1], tile)


def _place(emit: Emitter, first: Index, t: ir.Value, tiles: _Tiles) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Image, row and column of the tile that comes `t` after the first one."""
    rest, column = emit.divided(emit.builder.add(value(first), t), tiles.across)
    return *emit.divided(rest, tiles.down), column


def _corner(emit: Emitter, images: ir.Value, image: Sequence[int], tile: int, place: Sequence[ir.Value]) -> ir.Value:
    """Address of the first pixel of a tile."""
    _, width, channels = image
    strides = prod(image), tile * width * channels, tile * channels
    return emit.at(images, *(emit.scaled(i, stride) for i, stride in zip(place, strides, strict=True)))
