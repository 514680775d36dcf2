"""Pretraining from the first step to the report, surviving what happens in between."""

import dataclasses
import hashlib
import importlib.metadata
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from metamask_jax import kernels
from metamask_jax.config import apply_overrides, flatten
from metamask_jax.core.places import Place, to_place
from metamask_jax.core.storage import read_json_lines, replacing, write_atomically
from metamask_jax.data.in_memory import ArraySource
from metamask_jax.data.sources import DATA_UNCHANGED_BY, Source, open_configured
from metamask_jax.errors import ConfigError, DataError, TrainingError, one_line
from metamask_jax.training import distributed, processes
from metamask_jax.training.checkpoint import Checkpoints
from metamask_jax.training.initial import first_state
from metamask_jax.training.logging import Silence, Watch, check_libraries
from metamask_jax.training.monitor import Evaluator, Monitor, rounding_warning
from metamask_jax.training.profile import Profiler, Steps
from metamask_jax.training.recorder import Outputs, Plan, Recorder, weights_of
from metamask_jax.training.registry import REGISTRY, Registry, resolve_registry, validate
from metamask_jax.training.roofline import KINDS, Peak, peak
from metamask_jax.training.saved_steps import has_checkpoints
from metamask_jax.training.settings import Programs, settings_of
from metamask_jax.training.signals import caught_signals
from metamask_jax.training.state import TrainState, has_judge, init_state
from metamask_jax.training.stream import batch_stream, labelled_source
from metamask_jax.training.workdir import check_workdir, claimed_workdir
from metamask_jax.version import __version__

_log = logging.getLogger(__name__)
_FINGERPRINT_IMAGES = 64


@dataclasses.dataclass(frozen=True)
class _Run:
    """A run that has been found good.

    Attributes:
      config: its whole configuration.
      workdir: where it writes.
      source: its training images.
      plan: how long it is.
      monitor: what evaluates it.
      initial: encoder and mask before training, for comparison; None if they come from elsewhere.
      train_step: on all devices.
      settings: of the step, on all devices.
      outputs: of the main process, None on the others.
    """

    config: ConfigDict
    workdir: Place
    source: Source
    plan: Plan
    monitor: Monitor
    initial: TrainState | None
    train_step: Any
    settings: Any
    outputs: Outputs | None = None


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
            run, fresh = _prepare(config, to_place(workdir), registry, make_evaluator, programs, **how)
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


def _prepare(
    config: ConfigDict,
    workdir: Place,
    registry: Registry | None,
    make_evaluator: Callable[[ConfigDict, Registry], Evaluator] | None,
    programs: Programs,
    *,
    accept_changes: bool,
    restart: bool,
) -> tuple[_Run, TrainState]:
    """Finds everything and builds everything before anything is written; the second item is the first state."""
    given, registry = registry, resolve_registry(registry, config)
    config = validate(config, registry)
    kernels.use(config.train.kernels)
    check_libraries(config.log)
    if distributed.is_main() and (warning := rounding_warning(config, jax.default_backend())):
        _log.warning(warning)
    distributed.check_batch_size(config.train.batch_size, config.train.accumulate)
    _check_agreement(config)
    source = processes.main_first(lambda: open_configured(config.data, split="pretrain"))
    processes.check_agreement({"the data": _fingerprint(source)})
    # Part of the configuration from now on: a method may remember every image.
    config = apply_overrides(config, {"data.size": str(len(source))})
    if has_judge(config) and config.meta.outer == "labels":
        labelled_source(config)  # which refuses what cannot judge
    plan = Plan.of(config, len(source))
    if distributed.is_main():
        check_workdir(workdir, config, accept_changes=accept_changes, restart=restart)
    with _building(config, registry):
        jax.eval_shape(lambda: init_state(config, registry=registry))
    begins = json.loads(processes.exchange(json.dumps(restart or not has_checkpoints(workdir / "checkpoints")))[0])
    # What a run goes on with is in its checkpoints, and the others get theirs from the main process.
    make = first_state if begins and distributed.is_main() else init_state
    fresh: TrainState = jax.device_get(make(config, registry=registry))  # where a checkpoint's state comes to
    monitor = Monitor(config, make_evaluator and make_evaluator(config, registry))
    processes.main_first(monitor.check)
    lengths = dataclasses.asdict(plan)
    step = programs.step(config, **lengths, registry=given)
    settings = distributed.replicate(settings_of(config, **lengths, registry=registry))
    # Other weights than random ones are in the main process of a run that begins, and nowhere else.
    initial = None if config.init["from"] else _encoder_of(fresh)
    run = _Run(config, workdir, source, plan, monitor, initial, step, settings)
    if begins:
        _rehearse(run, fresh, registry)
    return run, fresh


