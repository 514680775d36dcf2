"""Work on a batch in chunks that fit into the cache."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax


def map_chunks(function: Callable[[jax.Array], jax.Array], x: jax.Array, *, size: int) -> jax.Array:
    """`function(x)` for a function that treats each entry of the leading axis alone, at most `size` at a time."""
    if len(x) <= size:
        return function(x)
    y = lax.map(function, _split(x, size))
    return y.reshape(-1, *y.shape[2:])[: len(x)]


def sum_chunks(function: Callable[..., jax.Array], arrays: Sequence[jax.Array], *, size: int) -> jax.Array:
    """`function(*arrays)` for a function that sums over the leading axis, at most `size` entries at a time."""
    if len(arrays[0]) <= size:
        return function(*arrays)
    chunks = [_split(a, size) for a in arrays]
    first = jax.eval_shape(function, *(c[0] for c in chunks))
    total, _ = lax.scan(lambda total, chunk: (total + function(*chunk), None), jnp.zeros_like(first), chunks)
    return total


def _split(array: jax.Array, size: int) -> jax.Array:
    """Chunks `[chunks, entries, ...]` of equal size; zeros, which add nothing, fill up the last one."""
    chunks = -(-len(array) // size)
    entries = -(-len(array) // chunks)
    array = jnp.pad(array, [(0, chunks * entries - len(array))] + [(0, 0)] * (array.ndim - 1))
    return array.reshape(chunks, entries, *array.shape[1:])
