"""Devices and processes: the only file that knows how many there are."""

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from metamask_jax.errors import ConfigError
from metamask_jax.training.step import Step

T = TypeVar("T")
AXIS = "batch"
_CLUSTERS = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")  # launchers whose environment jax.distributed reads by itself


def join_processes(*, coordinator: str | None, process_count: int | None, process_index: int | None) -> None:
    """Connects the processes of a run, before anything else touches JAX.

    Args:
      coordinator: `host:port` of process 0, together with the next two; None asks the launcher's environment (SLURM,
        Open MPI, TPU pods), and is a run of one process if there is none.
      process_count: how many processes take part.
      process_index: which of them this is.
    """
    given = [value is not None for value in (coordinator, process_count, process_index)]
    if any(given) and not all(given):
        raise ConfigError("--coordinator, --processes and --process belong together; expected all three or none")
    several_tasks = any(int(os.environ.get(name, "1")) > 1 for name in _CLUSTERS)
    tpu_pod = len(os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")) > 1
    if all(given) or several_tasks or tpu_pod:
        # A peer that died is noticed within half a minute; the default would hang for longer.
        jax.distributed.initialize(coordinator, process_count, process_index, heartbeat_timeout_seconds=30)


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


def parallelize(step: Step, devices: Sequence[jax.Device] | None = None) -> Any:
    """Runs a step, built with `axis_name=AXIS`, on the given devices, or on all of all processes.

    State and metrics are equal everywhere and stay unreplicated: one copy goes in, one comes out. The state's buffers
    are reused for the new state.
    """
    return jax.pmap(step, axis_name=AXIS, in_axes=(None, 0), out_axes=None, donate_argnums=0, devices=devices)


def to_devices(array: np.ndarray) -> jax.Array:
    """Starts the copy of this process's slice of a batch to its devices: [batch, ...] -> [devices, share, ...]."""
    devices = np.array(jax.local_devices())
    shards = array.reshape(len(devices), -1, *array.shape[1:])
    return jax.device_put(shards, NamedSharding(Mesh(devices, (AXIS,)), PartitionSpec(AXIS)))


def any_process(flag: bool) -> bool:
    """Whether the flag is raised on any process; all processes must ask at the same step."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))


def main_first(make: Callable[[], T]) -> T:
    """What `make` gives, on the main process before the others: it may be preparing files for all of them."""
    if jax.process_count() == 1:
        return make()
    if is_main():
        made = make()
        multihost_utils.sync_global_devices("main first")
        return made
    multihost_utils.sync_global_devices("main first")
    return make()


def from_main(make: Callable[[], Any], like: Any) -> Any:
    """What `make` gives on the main process, on every process; the others pass what it looks like."""
    if jax.process_count() == 1:
        return make()
    return multihost_utils.broadcast_one_to_all(make() if is_main() else like)


def own_rows(count: int) -> slice:
    """This process's part of `count` rows; parts follow each other, and differ by one row at most."""
    processes, index = jax.process_count(), jax.process_index()
    return slice(count * index // processes, count * (index + 1) // processes)


def gather_rows(own: np.ndarray, count: int) -> np.ndarray:
    """The rows [count, ...] of all processes from each one's own, which `own_rows` has told; all call this."""
    processes = jax.process_count()
    if processes == 1:
        return own
    longest = -(-count // processes)
    padded = np.zeros((longest, *own.shape[1:]), own.dtype)
    padded[: len(own)] = own
    parts = multihost_utils.process_allgather(padded)  # [processes, longest, ...]
    sizes = [count * (i + 1) // processes - count * i // processes for i in range(processes)]
    return np.concatenate([part[:size] for part, size in zip(parts, sizes, strict=True)])
