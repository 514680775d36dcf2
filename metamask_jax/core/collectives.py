"""Sums and the like over all devices that share a batch; with `axis_name=None` one device has it all.

The only file that asks whether there is a mapped axis.
"""

from typing import TypeVar

import jax
from jax import lax

T = TypeVar("T")


def mean(tree: T, axis_name: str | None) -> T:
    """The mean of a pytree over devices.

    Example:
      >>> mean(1.5, None)
      1.5
    """
    return tree if axis_name is None else lax.pmean(tree, axis_name)


def total(tree: T, axis_name: str | None) -> T:
    """The sum of a pytree over devices."""
    return tree if axis_name is None else lax.psum(tree, axis_name)


def maximum(tree: T, axis_name: str | None) -> T:
    """The element-wise maximum of a pytree over devices."""
    return tree if axis_name is None else lax.pmax(tree, axis_name)


def gather(x: jax.Array, axis_name: str | None, *, axis: int) -> jax.Array:
    """What all devices have, one after another along an axis."""
    return x if axis_name is None else lax.all_gather(x, axis_name, axis=axis, tiled=True)


def device_count(axis_name: str | None) -> int:
    """How many devices share the batch."""
    return 1 if axis_name is None else lax.axis_size(axis_name)


def device_index(axis_name: str | None) -> jax.Array | int:
    """Which of them this one is."""
    return 0 if axis_name is None else lax.axis_index(axis_name)
