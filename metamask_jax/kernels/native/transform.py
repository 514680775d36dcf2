"""Products of constant matrices with grids of vectors, in few operations and few registers; transposed squares."""

from collections.abc import Sequence
from typing import NamedTuple

from llvmlite import ir

from metamask_jax.kernels.native.emit import Emitter, Vectors
from metamask_jax.kernels.native.points import Matrix, transposed


class Square(NamedTuple):
    """A grid of vectors at equal distances.

    Attributes:
      pointer: address of the first one.
      down: distance to the next one downwards, in numbers.
      across: distance to the next one across.
    """

    pointer: ir.Value
    down: int
    across: int


class Scattered(NamedTuple):
    """A grid of vectors that lie anywhere, such as the pixels of a tile that reaches beyond an image.

    Attributes:
      pointer: address that places are counted from.
      table: address of the places, in bytes, row by row (`tiles`).
    """

    pointer: ir.Value
    table: ir.Value


Grid = Square | Scattered
Pair = tuple[Matrix, Matrix]  # of a transform: downwards and across


def transform(emit: Emitter, matrices: Pair, source: Grid, target: Grid, *, streamed: bool = False) -> None:
    """Stores `down @ grid @ across.T`, in an order that keeps few vectors in registers at a time.

    Args:
      emit: where to write the code.
      matrices: down and across.
      source: the grid.
      target: where the result goes.
      streamed: whether it goes there past the caches.
    """
    down, across = matrices

    def write(emit: Emitter, arguments: Sequence[ir.Value]) -> None:
        here, there = _moved(source, arguments), _moved(target, arguments[_count(source) :])
        rows, columns = len(down[0]), len(across[0])
        half = []
        for j in range(columns):
            column = [emit.load(_at(emit, here, i, j, columns)) for i in range(rows)]
            half.append(_times(emit, down, column))
        for i, line in enumerate(zip(*half, strict=True)):
            for j, vector in enumerate(_times(emit, across, line)):
                (emit.stream if streamed else emit.store)(vector, _at(emit, there, i, j, len(across)))

    pointers = [*source[: _count(source)], *target[: _count(target)]]
    emit.call(f"transform {matrices}, {_kind(source)}, {_kind(target)}, {streamed}", write, pointers)


def transpose(emit: Emitter, source: ir.Value, row: int, target: ir.Value) -> None:
    """Stores a square of as many rows, `row` numbers apart, as there are numbers in a vector, with rows as columns."""
    lanes = emit.lanes

    def write(emit: Emitter, arguments: Sequence[ir.Value]) -> None:
        here, there = arguments
        lines = [emit.load(emit.at(here, i * row)) for i in range(lanes)]
        step = 1
        while step < lanes:  # of every square of 2x2 blocks, two change places
            for i in (i for i in range(lanes) if not i & step):
                upper, lower = lines[i], lines[i + step]
                lines[i] = emit.shuffled(upper, lower, [j + (lanes - step if j & step else 0) for j in range(lanes)])
                lines[i + step] = emit.shuffled(upper, lower, [j + (lanes if j & step else step) for j in range(lanes)])
            step *= 2
        for i, line in enumerate(lines):
            emit.store(line, emit.at(there, i * lanes))

    emit.call(f"transpose {row}", write, [source, target])


def _count(grid: Grid) -> int:
    """How many addresses describe a grid; all else is constant."""
    return 2 if isinstance(grid, Scattered) else 1


def _moved(grid: Grid, arguments: Sequence[ir.Value]) -> Grid:
    """The same grid by the addresses that a function is given."""
    return Scattered(*arguments[:2]) if isinstance(grid, Scattered) else grid._replace(pointer=arguments[0])


def _kind(grid: Grid) -> str:
    return "scattered" if isinstance(grid, Scattered) else str(grid[1:])


def _at(emit: Emitter, grid: Grid, i: int, j: int, columns: int) -> ir.Value:
    if isinstance(grid, Square):
        return emit.at(grid.pointer, i * grid.down + j * grid.across)
    return emit.offset(grid.pointer, emit.entry(grid.table, i * columns + j))


def _times(emit: Emitter, matrix: Matrix, vectors: Vectors) -> Vectors:
    """`matrix @ vectors`. Neighbouring rows or columns that are mirror images of each other share their work."""
    for j in range(len(vectors) - 1):
        first, second = transposed(matrix)[j : j + 2]
        if _is_mirror(first, second):
            columns = *transposed(matrix)[:j], *_halves(first, second), *transposed(matrix)[j + 2 :]
            matrix, vectors = transposed(columns), [*vectors[:j], *_both(emit, *vectors[j : j + 2]), *vectors[j + 2 :]]
    results: list[ir.Value] = []
    while len(results) < len(matrix):
        row, *rest = matrix[len(results) :]
        if rest and _is_mirror(row, rest[0]):
            results += _both(emit, *(emit.combine(half, vectors) for half in _halves(row, rest[0])))
        else:
            results.append(emit.combine(row, vectors))
    return results


def _is_mirror(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether they are equal in some places and opposite in all others, as powers of p and -p are."""
    signs = {(p == q, p == -q) for p, q in zip(a, b, strict=True) if p or q}
    return signs == {(True, False), (False, True)}


def _halves(a: Sequence[float], b: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The equal and the opposite entries of mirror images: their sum is `a`, their difference `b`."""
    equal = tuple(p if p == q else 0.0 for p, q in zip(a, b, strict=True))
    return equal, tuple(p - q for p, q in zip(a, equal, strict=True))


def _both(emit: Emitter, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Sum and difference."""
    return emit.builder.fadd(a, b), emit.builder.fsub(a, b)
