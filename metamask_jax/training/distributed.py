"""Devices: how a step and its batches are spread over all there are."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from metamask_jax.errors import ConfigError

AXIS = "batch"


def is_main() -> bool:
    """Whether this process writes logs, checkpoints and reports."""
    return jax.process_index() == 0


def check_batch_size(batch_size: int, accumulate: int, *, devices: int | None = None) -> None:
    """Refuses a global batch that the devices (None: all there are) and micro-batches cannot share equally."""
    parts = (devices or jax.device_count()) * accumulate
    if batch_size % parts:
        raise ConfigError(
            f"config.train.batch_size={batch_size}; expected a multiple of {parts}, the number of devices"
            + (f" times config.train.accumulate={accumulate}" if accumulate > 1 else "")
        )


def parallelize(step: Callable[..., Any], devices: Sequence[jax.Device] | None = None) -> Any:
    """Runs a step, built by `make_program` with `axis_name=AXIS`, on the given devices, or on all of all processes.

    State, settings and metrics are equal everywhere and stay unreplicated: one copy goes in, one comes out. The state's
    buffers are reused for the new state.
    """
    return jax.pmap(step, axis_name=AXIS, in_axes=(None, 0, None), out_axes=None, donate_argnums=0, devices=devices)


def replicate(state: Any) -> Any:
    """A copy of a pytree on every device of this process, as `parallelize` gives it back.

    A step that began with arrays of the host would be traced and compiled once more for those of its second call.
    """
    mesh = Mesh(np.array(jax.local_devices()), (AXIS,))
    return jax.device_put(state, NamedSharding(mesh, PartitionSpec()), may_alias=False)


def to_devices(array: np.ndarray) -> jax.Array:
    """Starts the copy of this process's slice of a batch to its devices: [batch, ...] -> [devices, share, ...]."""
    devices = np.array(jax.local_devices())
    shards = array.reshape(len(devices), -1, *array.shape[1:])
    return jax.device_put(shards, NamedSharding(Mesh(devices, (AXIS,)), PartitionSpec(AXIS)))


def own_rows(count: int) -> slice:
    """This process's part of `count` rows; parts follow each other, and differ by one row at most."""
    processes, index = jax.process_count(), jax.process_index()
    return slice(count * index // processes, count * (index + 1) // processes)
