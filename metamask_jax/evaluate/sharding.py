"""Rows of features spread over the processes of a run, and over the devices of all of them.

Every process holds a part of the rows and passes that part, here as everywhere in `evaluate`; parts follow each other
in the order of the processes. All processes call these functions together. A run of one process has all rows, and
nothing is sent.
"""

import dataclasses
from collections.abc import Sequence
from functools import cache

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from metamask_jax.training.distributed import AXIS
from metamask_jax.training.processes import exchange

SPLIT, WHOLE = PartitionSpec(AXIS), PartitionSpec()


@dataclasses.dataclass(frozen=True)
class Share:
    """How rows are spread over the processes.

    Attributes:
      ends: where the parts of all processes end, int [processes].
      index: of this process.
    """

    ends: np.ndarray
    index: int

    @property
    def start(self) -> int:
        """How many rows come before those of this process."""
        return int(self.ends[self.index - 1]) if self.index else 0

    @property
    def own(self) -> slice:
        """The rows of this process."""
        return slice(self.start, int(self.ends[self.index]))

    @property
    def total(self) -> int:
        """The rows of all processes."""
        return int(self.ends[-1])

    @property
    def longest(self) -> int:
        """The rows of the process that has the most."""
        return int(np.diff(self.ends, prepend=0).max())


def share_of(count: int) -> Share:
    """How the rows are spread of which this process has `count`."""
    return Share(np.cumsum(of_all(np.array([count]))[:, 0]), jax.process_index())


def total(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The sum over all processes of numbers that each of them has, in float64; the same bits on each.

    Example:
      >>> total([1, 2]).tolist()
      [1.0, 2.0]
    """
    return np.asarray(of_all(np.asarray(values, np.float64)).sum(axis=0))


def gathered(own: np.ndarray) -> np.ndarray:
    """The rows of all processes, of which this one has its `own` [count, ...], on each of them."""
    if jax.process_count() == 1:
        return own
    sizes = np.diff(share_of(len(own)).ends, prepend=0)
    padded = np.zeros((max(sizes), *own.shape[1:]), own.dtype)
    padded[: len(own)] = own
    return np.concatenate([part[:size] for part, size in zip(of_all(padded), sizes, strict=True)])


def of_all(own: np.ndarray) -> np.ndarray:
    """Arrays of one shape, of each process, stacked; as bytes, because JAX would round float64 and int64 on the way."""
    if jax.process_count() == 1:
        return own[None]
    exchange("")  # the transfer has less patience than the work before may differ by
    sent = multihost_utils.process_allgather(np.frombuffer(np.ascontiguousarray(own).tobytes(), np.uint8))
    return np.stack([np.frombuffer(part.tobytes(), own.dtype).reshape(own.shape) for part in sent])


@cache
def all_devices() -> Mesh:
    """The devices of all processes, those of one beside each other."""
    return Mesh(np.array(sorted(jax.devices(), key=lambda device: (device.process_index, device.id))), (AXIS,))


def spread(own: np.ndarray, spec: PartitionSpec = SPLIT) -> jax.Array:
    """An array over all devices, of which this process gives its part: equal in shape on every process.

    With the spec `WHOLE` it is a copy on every device of what is equal on every process.
    """
    return jax.make_array_from_process_local_data(NamedSharding(all_devices(), spec), own)


def own_part(array: jax.Array) -> np.ndarray:
    """The rows of an array, split over all devices, that are on the devices of this process."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in shards])
