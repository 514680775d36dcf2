"""Sums and the like over all devices that share a batch; with `axis_name=None` one device has it all.

The only file that asks whether there is a mapped axis. One device alone exchanges nothing, mapped axis or not: its
program is smaller by all collectives, and compiled sooner.
"""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from metamask_jax.errors import shown

T = TypeVar("T")


def mean(tree: T, axis_name: str | None) -> T:
    """The mean of a pytree over devices.

    Example:
      >>> mean(1.5, None)
      1.5
    """
    return tree if device_count(axis_name) == 1 else lax.pmean(tree, axis_name)


def moments(
    mean: jax.Array, variance: jax.Array, near: jax.Array, axis_name: str | None
) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of what all devices have, in one exchange and one more for each derivative.

    Args:
      mean: of what this device has; all have as much.
      variance: of the same, divided by n.
      near: where the mean is expected, equal on all devices. The variance loses as many digits as the square of the
        mean's distance from it is larger.
      axis_name: the mapped axis, or None for one device.
    """
    if device_count(axis_name) == 1:
        return mean, variance
    offset = mean - near
    first, second = lax.pmean(jnp.stack([offset, variance + offset**2]), axis_name)
    found = second - first**2
    # Rounding must not make it negative; its derivatives are not concerned.
    return near + first, found + lax.stop_gradient(jnp.maximum(found, 0.0) - found)


def maximum(tree: T, axis_name: str | None) -> T:
    """The element-wise maximum of a pytree over devices."""
    return tree if device_count(axis_name) == 1 else lax.pmax(tree, axis_name)


def gather(x: jax.Array, axis_name: str | None, *, axis: int) -> jax.Array:
    """What all devices have, one after another along an axis."""
    return x if device_count(axis_name) == 1 else lax.all_gather(x, axis_name, axis=axis, tiled=True)


def device_count(axis_name: str | None) -> int:
    """How many devices share the batch.

    Raises:
      TypeError, ValueError: `axis_name` is no name, or not that of an axis that is mapped here.
    """
    if axis_name is None:
        return 1
    require_axis(axis_name)
    try:
        size: int = lax.axis_size(axis_name)
    except NameError as error:  # JAX's word for it
        raise ValueError(f"axis_name={shown(axis_name)}; expected an axis that is mapped here, or None") from error
    return size


def device_index(axis_name: str | None) -> jax.Array | int:
    """Which of them this one is."""
    return 0 if device_count(axis_name) == 1 else lax.axis_index(axis_name)


def require_axis(axis_name: Any) -> None:
    """Refuses what cannot be the name of a mapped axis, or of several.

    Example:
      >>> require_axis(0)
      Traceback (most recent call last):
      TypeError: axis_name=0; expected the name of a mapped axis, or None
    """
    names = axis_name if isinstance(axis_name, tuple) and axis_name else (axis_name,)
    if axis_name is not None and not all(isinstance(name, str) for name in names):
        raise TypeError(f"axis_name={shown(axis_name)}; expected the name of a mapped axis, or None")


def sums_gradients(batch: Any, axis_name: str | None) -> bool:
    """Whether `jax.shard_map` checks what varies over devices (`check_vma=True`).

    Gradients of replicated weights then arrive summed over devices, and averaging them would count every device again.
    """
    kinds = map(jax.typeof, jax.tree.leaves(batch))
    # The attribute's name has changed in JAX 0.10.
    varying = (kind.manual_axis_type.varying if hasattr(kind, "manual_axis_type") else kind.vma for kind in kinds)
    return any(axis_name in axes for axes in varying)
