"""Checkpoints of a run, by orbax: written in the background, whole or not at all, and proven on the way back in."""

import concurrent.futures
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from metamask_jax.core.places import Place, to_place
from metamask_jax.core.storage import write_atomically
from metamask_jax.errors import CheckpointError, ConfigError, one_line
from metamask_jax.training.saved_arrays import copies, digest_of, unflatten
from metamask_jax.training.saved_steps import open_steps
from metamask_jax.version import __version__

_log = logging.getLogger(__name__)
_METRIC = "metric.json"  # beside the arrays of a checkpoint that was evaluated
_LONG = 120  # characters of another's message within a sentence of ours
RESTART = "or --restart, which keeps what is there in a folder beside and begins with step 1"


class DamagedError(CheckpointError):
    """A checkpoint whose bytes are not those that were written."""


class WriteError(OSError):
    """A checkpoint that could not be written, for want of room for example; the ones before are as they were."""


class Restored(NamedTuple):
    """What a checkpoint holds.

    Attributes:
      step: the training step after which it was written.
      state: a pytree like the one asked for, of NumPy arrays.
      metadata: `config` (JSON text), `version`, and the `metrics` that were passed to `save`.
    """

    step: int
    state: Any
    metadata: dict[str, Any]


class Checkpoints:
    """The checkpoints in a folder. Only one process of a run opens them; it hands the state to the others."""

    def __init__(
        self,
        folder: str | Place,
        *,
        keep_last: int,
        keep_every: int | None,
        keep_best: bool,
    ) -> None:
        """Opens the folder, creating it and clearing away what a killed process left half-written.

        Args:
          folder: where the checkpoints are.
          keep_last: how many of the newest to keep.
          keep_every: also keep those at multiples of this step.
          keep_best: also keep the one with the highest metric.
        """
        self._path = to_place(folder).absolute()
        self._keep = (keep_last, keep_every, keep_best)
        self._steps = open_steps(self._path)
        self._thread: concurrent.futures.ThreadPoolExecutor | None = concurrent.futures.ThreadPoolExecutor(
            1, thread_name_prefix="checkpoint"
        )
        self._pending: concurrent.futures.Future[None] | None = None

    @classmethod
    def for_reading(cls, folder: str | Place) -> "Checkpoints":
        """Opens an existing folder without touching it: a run may be writing there at this moment."""
        self = cls.__new__(cls)
        self._path, self._thread, self._pending = to_place(folder).absolute(), None, None
        self._steps = open_steps(self._path, read_only=True)
        return self

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, oldest first."""
        if self._pending is not None:
            concurrent.futures.wait([self._pending])
        return self._steps.steps()

    def best_step(self) -> int | None:
        """The step with the highest metric, the first of equals; None if none was measured."""
        return _best({step: _metric(self._path / str(step)) for step in self.steps()})

    def save(
        self,
        step: int,
        state: Any,
        *,
        config: str,
        metrics: Mapping[str, float] | None = None,
        first: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts writing a checkpoint; returns at once, and the state's buffers may then be donated.

        Args:
          step: the training step it belongs to.
          state: a pytree of arrays.
          config: the run's configuration as JSON.
          metrics: of that step, if nothing else remembers them yet.
          first: is called by the thread that writes, before it does.

        Raises:
          WriteError: the checkpoint before could not be written.
        """
        assert self._thread is not None, "opened for reading"
        self.wait()  # no more than one copy of the state beside the one that trains
        metadata = {"version": __version__, "config": config, "metrics": metrics and dict(metrics)}
        self._pending = self._thread.submit(self._write, step, copies(state), metadata, first)

    def _write(self, step: int, leaves: dict[str, Any], metadata: dict[str, Any], first: Callable[[], None]) -> None:
        """What the thread does."""
        arrays = {name: np.asarray(leaf) for name, leaf in leaves.items()}
        first()
        with _writing():
            self._steps.write(step, arrays, metadata | {"digest": digest_of(arrays)})
            self._steps.patiently(self._remove_old)

    def _remove_old(self) -> None:
        """Removes the checkpoints that are not to be kept."""
        (last, every, best), steps = self._keep, self._steps.steps()
        kept: set[int | None] = {*steps[-last:], *(step for step in steps if every is not None and step % every == 0)}
        if best:
            kept.add(_best({step: _metric(self._path / str(step)) for step in steps}))
        for step in sorted(set(steps) - kept):
            self._steps.remove(step)

    def rate(self, step: int, metric: float) -> None:
        """Notes the metric by which the best checkpoint is chosen, measured after the checkpoint was written."""
        self.wait()
        with _writing():
            write_atomically(self._path / str(step) / _METRIC, json.dumps({"metric": metric}))

    def wait(self) -> None:
        """Blocks until everything started is on disk, or raises a WriteError."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Waits, then lets go of the folder; a failure that `wait` would have raised is only logged."""
        try:
            self.wait()
            with _writing():
                self._steps.close()
        except WriteError as error:
            _log.warning("%s", error)
        finally:
            if self._thread is not None:
                self._thread.shutdown()

    def restore(self, like: Any, *, step: int) -> Restored:
        """Reads one checkpoint and checks every byte of it.

        Args:
          like: a pytree of arrays with the structure and shapes to expect.
          step: which one.
        """
        arrays, metadata = self.read(step)
        return Restored(step, unflatten(arrays, like, step), metadata)

    def read(self, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays of one checkpoint by their paths, such as `params.encoder.conv1.kernel`, and its metadata."""
        try:
            found, metadata = self._steps.read(step)
            arrays = {name: np.asarray(value) for name, value in found.items()}
            digest = digest_of(arrays)
        except ConfigError:  # a bucket that cannot be reached: nothing is known of the checkpoint
            raise
        except Exception as error:  # orbax and tensorstore raise many kinds
            raise DamagedError(f"checkpoint {step} cannot be read: {one_line(error)}") from error
        if digest != metadata.get("digest"):  # whose name, too, may be damaged
            raise DamagedError(f"checkpoint {step} is damaged: its arrays are not those that were written")
        return arrays, metadata

    def restore_latest(self, like: Any) -> Restored | None:
        """The newest checkpoint that is whole, saying so when a newer one is not; None if there is none at all.

        Raises:
          CheckpointError: there are some, but none is whole; nothing is changed then.
        """
        steps, damaged = self.steps(), []
        for step in reversed(steps):
            try:
                restored = self.restore(like, step=step)
            except DamagedError as error:
                _log.warning("%s; the one before is tried", error)
                damaged.append(step)
            else:
                self._set_aside(damaged)
                return restored
        if steps:
            raise CheckpointError(
                f"none of the checkpoints {steps} can be read; expected at least one that is whole, {RESTART}"
            )
        return None

    def _set_aside(self, steps: Sequence[int]) -> None:
        """Renames damaged checkpoints: training will want to write those steps anew, and nothing is deleted."""
        for step in steps:
            number, aside = 1, self._path / f"{step}.damaged"
            while aside.exists():
                number += 1
                aside = self._path / f"{step}.damaged-{number}"
            (self._path / str(step)).rename(aside)
            _log.warning("checkpoint %d is set aside as %s", step, aside.name)


def _best(metrics: Mapping[int, float | None]) -> int | None:
    measured = {step: metric for step, metric in metrics.items() if metric is not None}
    return max(measured, key=lambda step: measured[step]) if measured else None


def _metric(checkpoint: Place) -> float | None:
    """The metric of a checkpoint; None if it was not measured.

    Raises:
      DamagedError: what is written there is no metric.
    """
    path = checkpoint / _METRIC
    try:
        if not path.exists():  # version 0.1.0 had it among the metadata
            path = checkpoint / "metadata" / "metadata"
        found = json.loads(path.read_bytes()).get("metric")
        return None if found is None else float(found)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise DamagedError(f"checkpoint {checkpoint.name} cannot be read: {one_line(error)}") from error


@contextmanager
def _writing() -> Iterator[None]:
    """Turns the many kinds of exceptions of orbax and tensorstore into one."""
    try:
        yield
    except Exception as error:
        text = " ".join(str(error).split()).partition(" [tensorstore_spec=")[0]  # which is long, and after the reason
        if len(text) > _LONG:  # tensorstore names every file and folder on its way to the reason
            text = f"{text[: _LONG // 3]} ... {text[-_LONG:]}"
        raise WriteError(f"a checkpoint cannot be written: {text or type(error).__name__}") from error
