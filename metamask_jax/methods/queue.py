"""A queue of past projections of fixed length: the newest overwrite the oldest."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from metamask_jax.core.arrays import unit_norm


class Queue(NamedTuple):
    """Unit vectors, in a ring.

    Attributes:
      rows: [size, dim].
      next: where the next row goes, int32; from there on are the oldest ones.
    """

    rows: jax.Array
    next: jax.Array


def init(key: jax.Array, size: int, dim: int) -> Queue:
    """A queue full of random directions, as MoCo's and NNCLR's are at the start."""
    return Queue(unit_norm(jax.random.normal(key, (size, dim))), jnp.zeros((), jnp.int32))


def push(queue: Queue, rows: jax.Array) -> Queue:
    """Enters rows [n, dim], the last one last; of more rows than there is room for, only the last stay.

    Example:
      >>> queue = Queue(jnp.zeros((3, 1)), jnp.array(2))
      >>> rows, place = push(queue, jnp.array([[1.0], [-1.0]]))
      >>> rows[:, 0], int(place)
      (Array([-1.,  0.,  1.], dtype=float32), 1)
    """
    size, count = len(queue.rows), len(rows)
    rows = rows[-size:]
    first = queue.next + (count - len(rows))
    places = (first + jnp.arange(len(rows))) % size
    return Queue(
        queue.rows.at[places].set(unit_norm(rows).astype(queue.rows.dtype)),
        ((queue.next + count) % size).astype(jnp.int32),
    )
