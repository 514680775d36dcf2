"""Pretraining from the first step to the report, surviving what happens in between."""

import dataclasses
import json
import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from metamask_jax.core.places import to_place
from metamask_jax.core.storage import read_json_lines, replacing, write_atomically
from metamask_jax.errors import TrainingError
from metamask_jax.training import distributed, processes
from metamask_jax.training.checkpoint import Checkpoints
from metamask_jax.training.logging import Silence, Watch
from metamask_jax.training.monitor import Evaluator
from metamask_jax.training.preparation import PreparedRun, prepare
from metamask_jax.training.profile import Profiler, Steps
from metamask_jax.training.recorder import Outputs, Recorder, weights_of
from metamask_jax.training.registry import Registry
from metamask_jax.training.roofline import KINDS, Peak, peak
from metamask_jax.training.settings import Programs
from metamask_jax.training.signals import caught_signals
from metamask_jax.training.state import TrainState
from metamask_jax.training.stream import batch_stream
from metamask_jax.training.workdir import claimed_workdir
from metamask_jax.version import __version__

_log = logging.getLogger(__name__)


def train(
    config: ConfigDict,
    workdir: str | os.PathLike[str],
    *,
    accept_changes: bool = False,
    restart: bool = False,
    registry: Registry | None = None,
    make_evaluator: Callable[[ConfigDict, Registry], Evaluator] | None = None,
    programs: Programs | None = None,
    profile: Steps | None = None,
) -> dict[str, Any]:
    """Trains, or goes on training, in a working directory.

    Args:
      config: the configuration; see `metamask_jax.config`.
      workdir: holds everything the run writes. If it holds checkpoints of this run already, training goes on from the
        newest whole one exactly as if it had never stopped.
      accept_changes: go on even though the configuration is not the one the run was started with.
      restart: begin anew; what is in the working directory is kept in a folder there.
      registry: what the configuration's names stand for; None is ours and `config.plugins`.
      make_evaluator: builds what judges the features while training; None for no evaluation.
      programs: shared by runs that follow each other in this process, so that each program is compiled once.
      profile: steps of which the main process writes a trace into the workdir, for XProf.

    Returns:
      What is in `result.json`.

    Raises:
      ConfigError, DataError, CheckpointError: about the input, before anything is written.
      TrainingError: the losses are not finite any more, or the disk is full.
      Interrupted: SIGTERM, SIGINT or SIGHUP arrived; the state is saved.
    """
    how = {"accept_changes": accept_changes, "restart": restart}
    with ExitStack() as stack:
        with processes.shared_refusals():
            programs = Programs() if programs is None else programs
            run, fresh = prepare(config, to_place(workdir), registry, make_evaluator, programs, **how)
            if profile is not None:
                profile.check(run.plan.total_steps)
            if distributed.is_main():
                lock = stack.enter_context(claimed_workdir(run.workdir, run.config, **how))
                keep = {name: run.config.checkpoint[name] for name in ("keep_last", "keep_every", "keep_best")}
                checkpoints = stack.enter_context(closing(Checkpoints(run.workdir / "checkpoints", **keep)))
                run = dataclasses.replace(run, outputs=Outputs(checkpoints, lock))
            state, unlogged = _start(run, fresh)
            del fresh  # training has a copy on the devices
        try:
            return _train(run, state, unlogged, profile)
        except OSError as error:
            raise TrainingError(
                f"the run in {workdir} cannot go on ({error}); {_newest(run)} once that is mended"
            ) from error


def _start(run: PreparedRun, fresh: TrainState) -> tuple[TrainState, dict[str, float] | None]:
    """The state of the newest whole checkpoint, or the fresh one, on the devices; the same on all processes.

    Returns:
      The state, and the metrics of its step if that was to be evaluated when the run ended, and is not in the log.
    """
    found = None if run.outputs is None else run.outputs.checkpoints.restore_latest(fresh)
    unlogged = None
    if found is not None:
        _log.info("resuming from the checkpoint after step %d", found.step)
        lines = read_json_lines(run.workdir / "metrics.jsonl")
        if run.monitor.due(found.step, **dataclasses.asdict(run.plan)):
            unlogged = None if any(line["step"] == found.step for line in lines) else found.metadata.get("metrics")
    unlogged = json.loads(processes.exchange(json.dumps(unlogged))[0])
    state = processes.from_main(lambda: fresh if found is None else found.state, like=fresh)
    return distributed.replicate(state), unlogged


