"""Convolutions by fewer multiplications (Winograd 1980; Lavin and Gray 2015).

A tile of `m` outputs of a one-dimensional filter with `r` taps is a product of polynomials read backwards, and takes
`m + r - 1` multiplications, one per point at which they are evaluated, where the sum itself takes `m * r`:

    y  =  A^T [ (G w) * (B^T x) ]           two dimensions: the same on both axes

With images and channels, every point is one matrix product. The weight gradient is the exact transpose of the same
formula, so the three operations share their three matrices. Tiles are of 4x4 outputs, unless others fit an image far
better (`plans`): 3x3 kernels then take 4 times fewer multiplications in all of them, 5x5 kernels 6.25 times. A sum of
convolutions is summed before the last transform.

A kernel of three taps that moves by two pixels is the sum of two that move by one: the outer taps meet every other
pixel, the middle one those in between. Their matrices side by side have 9 points for 4 outputs, so that 3x3 kernels
take 1.8 times fewer multiplications. Its input gradient is of the same kind: tiles of 8x8 pixels from 5x5.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import jax
from llvmlite import ir

from metamask_jax.kernels.geometry import Geometry
from metamask_jax.kernels.native.emit import VECTOR, Emitter, Index, Product, value
from metamask_jax.kernels.native.ffi import Body, call, parts, shares
from metamask_jax.kernels.native.plans import Plan, Region, backward, forward, suits
from metamask_jax.kernels.native.points import Matrix, transposed
from metamask_jax.kernels.native.tiles import Images, apart, fetch, for_tiles, gather
from metamask_jax.kernels.native.transform import Grid, Square, transform, transpose

__all__ = ["conv", "conv_dw", "conv_dx", "conv_tangent", "suits"]

# Tiles whose transforms are multiplied at once: whole pieces of a product on every machine. Few, so that they stay in a
# core's own cache; more where the kernel at all points stays in none, and is read from memory for every block.
_BLOCK, _LONG_BLOCK = 24, 66
_LONGEST_BLOCK = 132  # of weight gradients, which would otherwise be read and written at all points for every block
_LARGE = 2**23  # numbers
_STREAMED = 2**20  # numbers of an output from which on it goes past the caches: they would lose it before it is read


def conv(x: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    """Convolves `x` `[n, h, w, in]` with `w` `[r, r, in, out]` into `[n, oh, ow, out]`."""
    return _conv_sum([(x, w)], forward(geometry))


def conv_tangent(x: jax.Array, w: jax.Array, dx: jax.Array, dw: jax.Array, geometry: Geometry) -> jax.Array:
    """`conv(dx, w) + conv(x, dw)`."""
    return _conv_sum([(dx, w), (x, dw)], forward(geometry))


def conv_dx(dy: jax.Array, w: jax.Array, geometry: Geometry) -> jax.Array:
    """Input gradient: a convolution of `dy` `[n, oh, ow, out]` with the kernel turned round."""
    return _conv_sum([(dy, w)], backward(geometry), turned=True)


def conv_dw(x: jax.Array, dy: jax.Array, geometry: Geometry) -> jax.Array:
    """Weight gradient `[r, r, in, out]` from `x` `[n, h, w, in]` and `dy` `[n, oh, ow, out]`."""
    plan, channels, out = forward(geometry), x.shape[3], dy.shape[3]
    # Kernels of many channels are cut by input channels, so that no sum is cut; each part then transforms all of `dy`.
    rounds = shares(len(x), channels * out)
    count = parts(channels // VECTOR) if rounds == 1 else 1
    batch = len(x) // rounds
    block = _block(plan, channels * out, batch, long=_LONGEST_BLOCK)
    scratch = rounds * count * sum(_dw_sizes(plan, block, channels // count, out))
    shapes = (rounds, *geometry.window, channels, out), (scratch,)
    settings = plan, batch, channels, out, block, count
    return call(_conv_dw, settings, (x, dy), *shapes, parts=rounds * count)[0].sum(axis=0)


def _conv_sum(pairs: Sequence[tuple[jax.Array, jax.Array]], plan: Plan, *, turned: bool = False) -> jax.Array:
    """The sum of the convolutions of pairs `(x, w)`, all of the same shapes; `turned` says how `w` is to be read."""
    (batch, *_, channels), sides = pairs[0][0].shape, pairs[0][1].shape[2:]
    out = sides[0] if turned else sides[1]
    operands = [array for x, w in pairs for array in (x, _transformed(w, plan.kernel, turned=turned))]
    count = parts(batch)
    block = _block(plan, channels * out, batch // count)
    shapes = (batch, *plan.output, out), (count * sum(_sizes(plan, block, channels, out)),)
    streamed = prod(shapes[0]) >= _STREAMED
    settings = plan, batch, channels, out, block, len(pairs), count, streamed
    return call(_conv, settings, operands, *shapes, parts=count)[0]


def _transformed(w: jax.Array, matrix: Matrix, *, turned: bool) -> jax.Array:
    """The transformed kernel, the right side of a product at every point; computed once for all passes that need it.

    Args:
      w: `[r, r, in, out]`.
      matrix: the transform.
      turned: whether to turn it round and to exchange input and output channels, as an input gradient needs it.
    """
    taps, _, *sides = w.shape
    channels, out = reversed(sides) if turned else sides
    count = parts(channels // VECTOR)
    results = [(len(matrix) ** 2, apart(channels * out)), (count * taps**2 * VECTOR**2,)]
    kernel, results = (_turned_kernel, results) if turned else (_kernel, results[:1])
    settings = matrix, channels, out, count, prod(results[0]) > _LARGE
    return call(kernel, settings, (w,), *results, parts=count)[0]


def _block(plan: Plan, kernel: int, images: int, long: int = _LONG_BLOCK) -> int:
    """How many tiles of some images to multiply at once with kernels of so many numbers at each point."""
    most = images * max(prod(region.tiles) for region in plan.regions)
    return min(long if len(plan.kernel) ** 2 * kernel > _LARGE else _BLOCK, most)


def _has_all_points(plan: Plan) -> bool:
    """Whether a weight gradient has terms at every point, also where all tiles are shorter than the usual ones."""
    return all(len(region.kernels) == len(plan.kernel) ** 2 for region in plan.regions)


def _sizes(plan: Plan, block: int, channels: int, out: int) -> list[int]:
    """Numbers in each array that a part of a convolution needs: inputs and outputs at all points, and for borders.

    For borders: zeros, room for what is not needed, and a table of places (of 64 bits) of a tile's pixels.
    """
    largest = max(region.largest for region in plan.regions)
    border = [channels, out, -(-2 * largest // VECTOR) * VECTOR]
    return [*(plan.points * apart(block * count) for count in (channels, out)), *border]


def _dw_sizes(plan: Plan, block: int, channels: int, out: int) -> list[int]:
    """The same of a weight gradient: inputs, gradients and products, and for borders."""
    inputs, gradients, *border = _sizes(plan, block, channels, out)
    return [inputs, gradients, len(plan.kernel) ** 2 * apart(channels * out), *border]


def _arrays(emit: Emitter, scratch: ir.Value, part: ir.Value, sizes: Sequence[int]) -> list[ir.Value]:
    """Addresses of a part's own arrays, one after the other."""
    found = [emit.at(scratch, emit.scaled(part, sum(sizes)))]
    for size in sizes[:-1]:
        found.append(emit.at(found[-1], size))
    return found


