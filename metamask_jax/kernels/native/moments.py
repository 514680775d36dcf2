"""Sums over the rows of matrices in one pass over memory."""

from collections.abc import Sequence
from math import gcd, prod

import jax
import jax.numpy as jnp
from llvmlite import ir

from metamask_jax.kernels.native.emit import VECTOR, Emitter, Index, Vectors
from metamask_jax.kernels.native.ffi import Body, call

_MOST_ROWS, _FEWEST_ROWS = 256, 16  # height of a block, which should stay in a core's own cache
_VECTORS = 4  # width of a pass over a block, in vectors


def suits(x: jax.Array) -> bool:
    """Whether the kernels work on arrays of this shape and type."""
    return x.dtype.name in ("float32", "float64") and x.shape[1] % _together(x) == 0 and _rows(_wide(x)) >= _FEWEST_ROWS


def moments(x: jax.Array, near: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and variance `[problems, channels]` of `x` `[problems, n, channels]`; it needs no number near the mean."""
    del near
    problems, n, channels = x.shape
    x = _wide(x)
    rows = _rows(x)
    blocks = problems, x.shape[1] // rows, x.shape[2]
    # Each block is centred on its own mean while it is in the cache.
    found = call(_moments, (rows, x.shape[2]), (x,), blocks, blocks, parts=prod(blocks[:2]))
    means, squares = (array.reshape(problems, -1, channels) for array in found)
    # The differences of the means are averaged: a sum of the means themselves would lose digits.
    mean = means[:, 0] + jnp.mean(means - means[:, :1], axis=1)
    return mean, (jnp.sum(squares, axis=1) + rows * jnp.sum((means - mean[:, None]) ** 2, axis=1)) / n


def sums(x: jax.Array, centre: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`sum_n y` and `sum_n (x - centre) y`, `[problems, channels]` each."""
    problems, _, channels = x.shape
    centre, x, y = jnp.tile(centre, (1, _together(x))), _wide(x), _wide(y)
    rows = _rows(x)
    blocks = problems, x.shape[1] // rows, x.shape[2]
    found = call(_sums, (rows, *blocks[1:]), (x, centre, y), blocks, blocks, parts=prod(blocks[:2]))
    total, product = (array.reshape(problems, -1, channels).sum(axis=1) for array in found)
    return total, product


def _together(x: jax.Array) -> int:
    """How many neighbouring rows fill whole vectors."""
    return VECTOR // gcd(x.shape[2], VECTOR)


def _wide(x: jax.Array) -> jax.Array:
    """The same numbers with `_together` rows taken for one."""
    return x.reshape(len(x), -1, _together(x) * x.shape[2])


def _rows(x: jax.Array) -> int:
    """Rows per block, which do not depend on the number of cores, so that results do not either."""
    return max(rows for rows in range(1, _MOST_ROWS + 1) if x.shape[1] % rows == 0)


def _moments(rows: int, channels: int) -> Body:
    def body(emit: Emitter, buffers: Sequence[ir.Value], part: ir.Value) -> None:
        x, means, squares = buffers
        x = emit.at(x, emit.scaled(part, rows * channels))
        means, squares = (emit.at(array, emit.scaled(part, channels)) for array in (means, squares))

        def piece(start: Index, vectors: int) -> None:
            columns = range(0, vectors * emit.lanes, emit.lanes)

            def line(i: ir.Value) -> Vectors:
                here = emit.at(x, emit.scaled(i, channels), start)
                return [emit.load(emit.at(here, column)) for column in columns]

            def total(i: ir.Value, sums: Vectors) -> Vectors:
                return [emit.builder.fadd(*pair) for pair in zip(sums, line(i), strict=True)]

            def centred(i: ir.Value, carry: Vectors) -> Vectors:
                differences = [emit.builder.fsub(*pair) for pair in zip(line(i), rough, strict=True)]
                first = [emit.builder.fadd(*pair) for pair in zip(carry[:vectors], differences, strict=True)]
                return [*first, *map(emit.fused, differences, differences, carry[vectors:])]

            share, zeros = emit.constant(1 / rows), [emit.constant(0.0)] * vectors
            rough = [emit.builder.fmul(s, share) for s in emit.fold(rows, zeros, total)]
            found = emit.fold(rows, zeros * 2, centred)
            for v, column in enumerate(columns):
                # What is left of the differences is the error of the mean.
                error = emit.builder.fmul(found[v], share)
                square = emit.fused(emit.builder.fneg(found[v]), error, found[vectors + v])
                emit.store(emit.builder.fadd(rough[v], error), emit.at(means, start, column))
                emit.store(square, emit.at(squares, start, column))

        emit.pieces(channels // emit.lanes, _VECTORS, lambda i, vectors: piece(emit.scaled(i, emit.lanes), vectors))

    return body


def _sums(rows: int, blocks: int, channels: int) -> Body:
    def body(emit: Emitter, buffers: Sequence[ir.Value], part: ir.Value) -> None:
        x, centre, y, totals, products = buffers
        problem, _ = emit.divided(part, blocks)
        x, y = (emit.at(array, emit.scaled(part, rows * channels)) for array in (x, y))
        centre = emit.at(centre, emit.scaled(problem, channels))
        totals, products = (emit.at(array, emit.scaled(part, channels)) for array in (totals, products))

        def piece(start: Index, vectors: int) -> None:
            columns = range(0, vectors * emit.lanes, emit.lanes)
            middle = [emit.load(emit.at(centre, start, column)) for column in columns]

            def line(i: ir.Value, carry: Vectors) -> Vectors:
                left, right = (
                    [emit.load(emit.at(array, emit.scaled(i, channels), start, column)) for column in columns]
                    for array in (x, y)
                )
                total = [emit.builder.fadd(*pair) for pair in zip(carry[:vectors], right, strict=True)]
                centred = [emit.builder.fsub(*pair) for pair in zip(left, middle, strict=True)]
                return [*total, *map(emit.fused, centred, right, carry[vectors:])]

            found = emit.fold(rows, [emit.constant(0.0)] * (2 * vectors), line)
            for i, column in enumerate(columns):
                emit.store(found[i], emit.at(totals, start, column))
                emit.store(found[vectors + i], emit.at(products, start, column))

        emit.pieces(channels // emit.lanes, _VECTORS, lambda i, vectors: piece(emit.scaled(i, emit.lanes), vectors))

    return body
