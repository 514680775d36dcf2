"""Convolutions with stride 1 by fewer multiplications (Winograd 1980; Lavin and Gray 2015).

A tile of `m` outputs of a one-dimensional filter with `r` taps is a product of polynomials read backwards, and takes
`m + r - 1` multiplications, one for each of as many points, where the sum itself takes `m * r`:

    y  =  A^T [ (G w) * (B^T x) ]           two dimensions: the same on both axes

With images and channels, every point is one matrix product. The weight gradient is the exact transpose of the same
formula, so the three operations share their three matrices. F(4, 3), which makes 4x4 outputs of a 3x3 kernel at a
time, has 4 times fewer multiplications in all of them, F(2, 3) 2.25 times. Transforms cost some of that, and digits:
relative errors in float32 stay below 1e-5 and 1e-6.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from metamask_jax.ops.chunks import map_chunks, sum_chunks
from metamask_jax.ops.geometry import Geometry

Matrix = tuple[tuple[float, ...], ...]
Grid = Sequence[Sequence[jax.Array]]

# What one chunk of images makes of its tiles should stay in the cache between a transform and the product.
_CHUNK_BYTES = 8 * 2**20
_POINTS = (0, 1, -1, 2, -2)  # and infinity; small numbers with small differences keep rounding errors small


class _Matrices(NamedTuple):
    """The transforms of F(m, r), n = m + r - 1: of the output A^T `[m, n]`, kernel G `[n, r]`, input B^T `[n, n]`."""

    output: Matrix
    kernel: Matrix
    input: Matrix


@cache
def _matrices(m: int, r: int) -> _Matrices:
    """Cook-Toom's construction for m outputs and r taps."""
    n = m + r - 1
    if n - 1 > len(_POINTS):
        raise ValueError(f"tile={m} with a kernel of {r} pixels; expected at most {len(_POINTS) + 2 - r} for tile")
    points = [Fraction(p) for p in _POINTS[: n - 1]]

    def polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
        coefficients = [Fraction(1)]
        for root in roots:
            shifted, scaled = [Fraction(0), *coefficients], [*coefficients, Fraction(0)]
            coefficients = [a - root * b for a, b in zip(shifted, scaled, strict=True)]
        return coefficients

    others = [[q for q in points if q != p] for p in points]
    slopes = [sum(c * p**i for i, c in enumerate(polynomial(rest))) for p, rest in zip(points, others, strict=True)]
    output = [[*(p**i for p in points), Fraction(i == m - 1)] for i in range(m)]
    kernel = [[p**i / slope for i in range(r)] for p, slope in zip(points, slopes, strict=True)]
    kernel.append([*[Fraction(0)] * (r - 1), Fraction(1)])
    input_ = [[*polynomial(rest), Fraction(0)] for rest in others] + [polynomial(points)]
    return _Matrices(*(tuple(tuple(float(v) for v in row) for row in matrix) for matrix in (output, kernel, input_)))


def conv(x: jax.Array, w: jax.Array, geometry: Geometry, *, tile: int) -> jax.Array:
    """Convolves `x` `[n, h, w, in]` with `w` `[r, r, in, out]` into `[n, oh, ow, out]`, in tiles of `tile` outputs."""
    return _conv(x, w, geometry, tile, "ptc,pck->ptk")


def conv_dx(dy: jax.Array, w: jax.Array, geometry: Geometry, *, tile: int) -> jax.Array:
    """Input gradient: the convolution of `dy` `[n, oh, ow, out]` with the kernel turned round."""
    return _conv(dy, w[::-1, ::-1], geometry.mirrored, tile, "ptk,pck->ptc")


def _conv(x: jax.Array, w: jax.Array, geometry: Geometry, tile: int, product: str) -> jax.Array:
    """Convolution whose channels meet the kernel's as `product` says, of `[points, tiles, _]` and `[points, _, _]`."""
    matrices = _matrices(tile, geometry.window[0])
    points, (height, width) = len(matrices.input), geometry.output
    kernel = _stack(_transform(matrices.kernel, w))

    def convolve(x: jax.Array) -> jax.Array:
        products = jnp.einsum(product, _input_tiles(x, geometry, tile), kernel)
        grid = _transform(matrices.output, products.reshape(points, points, len(x), *_tiles(geometry, tile), -1))
        y = jnp.stack([jnp.stack(row, axis=3) for row in grid], axis=2)  # [n, tiles, tile, tiles, tile, channels]
        return y.reshape(len(x), y.shape[1] * tile, y.shape[3] * tile, -1)[:, :height, :width]

    return map_chunks(convolve, x, size=_images_a_chunk(x, geometry, tile, max(w.shape[2:])))


