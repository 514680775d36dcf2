"""The matrices of Winograd's convolutions."""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import NamedTuple

Matrix = tuple[tuple[float, ...], ...]

# Points by the number of taps, to which infinity is added; chosen for the smallest rounding errors.
POINTS = {
    3: tuple(Fraction(p, 4) for p in (0, 3, -3, 6, -6)),
    5: tuple(Fraction(p, 4) for p in (0, 2, -2, 4, -4, 8, -8)),
}


class Matrices(NamedTuple):
    """Transforms of the output: A^T `[tile, points]`, kernel: G `[points, taps]`, and input: B^T `[points, points]`."""

    output: Matrix
    kernel: Matrix
    input: Matrix

    @property
    def side(self) -> int:
        """Square root of the number of points."""
        return len(self.input)


@cache
def matrices_of(taps: int) -> Matrices:
    """The matrices of kernels with so many taps, by the construction of Cook and Toom."""
    points = POINTS[taps]
    tile = len(points) + 2 - taps

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
    kernel.append([*[Fraction(0)] * (taps - 1), Fraction(1)])
    input_ = [[*polynomial(rest), Fraction(0)] for rest in others] + [polynomial(points)]
    return Matrices(*(tuple(tuple(float(v) for v in row) for row in matrix) for matrix in (output, kernel, input_)))


def transposed(matrix: Matrix) -> Matrix:
    """Rows as columns."""
    return tuple(zip(*matrix, strict=True))
