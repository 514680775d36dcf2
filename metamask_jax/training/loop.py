"""Pretraining from the first step to the report, surviving what happens in between."""

import dataclasses
import json
import logging
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from metamask_jax import kernels
from metamask_jax.config import apply_overrides, differences, from_json, to_json
from metamask_jax.core.mask import mask_weights
from metamask_jax.core.storage import read_json_lines, write_atomically
from metamask_jax.data.order import steps_per_epoch
from metamask_jax.data.sources import Source, open_configured
from metamask_jax.errors import ConfigError, Interrupted, TrainingError
from metamask_jax.training import distributed
from metamask_jax.training.checkpoint import Checkpoints
from metamask_jax.training.logging import Silence, Watch, check_libraries
from metamask_jax.training.monitor import Evaluator, Monitor
from metamask_jax.training.registry import Registry, registry_of, validate
from metamask_jax.training.state import TrainState, init_state
from metamask_jax.training.step import META_METRICS, make_train_step
from metamask_jax.training.stream import batch_stream, labelled_source
from metamask_jax.version import __version__

_log = logging.getLogger(__name__)

# What may change between a run's start and its continuation without changing the trajectory.
_FREE_TO_CHANGE = ("log.", "checkpoint.", "eval.", "guard.", "data.dir", "data.prefetch")
_MASK_SNAPSHOTS = 100  # of the mask over a run, for the report


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


def train(
    config: ConfigDict,
    workdir: str | os.PathLike[str],
    *,
    accept_changes: bool = False,
    registry: Registry | None = None,
    make_evaluator: Callable[[ConfigDict, Registry], Evaluator] | None = None,
) -> dict[str, Any]:
    """Trains, or goes on training, in a working directory.

    Args:
      config: the configuration; see `metamask_jax.config`.
      workdir: holds everything the run writes. If it holds checkpoints of this run already, training goes on from the
        newest whole one exactly as if it had never stopped.
      accept_changes: go on even though the configuration is not the one the run was started with.
      registry: what the configuration's names stand for; None is ours and `config.plugins`.
      make_evaluator: builds what judges the features while training; None for no evaluation.

    Returns:
      What is in `result.json`.

    Raises:
      ConfigError, DataError, CheckpointError: about the input, before anything is written.
      TrainingError: the losses are not finite any more, or the disk is full.
      Interrupted: SIGTERM or SIGINT arrived; the state is saved.
    """
    registry = registry or registry_of(config)
    config = validate(config, registry)
    kernels.use(config.train.kernels)
    check_libraries(config.log)
    distributed.check_batch_size(config.train.batch_size, config.train.accumulate)
    workdir = pathlib.Path(workdir)
    source = distributed.main_first(lambda: open_configured(config.data, split="pretrain"))
    # Part of the configuration from now on: a method may remember every image.
    found = {"data.size": str(len(source))}
    if config.mask.learn and config.meta.outer == "labels":
        found["meta.num_classes"] = str(labelled_source(config).num_classes)
    config = apply_overrides(config, found)
    plan = Plan.of(config, len(source))
    checkpoints = None
    if distributed.is_main():
        _claim(workdir, config, accept_changes)
        checkpoints = Checkpoints(
            workdir / "checkpoints",
            keep_last=config.checkpoint.keep_last,
            keep_every=config.checkpoint.keep_every,
            keep_best=config.checkpoint.keep_best,
        )
    try:
        state = _start(config, checkpoints, registry)
        monitor = Monitor(config, make_evaluator and make_evaluator(config, registry))
        return _run(config, workdir, source, plan, state, checkpoints, monitor, registry)
    except OSError as error:
        raise TrainingError(
            f"the run in {workdir} cannot go on ({error}); {_newest(checkpoints)}, from which the same command resumes "
            "once that is mended"
        ) from error
    finally:
        if checkpoints is not None:
            checkpoints.close()


def _claim(workdir: pathlib.Path, config: ConfigDict, accept_changes: bool) -> None:
    """Makes the working directory this run's, or refuses one that is another's."""
    path = workdir / "config.json"
    try:
        old = from_json(path.read_text()) if path.exists() else config
        changed = [d for d in differences(old, config) if not d.startswith(_FREE_TO_CHANGE)]
        if changed and not accept_changes:
            raise ConfigError(
                f"--workdir {workdir} was started with another configuration ({'; '.join(changed)}); "
                "expected the same one, another workdir, or --accept-changes"
            )
        workdir.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_json(config))
    except OSError as error:
        raise ConfigError(f"--workdir {workdir}; expected a folder that can be written, but: {error}") from error


def _newest(checkpoints: Checkpoints | None) -> str:
    steps = checkpoints.steps() if checkpoints is not None else []
    return f"the newest whole checkpoint is of step {steps[-1]}" if steps else "there is no checkpoint yet"


def _start(config: ConfigDict, checkpoints: Checkpoints | None, registry: Registry) -> TrainState:
    """The state of the newest whole checkpoint, or a fresh one; the same on all processes."""
    # On the host, as a checkpoint's is: the step is traced once for where its state lies.
    fresh: TrainState = jax.device_get(init_state(config, registry=registry))

    def restore() -> TrainState:
        found = checkpoints.restore_latest(fresh) if checkpoints is not None else None
        if found is None:
            return fresh
        _log.info("resuming from the checkpoint after step %d", found.step)
        return found.state

    return distributed.from_main(restore, like=fresh)