def _train(
    run: PreparedRun, state: TrainState, unlogged: dict[str, float] | None, profile: Steps | None
) -> dict[str, Any]:
    """The training loop, and what follows it."""
    began, start, total = time.monotonic(), int(state.step), run.plan.total_steps
    alone = jax.process_count() == 1
    with (
        (Watch if distributed.is_main() else Silence)(
            run.config, run.workdir, start_step=start, total_steps=total
        ) as watch,
        closing(batch_stream(run.config, run.source, start_step=start, total_steps=total)) as stream,
        Profiler(profile if distributed.is_main() else None, run.workdir) as profiler,
        # JAX tells all processes of a SIGTERM to one of them, and when to stop.
        caught_signals(leave=frozenset() if alone else frozenset({signal.SIGTERM})) as signals,
    ):
        watch.say(_describe(run, start))
        recorder = Recorder(run.config, run.plan, watch=watch, monitor=run.monitor, outputs=run.outputs)
        if unlogged is not None:
            recorder.evaluate(start, state, unlogged)
        for step, batch in enumerate(stream, start=start + 1):
            if step == start + 1:
                compiled = processes.compile_together(run.train_step, state, batch, run.settings)
                watch.compare_with(_peak(run.config, compiled))
            profiler.before(step, state)
            state, metrics = run.train_step(state, batch, run.settings)
            profiler.after(step, metrics)
            if step == start + 1:
                jax.block_until_ready(metrics)
                watch.say(f"first step done {time.monotonic() - began:.1f} s after the start")
                watch.start_clock(step)
            stop = bool(signals) if alone else processes.asked_to_stop()
            recorder.after(step, state, metrics, stop=(signals or [signal.SIGTERM])[0] if stop else None)
        recorder.wait()
    return _finish(run, state, time.monotonic() - began)


def _peak(config: ConfigDict, compiled: jax.stages.Compiled) -> Peak | None:
    """What the compiled step takes at the peak of its chips, where that and its FLOPs are known."""
    kind = jax.local_devices()[0].device_kind
    if kind not in KINDS or config.train.accumulate > 1:  # the compiler counts a loop's micro-batches once
        return None
    recomputes = config.train.remat or (config.mask.learn and config.meta.estimator == "exact_recomputed")
    return peak(kind, flops=(compiled.cost_analysis() or {}).get("flops", 0.0), recomputes=recomputes)


def _finish(run: PreparedRun, state: TrainState, seconds: float) -> dict[str, Any]:
    """Writes report.npz and result.json."""
    weights, monitor = weights_of(run.config, state.mask), run.monitor
    measured = monitor.latest or monitor(state)
    arrays = monitor.arrays() if distributed.is_main() else {}
    result = {
        "steps": run.plan.total_steps,
        "seconds": round(seconds, 1),
        "skipped": int(state.skipped),
        **measured,
        **({} if run.initial is None else monitor.before(run.initial)),
        "mask_mean": float(weights.mean()),
        "mask_std": float(weights.std()),
        "version": __version__,
    }
    if distributed.is_main():
        masks = read_json_lines(run.workdir / "masks.jsonl")
        arrays |= {
            "mask_final": weights,
            "mask_steps": np.array([line["step"] for line in masks]),
            "mask_trajectory": np.array([line["weights"] for line in masks]),
        }
        with replacing(run.workdir / "report.npz") as path, path.open("wb") as file:  # a bare path would get a suffix
            np.savez(file, allow_pickle=False, **arrays)
        # Last: whoever finds it knows that the run is done.
        write_atomically(run.workdir / "result.json", json.dumps(result, indent=2))
    return result


def _newest(run: PreparedRun) -> str:
    steps = run.outputs.checkpoints.steps() if run.outputs is not None else []
    if not steps:
        return "there is no checkpoint yet, so the same command begins anew"
    return f"the newest whole checkpoint is of step {steps[-1]}, from which the same command resumes"


def _describe(run: PreparedRun, start: int) -> str:
    config, plan = run.config, run.plan
    learning = config.meta.estimator + (", judged by labels" if config.meta.outer == "labels" else "")
    return (
        f"{config.method.name} on {config.data.name} with {config.encoder.name}, mask learning "
        f"{learning if config.mask.learn else 'off'}: steps {start + 1} to {plan.total_steps} "
        f"({plan.steps_per_epoch} per epoch) on {jax.device_count()} {jax.default_backend()} device(s)"
    )
