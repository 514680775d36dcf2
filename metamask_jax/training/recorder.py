"""What follows each step of a run: logs, snapshots of the mask, checkpoints, evaluations, and the stop if need be.

The device never waits for any of it: what a step has measured is fetched when the next one is on its way already.
"""

import collections
import dataclasses
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from metamask_jax.config import to_json
from metamask_jax.core.mask import mask_weights
from metamask_jax.data.order import steps_per_epoch
from metamask_jax.errors import Interrupted, TrainingError
from metamask_jax.training import processes
from metamask_jax.training.checkpoint import Checkpoints
from metamask_jax.training.lock import WorkdirLock
from metamask_jax.training.logging import Watch
from metamask_jax.training.monitor import Monitor
from metamask_jax.training.state import TrainState
from metamask_jax.training.step import META_METRICS

_MASK_SNAPSHOTS = 100  # of the mask over a run, for the report
_AHEAD = 2  # steps that may wait for the device; each holds its batch there


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long a run is."""

    steps_per_epoch: int
    total_steps: int

    @classmethod
    def of(cls, config: ConfigDict, size: int) -> "Plan":
        """The plan for a training set of `size` images; `train.steps`, if set, overrides `train.epochs`."""
        per_epoch = steps_per_epoch(size, config.train.batch_size)
        steps = config.train.steps
        return cls(per_epoch, config.train.epochs * per_epoch if steps is None else steps)


@dataclasses.dataclass(frozen=True)
class Outputs:
    """Where the main process of a run writes.

    Attributes:
      checkpoints: of the run.
      lock: of its working directory.
    """

    checkpoints: Checkpoints
    lock: WorkdirLock

    def save(
        self,
        step: int,
        state: TrainState,
        config: ConfigDict,
        metrics: Mapping[str, float] | None,
        first: Callable[[], None],
    ) -> None:
        """Starts writing a checkpoint, and what has to be there before it, by `first`."""

        def check_and_write() -> None:
            self.lock.check()
            first()

        self.checkpoints.save(step, state, config=to_json(config), metrics=metrics, first=check_and_write)


class _Taken:
    """A step that is on its way through the device: what is to be known of it later."""

    def __init__(self, step: int, metrics: dict[str, Any], mask: jax.Array | None) -> None:
        # A copy: the next step gets the state's own buffers.
        self.step, self.metrics = step, metrics
        self.mask = None if mask is None else jax.device_put(mask.addressable_data(0), may_alias=False)


class Recorder:
    """Is told of each step, and does what is due."""

    def __init__(
        self, config: ConfigDict, plan: Plan, *, watch: Watch, monitor: Monitor, outputs: Outputs | None
    ) -> None:
        """Has seen no step yet; `outputs` is None on all processes but the main one."""
        self._config, self._plan = config, plan
        self._watch, self._monitor, self._outputs = watch, monitor, outputs
        self._unseen: _Taken | None = None
        self._under_way: collections.deque[Any] = collections.deque()

    def after(self, step: int, state: TrainState, metrics: dict[str, Any], *, stop: int | None) -> None:
        """Does what is due after a step, which need not be done yet.

        Args:
          step: just dispatched.
          state: that comes out of it; the next step may take its buffers when this returns.
          metrics: of it.
          stop: the signal that asks the run to stop here, if any.

        Raises:
          TrainingError: too many steps in a row were skipped.
          Interrupted: after the state was saved, because of `stop`.
        """
        self._see()
        snapshot = self._is_last(step) or step % max(1, self._plan.total_steps // _MASK_SNAPSHOTS) == 0
        self._unseen = _Taken(step, metrics, state.mask if snapshot else None)
        self._under_way.append(metrics["skipped_in_a_row"])
        if len(self._under_way) > _AHEAD:
            jax.block_until_ready(self._under_way.popleft())
        due = self._monitor.due(step, **dataclasses.asdict(self._plan))
        stopped = stop is not None and not self._is_last(step)
        if due:
            self._save_and_evaluate(step, state, stopped)
        elif self._is_last(step) or stopped or step % self._config.checkpoint.every_steps == 0:
            self._see()  # what is logged of a saved step must not be lost with the process
            self._save(step, state)
        if stopped:
            self.wait()  # the message claims it
            raise Interrupted(stop or signal.SIGTERM, step)

    def evaluate(self, step: int, state: TrainState, metrics: Mapping[str, float]) -> None:
        """Evaluates the state after a step and logs it with the step's metrics."""
        done = time.monotonic()
        evaluated = self._monitor(state)
        processes.exchange("")  # the next step's collective operations have less patience than an evaluation takes
        self._watch.log(step, {**_measured(metrics), **evaluated}, done=done)
        for warning in self._monitor.warnings(evaluated, float(metrics["feature_std"])):
            self._watch.say(f"warning: {warning}")
        if self._outputs is not None and "knn_accuracy" in evaluated:
            self._outputs.checkpoints.rate(step, evaluated["knn_accuracy"])
        self._watch.start_clock(step)

    def wait(self) -> None:
        """Blocks until all checkpoints are on disk."""
        if self._outputs is not None:
            self._outputs.checkpoints.wait()

    def _save_and_evaluate(self, step: int, state: TrainState, stopped: bool) -> None:
        """Saves first: nothing that happens in an evaluation costs the step.

        The step's metrics are saved with it and logged after the evaluation, whose values belong to the same line. A
        run that ends in between finds them in the checkpoint when it goes on.
        """
        taken, self._unseen = self._unseen, None
        assert taken is not None
        metrics = plain(taken.metrics)
        self._check_finite(metrics["skipped_in_a_row"])
        self._snapshot(taken)
        self._save(step, state, metrics)
        if not stopped:
            self.evaluate(step, state, metrics)

    def _save(self, step: int, state: TrainState, metrics: Mapping[str, float] | None = None) -> None:
        if self._outputs is not None:
            self._outputs.save(step, state, self._config, metrics, first=self._watch.upload)

    def _see(self) -> None:
        """Looks at the step that was last taken."""
        taken, self._unseen = self._unseen, None
        if taken is None:
            return
        if self._is_last(taken.step) or taken.step % self._config.log.every_steps == 0:
            metrics = plain(taken.metrics)
            self._watch.log(taken.step, _measured(metrics))
            self._check_finite(metrics["skipped_in_a_row"])
        elif taken.step % self._config.guard.max_skipped == 0:
            self._check_finite(int(taken.metrics["skipped_in_a_row"]))
        self._snapshot(taken)

    def _snapshot(self, taken: _Taken) -> None:
        if taken.mask is not None:
            self._watch.log_mask(taken.step, weights_of(self._config, taken.mask))

    def _is_last(self, step: int) -> bool:
        return step == self._plan.total_steps

    def _check_finite(self, skipped_in_a_row: float) -> None:
        """Stops a run that has been skipping its updates for too long."""
        if skipped_in_a_row >= self._config.guard.max_skipped:
            raise TrainingError(
                f"the losses or gradients of {self._config.guard.max_skipped} steps in a row were not finite, and "
                "their updates were skipped; try a smaller config.optimizer.learning_rate, a longer "
                "config.optimizer.warmup_epochs, a larger config.method.temperature, or config.train.dtype=float32"
            )


def weights_of(config: ConfigDict, mask: Any) -> np.ndarray:
    """The weights [dim] that a mask's logits stand for."""
    return np.asarray(mask_weights(mask, activation=config.mask.activation))


def plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics as Python's numbers, which JSON gives back bit for bit."""
    return {name: np.asarray(value).item() for name, value in jax.device_get(dict(metrics)).items()}


def _measured(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics without those of the meta step where there was none."""
    if any(metrics.get(name) for name in META_METRICS):
        return dict(metrics)
    return {name: value for name, value in metrics.items() if name not in META_METRICS}