def _run(
    config: ConfigDict,
    workdir: pathlib.Path,
    source: Source,
    plan: Plan,
    state: TrainState,
    checkpoints: Checkpoints | None,
    monitor: Monitor,
    registry: Registry,
) -> dict[str, Any]:
    """The training loop, and what follows it."""
    began, start = time.monotonic(), int(state.step)
    train_step = distributed.parallelize(
        make_train_step(config, **dataclasses.asdict(plan), axis_name=distributed.AXIS, registry=registry),
    )
    metrics: dict[str, Any] = {}
    make_watch = Watch if distributed.is_main() else Silence
    with (
        make_watch(config, workdir, start_step=start, total_steps=plan.total_steps) as watch,
        closing(batch_stream(config, source, start_step=start, total_steps=plan.total_steps)) as stream,
        _signals() as signals,
    ):
        watch.say(_describe(config, plan, start))
        for step, batch in enumerate(stream, start=start + 1):
            _check_finite(config, metrics)  # of the step before: the device is never kept waiting
            state, metrics = train_step(state, batch)
            if step == start + 1:
                jax.block_until_ready(metrics)
                watch.say(f"first step done {time.monotonic() - began:.1f} s after the start")
            last = step == plan.total_steps
            logged = last or step % config.log.every_steps == 0
            # Processes compare their signals where they wait for each other anyway.
            stop = (logged or jax.process_count() == 1) and distributed.any_process(bool(signals))
            evaluated = monitor(state) if monitor.due(step, **dataclasses.asdict(plan)) else {}
            if logged or evaluated:
                watch.log(step, {**_measured(jax.device_get(metrics)), **evaluated})
            if evaluated:
                for warning in monitor.warnings(evaluated, float(metrics["feature_std"])):
                    watch.say(f"warning: {warning}")
            if last or step % max(1, plan.total_steps // _MASK_SNAPSHOTS) == 0:
                watch.log_mask(step, _weights(config, state))
            if checkpoints is not None and (last or stop or evaluated or step % config.checkpoint.every_steps == 0):
                checkpoints.save(step, state, config=to_json(config))
                if "knn_accuracy" in evaluated:
                    checkpoints.rate(step, evaluated["knn_accuracy"])
            if stop and not last:
                if checkpoints is not None:
                    checkpoints.wait()  # the message below claims it
                raise Interrupted(signals[0] if signals else signal.SIGTERM, step)
        _check_finite(config, metrics)
        if checkpoints is not None:
            checkpoints.wait()
    return _finish(config, workdir, state, plan, monitor, time.monotonic() - began)


def _finish(
    config: ConfigDict, workdir: pathlib.Path, state: TrainState, plan: Plan, monitor: Monitor, seconds: float
) -> dict[str, Any]:
    """Writes result.json and report.npz."""
    weights = _weights(config, state)
    result = {
        "steps": plan.total_steps,
        "seconds": round(seconds, 1),
        "skipped": int(state.skipped),
        **(monitor.latest or monitor(state)),
        "mask_mean": float(weights.mean()),
        "mask_std": float(weights.std()),
        "version": __version__,
    }
    if distributed.is_main():
        masks = read_json_lines(workdir / "masks.jsonl")
        write_atomically(workdir / "result.json", json.dumps(result, indent=2))
        arrays = monitor.arrays() | {
            "mask_final": weights,
            "mask_steps": np.array([line["step"] for line in masks]),
            "mask_trajectory": np.array([line["weights"] for line in masks]),
        }
        np.savez(workdir / "report.npz", allow_pickle=False, **arrays)
    return result


def _measured(metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics without those of the meta step where there was none."""
    if any(metrics.get(name) for name in META_METRICS):
        return metrics
    return {name: value for name, value in metrics.items() if name not in META_METRICS}


def _check_finite(config: ConfigDict, metrics: dict[str, Any]) -> None:
    """Stops a run that has been skipping its updates for too long."""
    if metrics and int(metrics["skipped_in_a_row"]) >= config.guard.max_skipped:
        raise TrainingError(
            f"the losses or gradients of {config.guard.max_skipped} steps in a row were not finite, and their updates "
            "were skipped; try a smaller config.optimizer.learning_rate, a longer config.optimizer.warmup_epochs, a "
            "larger config.method.temperature, or config.train.dtype=float32"
        )


def _weights(config: ConfigDict, state: TrainState) -> np.ndarray:
    return np.asarray(mask_weights(state.mask, activation=config.mask.activation))


def _describe(config: ConfigDict, plan: Plan, start: int) -> str:
    return (
        f"{config.method.name} on {config.data.name} with {config.encoder.name}, mask learning "
        f"{config.meta.estimator if config.mask.learn else 'off'}: steps {start + 1} to {plan.total_steps} "
        f"({plan.steps_per_epoch} an epoch) on {jax.device_count()} {jax.default_backend()} device(s)"
    )


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGTERM and SIGINT instead of dying of them; a second one acts as usual."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # only the main thread may handle signals
        return

    def handle(number: int, frame: Any) -> None:
        del frame
        received.append(number)
        signal.signal(number, before[number])

    before: dict[int, Any] = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