def _kernel(matrix: Matrix, channels: int, out: int, count: int, streamed: bool) -> Body:
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
                    target = Square(there, side * point, point)
                    transform(emit, (matrix, matrix), source, target, streamed=streamed)

            emit.repeat(channels // count, channel)

        emit.columns(out, piece)

    return body


def _turned_kernel(matrix: Matrix, channels: int, out: int, count: int, streamed: bool) -> Body:
    """The same from `[r, r, out, channels]`, turned round: squares of both channels are transposed in registers."""
    (side, taps), point = (len(matrix), len(matrix[0])), apart(channels * out)

    def body(emit: Emitter, buffers: Sequence[ir.Value], part: ir.Value) -> None:
        w, kernel, scratch = buffers
        squares = emit.at(scratch, emit.scaled(part, taps**2 * VECTOR**2))
        before, size = emit.scaled(part, channels // count), emit.lanes**2
        last = emit.at(squares, (taps**2 - 1) * size)

        def piece(start: Index, vectors: int) -> None:
            def rows(i: ir.Value) -> None:
                c = emit.builder.add(value(emit.scaled(i, emit.lanes)), value(before))
                for v in range(vectors):
                    here = emit.at(w, emit.scaled(start, channels), v * emit.lanes * channels, c)

                    def tap(t: ir.Value, here: ir.Value = here) -> None:
                        there = emit.at(squares, emit.scaled(t, size))
                        transpose(emit, emit.at(here, emit.scaled(t, channels * out)), channels, there)

                    def row(j: ir.Value, v: int = v) -> None:
                        source = Square(emit.at(last, emit.scaled(j, emit.lanes)), -taps * size, -size)
                        there = emit.packed(kernel, channels, start, vectors, emit.builder.add(c, j))[v]
                        target = Square(there, side * point, point)
                        transform(emit, (matrix, matrix), source, target, streamed=streamed)

                    emit.repeat(taps**2, tap)
                    emit.repeat(emit.lanes, row)

            emit.repeat(channels // count // emit.lanes, rows)

        emit.columns(out, piece)

    return body


def _conv(plan: Plan, batch: int, channels: int, out: int, block: int, pairs: int, count: int, streamed: bool) -> Body:
    """Each part convolves some of the images, and sums over the pairs."""
    share = batch // count
    image, output = (*plan.image, channels), (*plan.output, out)
    points = [apart(size) for size in (block * channels, channels * out, block * out)]
    sizes = _sizes(plan, block, channels, out)

    def body(emit: Emitter, buffers: Sequence[ir.Value], part: ir.Value) -> None:
        *operands, y, scratch = buffers
        inputs, outputs, zeros, spare, table = _arrays(emit, scratch, part, sizes)
        emit.zero(channels, zeros)
        pictures = [emit.at(x, emit.scaled(part, share * prod(image))) for x in operands[::2]]
        y = emit.at(y, emit.scaled(part, share * prod(output)))

        def some(region: Region, first: Index, length: int) -> None:
            def multiply(weights: ir.Value, following: Images, *, accumulate: bool) -> None:
                product = Product(a_row=channels, c_row=None, sums=((channels, 1),), accumulate=accumulate)

                def point(p: ir.Value) -> None:
                    places = zip(
                        (inputs, weights, outputs), (p, emit.chosen(region.kernels, p), p), points, strict=True
                    )
                    fetch(emit, following, (first, length), region.tiles, p, len(region.kernels))
                    emit.product(product, length, out, *(emit.at(a, emit.scaled(i, size)) for a, i, size in places))

                emit.repeat(len(region.kernels), point)

            def scatter(t: ir.Value, grid: Callable[[Index], Grid]) -> None:
                side = len(region.columns.matrices.rows)

                def piece(start: Index, vectors: int) -> None:
                    for v, here in enumerate(emit.packed(outputs, length, start, vectors, t)):
                        target = grid(emit.builder.add(value(start), value(v * emit.lanes)))
                        transform(
                            emit, region.output, Square(here, side * points[2], points[2]), target, streamed=streamed
                        )

                emit.columns(out, piece)

            tiles = (first, length), region.tiles
            sources = [Images(x, image, region.first, region.step, zeros) for x in pictures]
            for i, (source, weights) in enumerate(zip(sources, operands[1::2], strict=True)):
                gather(emit, source, *tiles, region.input, (inputs, block), table)
                multiply(weights, source, accumulate=i > 0)
            results = Images(y, output, region.target, region.size, spare)
            for_tiles(emit, results, *tiles, region.size, table, scatter)

        for region in plan.regions:
            emit.pieces(share * prod(region.tiles), block, partial(some, region))

    return body


def _conv_dw(plan: Plan, batch: int, channels: int, out: int, block: int, count: int) -> Body:
    """Each part has a share of the images and some of the input channels."""
    own, rows, taps = channels // count, len(plan.kernel), len(plan.kernel[0])
    image, output = (*plan.image, channels), (*plan.output, out)
    points = [apart(size) for size in (block * own, block * out, own * out)]
    sizes = _dw_sizes(plan, block, own, out)
    at_once = len(plan.regions) == 1 and batch * prod(plan.regions[0].tiles) == block and _has_all_points(plan)

    def body(emit: Emitter, buffers: Sequence[ir.Value], part: ir.Value) -> None:
        x, dy, dw, scratch = buffers
        inputs, gradients, products, zeros, _, table = _arrays(emit, scratch, part, sizes)
        share, place = emit.divided(part, count)
        x = emit.at(x, emit.scaled(share, batch * prod(image)), emit.scaled(place, own))
        dy = emit.at(dy, emit.scaled(share, batch * prod(output)))
        dw = emit.at(dw, emit.scaled(share, taps**2 * channels * out), emit.scaled(place, own * out))
        if not at_once:
            emit.zero(rows**2 * points[2], products)
        emit.zero(own + out, zeros)  # and what is spare elsewhere: gradients may have more channels

        def some(region: Region, first: Index, length: int) -> None:
            product = Product(a_row=1, c_row=None, sums=((length, own),), accumulate=not at_once)

            def multiply(p: ir.Value) -> None:
                which = p, p, emit.chosen(region.kernels, p)
                places = zip((inputs, gradients, products), which, points, strict=True)
                for following in (pictures, slopes) if own == channels else (slopes,):
                    fetch(emit, following, (first, length), region.tiles, p, len(region.kernels))
                emit.product(product, own, out, *(emit.at(a, emit.scaled(i, size)) for a, i, size in places))

            pictures = Images(x, image, region.first, region.step, zeros)
            slopes = Images(dy, output, region.target, region.size, zeros)
            down, across = map(transposed, region.output)
            tiles = (first, length), region.tiles
            gather(emit, pictures, *tiles, region.input, (inputs, block), table, channels=own)
            gather(emit, slopes, *tiles, (down, across), (gradients, block), table, packed=True)
            emit.repeat(len(region.kernels), multiply)

        def finish(start: Index, vectors: int) -> None:
            back = transposed(plan.kernel)

            def channel(c: ir.Value) -> None:
                there = emit.at(dw, emit.scaled(c, out), start)
                for v, here in enumerate(emit.packed(products, own, start, vectors, c)):
                    target = Square(emit.at(there, v * emit.lanes), taps * channels * out, channels * out)
                    transform(emit, (back, back), Square(here, rows * points[2], points[2]), target)

            emit.repeat(own, channel)

        for region in plan.regions:
            emit.pieces(batch * prod(region.tiles), block, partial(some, region))
        emit.columns(out, finish)

    return body
