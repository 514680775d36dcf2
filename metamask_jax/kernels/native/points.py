"""The matrices of Winograd's convolutions."""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from math import prod
from typing import NamedTuple

Matrix = tuple[tuple[float, ...], ...]
_Rows = list[list[Fraction]]

# Points by the numbers of taps and of outputs of a tile; infinity is added. Chosen for small rounding errors. A shorter
# tile at the end of a line has the first of them, so that it shares the kernels at these points.
_POINTS = {
    (2, 2): (0, 1),
    (2, 3): (0, 1, -1),
    (2, 4): (0, 0.75, -0.75, 1.5),
    (3, 2): (0, 1, -1),
    (3, 3): (0, 0.75, -0.75, -1.5),
    (3, 4): (0, 0.75, -0.75, 1.5, -1.5),
    (3, 5): (0, 1, -1, 1.5, -1.5, 0.375),
    (5, 4): (0, 0.5, -0.5, 1, -1, 2, -2),
}
STRIDED_TAPS = 3  # of the kernels that may move by two pixels


def tiles_of(taps: int, stride: int) -> list[int]:
    """The numbers of outputs of a tile that there are points for."""
    if stride > 1:
        return tiles_of(2, 1) if (taps, stride) == (STRIDED_TAPS, 2) else []
    return [tile for known, tile in _POINTS if known == taps]


class Matrices(NamedTuple):
    """A tile of a one-dimensional convolution: `output @ ((kernel @ w)[rows] * (input @ x))`.

    Attributes:
      output: A^T `[tile, points]`.
      kernel: G `[kernels, taps]`.
      input: B^T `[points, pixels]`.
      rows: the row of `kernel` that belongs to each point.
      step: pixels from the beginning of one tile to that of the next.
    """

    output: Matrix
    kernel: Matrix
    input: Matrix
    rows: tuple[int, ...]
    step: int


@cache
def matrices_of(taps: int, tile: int, usual: int) -> Matrices:
    """The matrices of kernels that move by single pixels.

    Args:
      taps: of the kernel.
      tile: outputs of a tile, at most `usual`.
      usual: outputs of the tiles whose kernels it shares.
    """
    output, kernel, input_, rows = _cook_toom(taps, tile, usual)
    return Matrices(_floats(output), _floats(kernel), _floats(input_), tuple(rows), tile)


@cache
def strided_matrices(tile: int, usual: int) -> Matrices:
    """Those of kernels of three taps that move by two pixels: the sum of two convolutions that move by one.

    Pixels at even places meet the outer taps, those at odd places the middle one, which needs no transform.
    """
    output, kernel, even, rows = _two_phases(tile, usual)
    input_ = [_spread(row, range(0, 2 * tile + 1, 2), 2 * tile + 1) for row in even]
    input_ += [_unit(2 * v + 1, 2 * tile + 1) for v in range(tile)]
    both = [[*row, *_unit(v, tile)] for v, row in enumerate(output)]
    return Matrices(_floats(both), _floats(kernel), _floats(input_), rows, 2 * tile)


@cache
def transposed_strided_matrices(tile: int, usual: int, *, low: int) -> Matrices:
    """Those of their input gradients, with kernels turned round; `low` is the padding before the first pixel, 0 or 1.

    Pixels that have met the outer taps and pixels that have met the middle one alternate; `low` says which come first.
    """
    output, kernel, even, rows = _two_phases(tile, usual)
    input_ = even + [_unit(v + 1 - low, tile + 1) for v in range(tile)]
    phases = (
        [[*row, *[Fraction(0)] * tile] for row in output],
        [_unit(len(even) + v, len(even) + tile) for v in range(tile)],
    )
    first, second = reversed(phases) if low else phases
    both = [row for pair in zip(first, second, strict=True) for row in pair]
    return Matrices(_floats(both), _floats(kernel), _floats(input_), rows, tile)


def transposed(matrix: Matrix) -> Matrix:
    """Rows as columns."""
    return tuple(zip(*matrix, strict=True))


def _two_phases(tile: int, usual: int) -> tuple[_Rows, _Rows, _Rows, tuple[int, ...]]:
    """The matrices of a kernel with the outer ones of three taps; the middle one is the kernel of further points."""
    output, kernel, input_, rows = _cook_toom(2, tile, usual)
    outer = [_spread(row, (0, 2), STRIDED_TAPS) for row in kernel]
    return output, [*outer, _unit(1, STRIDED_TAPS)], input_, (*rows, *[len(outer)] * tile)


def _cook_toom(taps: int, tile: int, usual: int) -> tuple[_Rows, _Rows, _Rows, list[int]]:
    """Output, kernel and input matrix by the construction of Cook and Toom, and the row of the kernel of each point.

    The kernel is that of the usual tile. A shorter one has the first of its points, and infinity.
    """
    every = [Fraction(p) for p in _POINTS[taps, usual]]
    points, left_out = every[: tile + taps - 2], every[tile + taps - 2 :]

    def polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
        coefficients = [Fraction(1)]
        for root in roots:
            shifted, scaled = [Fraction(0), *coefficients], [*coefficients, Fraction(0)]
            coefficients = [a - root * b for a, b in zip(shifted, scaled, strict=True)]
        return coefficients

    output = [[*(p**i for p in points), Fraction(i == tile - 1)] for i in range(tile)]
    kernel = [[p**i / prod(p - q for q in every if q != p) for i in range(taps)] for p in every]
    kernel.append(_unit(taps - 1, taps))
    input_ = [
        # Kernels are divided by the distances to all points, so those left out are factors here.
        [*(prod(p - q for q in left_out) * c for c in polynomial([q for q in points if q != p])), Fraction(0)]
        for p in points
    ]
    return output, kernel, [*input_, polynomial(points)], [*range(len(points)), len(every)]


def _spread(row: Sequence[Fraction], places: Sequence[int], length: int) -> list[Fraction]:
    """A row whose numbers stand at some places, between zeros."""
    found = dict(zip(places, row, strict=True))
    return [found.get(i, Fraction(0)) for i in range(length)]


def _unit(place: int, length: int) -> list[Fraction]:
    return _spread([Fraction(1)], [place], length)


def _floats(rows: _Rows) -> Matrix:
    return tuple(tuple(float(value) for value in row) for row in rows)
