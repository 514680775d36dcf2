"""Batches of a run, and their way to the device ahead of time."""

import atexit
import contextlib
import functools
import itertools
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import numpy as np

from metamask_jax.core.state import Pair
from metamask_jax.data.order import batch_indices, steps_per_epoch
from metamask_jax.data.sources import Source
from metamask_jax.data.streams import MapParts, StreamSource, map_steps
from metamask_jax.errors import DataError

if TYPE_CHECKING:
    import jax

T = TypeVar("T")
U = TypeVar("U")
Array: TypeAlias = "np.ndarray | jax.Array"

_PATIENCE = 10.0  # seconds to wait for a stopped thread to finish the item in hand


class Batch(NamedTuple):
    """A slice of a global batch: one process's, or one device's.

    Attributes:
      images: uint8 [batch, height, width, 3]; from a `StreamSource` that crops on the host
        [batch, views, height, width, 3].
      labels: int32 [batch], -1 where there is none.
      positions: places in the global batch, int32 [batch], from which augmentation keys are made.
      indices: indices into the source, int32 [batch].
    """

    images: Array
    labels: Array
    positions: Array
    indices: Array


def batches(
    source: Source,
    *,
    seed: int,
    batch_size: int,
    start_step: int = 0,
    process_index: int = 0,
    process_count: int = 1,
    num_steps: int | None = None,
) -> Iterator[Batch]:
    """Returns this process's slices of the global batches from a step on.

    Args:
      source: the pictures.
      seed: of the run.
      batch_size: global batch size, over all devices and processes.
      start_step: the first step, counted over the whole run.
      process_index: which slice.
      process_count: how many slices.
      num_steps: how many batches; None goes on without end.

    Returns:
      An iterator over batches of `batch_size // process_count`.
    """
    if not 0 <= process_index < process_count:
        raise ValueError(f"{process_index=}; expected 0 to {process_count - 1}")
    if batch_size % process_count:
        raise DataError(f"{batch_size=}; expected a multiple of {process_count}, the number of processes")
    steps_per_epoch(len(source), batch_size)  # refuses a batch larger than the set here, not at the first batch
    make = functools.partial(
        _make_batch,
        source=source,
        seed=seed,
        batch_size=batch_size,
        process_index=process_index,
        process_count=process_count,
    )
    stop = None if num_steps is None else start_step + num_steps
    if isinstance(source, StreamSource):
        return map_steps(make, start=start_step, stop=stop, streaming=source.streaming)
    return map(make, itertools.count(start_step) if stop is None else range(start_step, stop))


def _make_batch(
    step: int, *map_parts: MapParts, source: Source, seed: int, batch_size: int, process_index: int, process_count: int
) -> Batch:
    local = batch_size // process_count
    positions = np.arange(process_index * local, (process_index + 1) * local, dtype=np.int32)
    indices = batch_indices(seed, step, batch_size, len(source))[positions]
    if isinstance(source, StreamSource) and source.streaming.views:
        images, labels = source.gather_crops(indices, *map_parts, seed=seed, step=step, positions=positions)
    else:
        images, labels = source.gather(indices, *map_parts)
    return Batch(images, labels, positions, indices.astype(np.int32))


def with_previous(stream: Generator[Batch], *, from_start: bool) -> Generator[Pair]:
    """Yields each batch with the one before it; closing it closes the stream.

    Args:
      stream: batches of steps that follow each other.
      from_start: whether the stream begins with the very first step, whose `previous` is then a stand-in. Otherwise its
        first batch is only a `previous` one.
    """
    with contextlib.closing(stream):
        previous = None
        for present in stream:
            if previous is not None:
                yield Pair(previous, present)
            elif from_start:
                yield Pair(present, present)
            previous = present


class _Failure(NamedTuple):
    """How the thread ended."""

    error: BaseException


def prefetch(iterator: Iterator[T], *, depth: int, transfer: Callable[[T], U]) -> Generator[U]:
    """Yields `transfer(item)` for each item, computed up to `depth` items ahead in a background thread.

    The host's work and the copy to the device then overlap with compute. An exception in the thread is raised in the
    consumer, in its place in the order. Closing the generator, or dropping it, stops the thread.

    Args:
      iterator: what to run ahead of; it is used by the thread alone.
      depth: how many finished items may wait.
      transfer: what to do with each item, such as putting it on the device.
    """
    if depth < 1:
        raise ValueError(f"{depth=}; expected at least 1")
    return _prefetch(iterator, depth, transfer)


def _prefetch(iterator: Iterator[T], depth: int, transfer: Callable[[T], U]) -> Generator[U]:
    # The queue has no bound: the semaphore keeps the thread from running further ahead, and unlike a full queue it can
    # be released to wake the thread up for its end.
    results: queue.SimpleQueue[U | _Failure] = queue.SimpleQueue()
    room, stopped = threading.Semaphore(depth), threading.Event()

    def work() -> None:
        try:
            while room.acquire() and not stopped.is_set():
                results.put(transfer(next(iterator)))
        except BaseException as e:  # StopIteration too: the consumer tells it apart
            results.put(_Failure(e))
        finally:
            if isinstance(iterator, Generator):
                iterator.close()

    thread = threading.Thread(target=work, name="prefetch", daemon=True)

    def stop() -> None:
        if stopped.is_set():  # at exit already; when the generator goes, the modules used below may be gone before it
            return
        stopped.set()
        room.release()
        thread.join(_PATIENCE)
        atexit.unregister(stop)

    atexit.register(stop)  # a daemon thread that the interpreter kills within XLA can bring the process down
    thread.start()
    try:
        while not isinstance(result := results.get(), _Failure):
            room.release()
            yield result
        if not isinstance(result.error, StopIteration):
            raise result.error
    finally:
        stop()
