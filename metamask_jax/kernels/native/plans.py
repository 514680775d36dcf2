"""How a convolution is cut into tiles: equal ones, or shorter ones where a line ends."""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import NamedTuple

from metamask_jax.kernels.geometry import Geometry
from metamask_jax.kernels.native.points import (
    Matrices,
    Matrix,
    matrices_of,
    strided_matrices,
    tiles_of,
    transposed_strided_matrices,
)
from metamask_jax.kernels.native.transform import Pair

_TILE, _FAR_LESS = 4, 0.7  # the usual tile; another one must multiply so much less
_LESS = 0.95  # and so must shorter tiles at the ends of lines, which take code of their own


class Stretch(NamedTuple):
    """Equal tiles along one axis.

    Attributes:
      matrices: of a tile.
      number: how many tiles there are.
      first: the pixel at which the first one begins; in the padding if negative.
      target: the output at which the first one begins.
    """

    matrices: Matrices
    number: int
    first: int
    target: int


class Region(NamedTuple):
    """Equal tiles of an image.

    Attributes:
      rows: its tiles from top to bottom.
      columns: its tiles from left to right.
    """

    rows: Stretch
    columns: Stretch

    @property
    def tiles(self) -> tuple[int, int]:
        """How many there are downwards and across."""
        return self.rows.number, self.columns.number

    @property
    def first(self) -> tuple[int, int]:
        """Row and column of the pixel at which the first tile begins."""
        return self.rows.first, self.columns.first

    @property
    def step(self) -> tuple[int, int]:
        """Pixels from one tile to the next."""
        return self.rows.matrices.step, self.columns.matrices.step

    @property
    def target(self) -> tuple[int, int]:
        """Row and column of the first output."""
        return self.rows.target, self.columns.target

    @property
    def size(self) -> tuple[int, int]:
        """Outputs of a tile."""
        return len(self.output[0]), len(self.output[1])

    @property
    def input(self) -> Pair:
        """The transform of pixels."""
        return self.rows.matrices.input, self.columns.matrices.input

    @property
    def output(self) -> Pair:
        """The transform to outputs."""
        return self.rows.matrices.output, self.columns.matrices.output

    @property
    def kernels(self) -> tuple[int, ...]:
        """For each of its points, row by row, the place of the kernel among the kernels at all points."""
        side = len(self.columns.matrices.kernel)
        return tuple(side * i + j for i in self.rows.matrices.rows for j in self.columns.matrices.rows)

    @property
    def largest(self) -> int:
        """Pixels or outputs of a tile, whichever are more."""
        return max(prod(self.size), prod(len(matrix[0]) for matrix in self.input))


class Plan(NamedTuple):
    """How a convolution is cut into tiles.

    Attributes:
      regions: of equal tiles.
      image: height and width of the input.
      output: height and width of the output.
    """

    regions: tuple[Region, ...]
    image: tuple[int, int]
    output: tuple[int, int]

    @property
    def kernel(self) -> Matrix:
        """The transform of kernels, which all regions share."""
        return self.regions[0].rows.matrices.kernel

    @property
    def points(self) -> int:
        """Of the tiles that have most."""
        return max(len(region.kernels) for region in self.regions)

    @property
    def products(self) -> int:
        """Of an image and each pair of channels."""
        return sum(prod(region.tiles) * len(region.kernels) for region in self.regions)


def suits(geometry: Geometry) -> bool:
    """Whether there are matrices for the window and its stride, and it never lies in the padding alone."""
    (taps, columns), (stride, across) = geometry.window, geometry.strides
    if taps != columns or stride != across or taps < 3 or max(map(max, geometry.padding)) >= taps:
        return False
    lows = [low for low, _ in geometry.padding]
    return bool(tiles_of(taps, stride)) and (stride == 1 or lows[0] == lows[1] < 2)


def forward(geometry: Geometry) -> Plan:
    """The plan of a convolution, and of its weight gradient."""
    (taps, _), (stride, _) = geometry.window, geometry.strides
    make = strided_matrices if stride == 2 else partial(matrices_of, taps)
    first = -geometry.padding[0][0], -geometry.padding[1][0]
    return _least(make, tiles_of(taps, stride), first, geometry.image, geometry.output)


def backward(geometry: Geometry) -> Plan:
    """The plan of its input gradient."""
    if geometry.strides == (1, 1):
        return forward(geometry.mirrored)
    low = geometry.padding[0][0]
    make = partial(transposed_strided_matrices, low=low)
    tiles = tiles_of(geometry.window[0], 2)
    return _least(make, tiles, (low - 1, low - 1), geometry.output, geometry.image)


def _least(
    make: Callable[[int, int], Matrices],
    tiles: list[int],
    first: tuple[int, int],
    image: tuple[int, int],
    output: tuple[int, int],
) -> Plan:
    """Tiles of the usual size, or others that multiply far less; on a tie equal tiles, which take less code.

    Args:
      make: matrices of a tile, by its size and by the usual one.
      tiles: sizes that there are.
      first: pixel at which the first tile begins.
      image: height and width of the input.
      output: height and width of the output.
    """

    def plan(tile: int, *, shorter: bool) -> Plan:
        rows, columns = (_stretches(make, tile, *axis, shorter=shorter) for axis in zip(first, output, strict=True))
        return Plan(tuple(Region(row, column) for row in rows for column in columns), image, output)

    usual, mixed = (plan(_TILE, shorter=shorter) for shorter in (False, True))
    others = [plan(tile, shorter=False) for tile in tiles]
    allowed = [usual, *(p for p in others if p.products <= _FAR_LESS * usual.products)]
    allowed += [mixed] if mixed.products <= _LESS * usual.products else []
    return min(allowed, key=lambda plan: plan.products)


def _stretches(
    make: Callable[[int, int], Matrices], tile: int, first: int, length: int, *, shorter: bool
) -> list[Stretch]:
    """Tiles that cover a line of outputs, the last of which may be shorter or reach beyond its end."""
    matrices = make(tile, tile)
    size = len(matrices.output)
    if not shorter:
        return [Stretch(matrices, -(-length // size), first, 0)]
    count, rest = divmod(length, size)
    found = [Stretch(matrices, count, first, 0)] if count else []
    if rest:  # a tile's outputs may be pairs of pixels, of which the last may be beyond the end
        last = make(-(-rest * tile // size), tile)
        found.append(Stretch(last, 1, first + count * matrices.step, count * size))
    return found