def _encoder_of(state: TrainState) -> TrainState:
    """What an evaluation needs of a state; the rest would take memory for nothing."""
    parts = {"params": {"encoder": state.params["encoder"]}, "batch_stats": {"encoder": state.batch_stats["encoder"]}}
    return state.replace(**parts, method_state=(), opt_state=(), mask_opt_state=(), previous=())


def _check_agreement(config: ConfigDict) -> None:
    """Refuses processes that were started with different configurations or programs."""
    settings = {key: value for key, value in flatten(config).items() if key not in DATA_UNCHANGED_BY}
    versions = {"metamask_jax": __version__, "jax": jax.__version__, "pillow": importlib.metadata.version("pillow")}
    processes.check_agreement({**settings, **versions})


def _fingerprint(source: Source) -> str:
    """What tells one set of pictures from another without reading all of it."""
    digest = hashlib.blake2b(repr((source.name, len(source), source.num_classes)).encode(), digest_size=8)
    if isinstance(source, ArraySource):
        places = np.unique(np.linspace(0, len(source) - 1, _FINGERPRINT_IMAGES).astype(int))
        digest.update(source.labels.tobytes())
        digest.update(source.images[places].tobytes())
    else:
        digest.update(repr((source.records.prepared.fingerprint, source.records.split)).encode())
    return digest.hexdigest()


@contextmanager
def _building(config: ConfigDict, registry: Registry) -> Iterator[None]:
    """One sentence for settings that do not fit together."""
    try:
        yield
    except Exception as error:
        if registry is not REGISTRY or isinstance(error, ConfigError | DataError):
            raise  # of somebody's own code, who will want to see where it failed; or a sentence already
        raise ConfigError(
            f"config.encoder.name={config.encoder.name!r}, config.encoder.width={config.encoder.width} and "
            f"config.data.image_size={config.data.image_size} cannot be built ({one_line(error)}); expected settings "
            "that fit together"
        ) from error


def _rehearse(run: _Run, fresh: TrainState, registry: Registry) -> None:
    """Traces the step for a first batch; what was traced is used again when training begins."""
    stream = batch_stream(run.config, run.source, start_step=0, total_steps=run.plan.total_steps)
    with closing(stream), _building(run.config, registry):
        for batch in stream:
            run.train_step.lower(distributed.replicate(fresh), batch, run.settings)
            break


def _start(run: _Run, fresh: TrainState) -> tuple[TrainState, dict[str, float] | None]:
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


def _train(run: _Run, state: TrainState, unlogged: dict[str, float] | None, profile: Steps | None) -> dict[str, Any]:
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


def _finish(run: _Run, state: TrainState, seconds: float) -> dict[str, Any]:
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


def _newest(run: _Run) -> str:
    steps = run.outputs.checkpoints.steps() if run.outputs is not None else []
    if not steps:
        return "there is no checkpoint yet, so the same command begins anew"
    return f"the newest whole checkpoint is of step {steps[-1]}, from which the same command resumes"


def _describe(run: _Run, start: int) -> str:
    config, plan = run.config, run.plan
    return (
        f"{config.method.name} on {config.data.name} with {config.encoder.name}, mask learning "
        f"{config.meta.estimator if config.mask.learn else 'off'}: steps {start + 1} to {plan.total_steps} "
        f"({plan.steps_per_epoch} per epoch) on {jax.device_count()} {jax.default_backend()} device(s)"
    )
