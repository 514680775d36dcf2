"""Products of constant matrices with grids of vectors, in few operations and few registers."""

from collections.abc import Sequence

from llvmlite import ir

from metamask_jax.kernels.native.emit import Emitter, Vectors
from metamask_jax.kernels.native.points import Matrix, transposed

# Address of the first vector of a grid, and the distances to the next one downwards and across.
Square = tuple[ir.Value, int, int]


def transform(emit: Emitter, matrix: Matrix, source: Square, target: Square) -> None:
    """Stores `matrix @ grid @ matrix.T`, in an order that keeps few vectors in registers at a time."""

    def write(emit: Emitter, pointers: Sequence[ir.Value]) -> None:
        here, there = (pointers[0], *source[1:]), (pointers[1], *target[1:])
        half = []
        for j in range(len(matrix[0])):
            column = [emit.load(_at(emit, here, i, j)) for i in range(len(matrix[0]))]
            half.append(_times(emit, matrix, column))
        for i, line in enumerate(zip(*half, strict=True)):
            for j, vector in enumerate(_times(emit, matrix, line)):
                emit.store(vector, _at(emit, there, i, j))

    emit.call(f"transform {matrix}, {source[1:]}, {target[1:]}", write, [source[0], target[0]])


def _at(emit: Emitter, square: Square, i: int, j: int) -> ir.Value:
    pointer, down, across = square
    return emit.at(pointer, i * down + j * across)


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
