"""The matrices of Winograd's convolutions."""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import NamedTuple

Matrix = tuple[tuple[float, ...], ...]
_Rows = list[list[Fraction]]

# Points by the numbers of taps and of outputs of a tile; infinity is added. Chosen for small rounding errors.
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
    """The numbers of outputs of a tile that there are matrices for."""
    if stride > 1:
        return tiles_of(2, 1) if (taps, stride) == (STRIDED_TAPS, 2) else []
    return [tile for known, tile in _POINTS if known == taps]


class Matrices(NamedTuple):
    """A tile of a one-dimensional convolution: `output @ ((kernel @ w)[of each point] * (input @ x))`.

    Attributes:
      output: A^T `[tile, points]`.
      kernel: G `[rows, taps]`. The first points have a row each, all others share the last one.
      input: B^T `[points, pixels]`.
      step: pixels from the beginning of one tile to that of the next.
    """

    output: Matrix
    kernel: Matrix
    input: Matrix
    step: int

    @property
    def side(self) -> int:
        """Square root of the number of points."""
        return len(self.input)


@cache
def matrices_of(taps: int, tile: int) -> Matrices:
    """The matrices of kernels that move by single pixels."""
    output, kernel, input_ = _cook_toom(taps, tile)
    return Matrices(_floats(output), _floats(kernel), _floats(input_), len(output))


@cache
def strided_matrices(tile: int) -> Matrices:
    """Those of kernels of three taps that move by two pixels: the sum of two convolutions that move by one.

    Pixels at even places meet the outer taps, those at odd places the middle one, which needs no transform.
    """
    output, (outer, middle), even = _two_phases(tile)
    input_ = [_spread(row, range(0, 2 * tile + 1, 2), 2 * tile + 1) for row in even]
    input_ += [_unit(2 * v + 1, 2 * tile + 1) for v in range(tile)]
    both = [[*row, *_unit(v, tile)] for v, row in enumerate(output)]
    return Matrices(_floats(both), _floats([*outer, middle]), _floats(input_), 2 * tile)


@cache
def transposed_strided_matrices(tile: int, low: int) -> Matrices:
    """Those of their input gradients, with kernels turned round; `low` is the padding before the first pixel, 0 or 1.

    Pixels that have met the outer taps and pixels that have met the middle one alternate; `low` says which come first.
    """
    output, (outer, middle), even = _two_phases(tile)
    input_ = even + [_unit(v + 1 - low, tile + 1) for v in range(tile)]
    phases = (
        [[*row, *[Fraction(0)] * tile] for row in output],
        [_unit(len(even) + v, 2 * tile + 1) for v in range(tile)],
    )
    first, second = reversed(phases) if low else phases
    both = [row for pair in zip(first, second, strict=True) for row in pair]
    return Matrices(_floats(both), _floats([*outer, middle]), _floats(input_), tile)


def transposed(matrix: Matrix) -> Matrix:
    """Rows as columns."""
    return tuple(zip(*matrix, strict=True))


def _two_phases(tile: int) -> tuple[_Rows, tuple[_Rows, list[Fraction]], _Rows]:
    """The matrices of a kernel with the outer ones of three taps, and the row that picks the middle one."""
    output, kernel, input_ = _cook_toom(2, tile)
    return output, ([_spread(row, (0, 2), STRIDED_TAPS) for row in kernel], _unit(1, STRIDED_TAPS)), input_


def _cook_toom(taps: int, tile: int) -> tuple[_Rows, _Rows, _Rows]:
    """Output, kernel and input matrix by the construction of Cook and Toom."""
    points = [Fraction(p) for p in _POINTS[taps, tile]]

    def polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
        coefficients = [Fraction(1)]
        for root in roots:
            shifted, scaled = [Fraction(0), *coefficients], [*coefficients, Fraction(0)]
            coefficients = [a - root * b for a, b in zip(shifted, scaled, strict=True)]
        return coefficients

    others = [[q for q in points if q != p] for p in points]
    slopes = [sum(c * p**i for i, c in enumerate(polynomial(rest))) for p, rest in zip(points, others, strict=True)]
    output = [[*(p**i for p in points), Fraction(i == tile - 1)] for i in range(tile)]
    kernel = [[p**i / slope for i in range(taps)] for p, slope in zip(points, slopes, strict=True)]
    kernel.append(_unit(taps - 1, taps))
    input_ = [[*polynomial(rest), Fraction(0)] for rest in others] + [polynomial(points)]
    return output, kernel, input_


def _spread(row: Sequence[Fraction], places: Sequence[int], length: int) -> list[Fraction]:
    """A row whose numbers stand at some places, between zeros."""
    found = dict(zip(places, row, strict=True))
    return [found.get(i, Fraction(0)) for i in range(length)]


def _unit(place: int, length: int) -> list[Fraction]:
    return _spread([Fraction(1)], [place], length)


def _floats(rows: _Rows) -> Matrix:
    return tuple(tuple(float(value) for value in row) for row in rows)