def conv_dw(x: jax.Array, dy: jax.Array, geometry: Geometry, *, tile: int) -> jax.Array:
    """Weight gradient `[r, r, in, out]` from `x` `[n, h, w, in]` and `dy` `[n, oh, ow, out]`."""
    matrices = _matrices(tile, geometry.window[0])
    channels = max(x.shape[3], dy.shape[3])

    def products(x: jax.Array, dy: jax.Array) -> jax.Array:
        tiles = _input_tiles(x, geometry, tile), _output_tiles(dy, geometry, tile)
        return jnp.einsum("ptc,ptk->pck", *tiles)

    dw = sum_chunks(products, (x, dy), size=_images_a_chunk(x, geometry, tile, channels))
    points = len(matrices.input)
    grid = _transform(_transposed(matrices.kernel), dw.reshape(points, points, *dw.shape[1:]))
    return jnp.stack([jnp.stack(row) for row in grid])


def _input_tiles(x: jax.Array, geometry: Geometry, tile: int) -> jax.Array:
    """Overlapping tiles of the padded image, transformed: `[points, tiles, in]`."""
    matrix = _matrices(tile, geometry.window[0]).input
    tiles = _tiles(geometry, tile)
    reach = geometry.window[0] - 1
    sizes = zip(geometry.image, geometry.padding, tiles, strict=True)
    pads = [(low, count * tile + reach - size - low) for size, (low, _), count in sizes]
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))

    def every(x: jax.Array, axis: int) -> list[jax.Array]:
        last = (tiles[axis - 1] - 1) * tile + 1
        return [lax.slice_in_dim(x, i, i + last, tile, axis) for i in range(len(matrix))]

    rows = _combine(matrix, every(x, 1))
    return _stack([_combine(matrix, every(row, 2)) for row in rows])


def _output_tiles(dy: jax.Array, geometry: Geometry, tile: int) -> jax.Array:
    """Tiles of the output gradient, taken back through the output transform: `[points, tiles, out]`."""
    matrix = _transposed(_matrices(tile, geometry.window[0]).output)
    counts = _tiles(geometry, tile)
    pads = [(0, count * tile - size) for count, size in zip(counts, geometry.output, strict=True)]
    dy = jnp.pad(dy, ((0, 0), *pads, (0, 0)))
    dy = dy.reshape(len(dy), counts[0], tile, counts[1], tile, -1)
    rows = _combine(matrix, [dy[:, :, i] for i in range(tile)])
    return _stack([_combine(matrix, [row[:, :, :, j] for j in range(tile)]) for row in rows])


def _tiles(geometry: Geometry, tile: int) -> tuple[int, int]:
    """Number of tiles that cover the output, down and across."""
    height, width = geometry.output
    return -(-height // tile), -(-width // tile)


def _transform(matrix: Matrix, array: jax.Array) -> Grid:
    """`matrix @ array @ matrix.T` on the two leading axes."""
    return [_combine(matrix, list(row)) for row in _combine(matrix, list(array))]


def _combine(matrix: Matrix, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """`matrix @ arrays`, written out: most entries are 0 or 1, and XLA has no fast product this small."""

    def row_sum(row: tuple[float, ...]) -> jax.Array:
        terms = [a if factor == 1 else factor * a for factor, a in zip(row, arrays, strict=True) if factor]
        return sum(terms[1:], start=terms[0])

    return [row_sum(row) for row in matrix]


def _stack(grid: Grid) -> jax.Array:
    """Puts the arrays `[..., channels]` of a grid below one another: `[points, rows, channels]`."""
    return jnp.stack([a.reshape(-1, a.shape[-1]) if a.ndim > 2 else a for row in grid for a in row])


def _transposed(matrix: Matrix) -> Matrix:
    return tuple(zip(*matrix, strict=True))


def _images_a_chunk(x: jax.Array, geometry: Geometry, tile: int, channels: int) -> int:
    """Images whose transformed tiles fill a chunk."""
    height, width = _tiles(geometry, tile)
    points = (tile + geometry.window[0] - 1) ** 2
    return max(1, min(len(x), _CHUNK_BYTES // (points * height * width * channels * x.dtype.itemsize)))
