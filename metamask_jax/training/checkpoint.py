"""Checkpoints of a run, by orbax: written in the background, whole or not at all, and proven on the way back in."""

import hashlib
import logging
import pathlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from metamask_jax.errors import CheckpointError
from metamask_jax.version import __version__

_log = logging.getLogger(__name__)
policies = ocp.checkpoint_managers


class DamagedError(CheckpointError):
    """A checkpoint whose bytes are not those that were written."""


class WriteError(OSError):
    """A checkpoint that could not be written, for want of room for example; the ones before are as they were."""


class Restored(NamedTuple):
    """What a checkpoint holds.

    Attributes:
      step: the training step after which it was written.
      state: a pytree like the one asked for, of NumPy arrays.
      metadata: `config` (JSON text), `version`, and what was passed to `save`.
    """

    step: int
    state: Any
    metadata: dict[str, Any]


class Checkpoints:
    """The checkpoints in a folder. Only one process of a run opens them; it hands the state to the others."""

    def __init__(
        self,
        folder: str | pathlib.Path,
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
        keep: list[Any] = [policies.LatestN(keep_last)]
        if keep_every is not None:
            keep.append(policies.EveryNSteps(keep_every))
        if keep_best:
            keep.append(
                policies.BestN(get_metric_fn=lambda m: m["metric"], n=1, keep_checkpoints_without_metrics=False)
            )
        path = pathlib.Path(folder).absolute()
        path.mkdir(parents=True, exist_ok=True)
        self._manager = ocp.CheckpointManager(
            path,
            options=ocp.CheckpointManagerOptions(
                create=False,
                preservation_policy=policies.AnyPreservationPolicy(keep),
                cleanup_tmp_directories=True,
                multiprocessing_options=ocp.options.MultiprocessingOptions(
                    primary_host=jax.process_index(),
                    active_processes={jax.process_index()},
                    barrier_sync_key_prefix="main",
                )
                if jax.process_count() > 1
                else ocp.options.MultiprocessingOptions(),
            ),
            item_names=("state", "metadata"),
        )

    @classmethod
    def for_reading(cls, folder: str | pathlib.Path) -> "Checkpoints":
        """Opens an existing folder without touching it: a run may be writing there at this moment."""
        self = cls.__new__(cls)
        self._manager = ocp.CheckpointManager(
            pathlib.Path(folder).absolute(),
            options=ocp.CheckpointManagerOptions(read_only=True, create=False, save_interval_steps=0),
            item_names=("state", "metadata"),
        )
        return self

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, oldest first."""
        self._manager.reload()  # a save that failed may be in its memory
        return sorted(self._manager.all_steps())

    def best_step(self) -> int | None:
        """The step with the highest metric, the first of equals; None if none was measured."""
        only_metadata = ocp.args.Composite(metadata=ocp.args.JsonRestore())
        metrics = {}
        for step in self.steps():
            try:
                metrics[step] = self._manager.restore(step, args=only_metadata)["metadata"]["metric"]
            except Exception as error:  # orbax raises many kinds
                raise DamagedError(f"checkpoint {step} cannot be read: {_first_line(error)}") from error
        measured = {step: metric for step, metric in metrics.items() if metric is not None}
        return max(measured, key=lambda step: measured[step]) if measured else None

    def save(self, step: int, state: Any, *, config: str, metric: float | None) -> None:
        """Starts writing a checkpoint; returns as soon as the state is copied.

        Args:
          step: the training step it belongs to.
          state: a pytree of arrays.
          config: the run's configuration as JSON.
          metric: by which the best checkpoint is chosen, if it was measured at this step.
        """
        arrays = _flatten(state)
        with _writing():  # reports a failure of the one before, too
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(arrays),
                    metadata=ocp.args.JsonSave(
                        {"version": __version__, "config": config, "digest": _digest(arrays), "metric": metric}
                    ),
                ),
                metrics=None if metric is None else {"metric": metric},
            )

    def wait(self) -> None:
        """Blocks until everything started is on disk, or raises a WriteError."""
        with _writing():
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def close(self) -> None:
        """Waits, then lets go of the folder; a failure that `wait` would have raised is only logged."""
        try:
            with _writing():
                self._manager.close()
        except WriteError as error:
            _log.warning("%s", error)

    def restore(self, like: Any, *, step: int) -> Restored:
        """Reads one checkpoint and checks every byte of it.

        Args:
          like: a pytree of arrays with the structure and shapes to expect.
          step: which one.
        """
        try:
            found = self._manager.restore(
                step, args=ocp.args.Composite(state=ocp.args.StandardRestore(), metadata=ocp.args.JsonRestore())
            )
            arrays = {name: np.asarray(value) for name, value in found["state"].items()}
            digest = _digest(arrays)
        except Exception as error:  # orbax and tensorstore raise many kinds
            raise DamagedError(f"checkpoint {step} cannot be read: {_first_line(error)}") from error
        if digest != found["metadata"]["digest"]:
            raise DamagedError(f"checkpoint {step} is damaged: its arrays are not those that were written")
        return Restored(step, _unflatten(arrays, like, step), dict(found["metadata"]))

    def restore_latest(self, like: Any) -> Restored | None:
        """The newest checkpoint that is whole, saying so when a newer one is not; None if there is none at all."""
        steps = self.steps()
        for step in reversed(steps):
            try:
                return self.restore(like, step=step)
            except DamagedError as error:
                _log.warning("%s; it is set aside as %s.damaged and the one before is tried", error, step)
                self._set_aside(step)
        if steps:
            raise CheckpointError(f"none of the checkpoints {steps} can be read; expected at least one that is whole")
        return None

    def _set_aside(self, step: int) -> None:
        """Renames a damaged checkpoint: training will want to write that step anew, and nothing is deleted."""
        path = pathlib.Path(self._manager.directory) / str(step)
        path.rename(path.with_suffix(".damaged"))
        self._manager.reload()


@contextmanager
def _writing() -> Iterator[None]:
    """Turns the many kinds of exceptions of orbax and tensorstore into one."""
    try:
        yield
    except Exception as error:
        raise WriteError(f"a checkpoint cannot be written: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]


def _flatten(tree: Any) -> dict[str, np.ndarray]:
    """Copies a pytree into one dict by path: the training may overwrite its buffers while they are being written."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): np.array(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _unflatten(arrays: Mapping[str, np.ndarray], like: Any, step: int) -> Any:
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves = []
    for path, leaf in paths:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name not in arrays or arrays[name].shape != leaf.shape:
            found = arrays[name].shape if name in arrays else "nothing"
            raise CheckpointError(f"checkpoint {step} has {found} for {name}; expected shape {leaf.shape}")
        leaves.append(arrays[name].astype(leaf.dtype, copy=False))
    return jax.tree.unflatten(structure, leaves)


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].dtype}{arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
