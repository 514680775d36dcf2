"""What a run is before its first step: everything found and built before anything is written."""

import dataclasses
import hashlib
import importlib.metadata
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from metamask_jax import kernels
from metamask_jax.config import apply_overrides, flatten
from metamask_jax.core.places import Place
from metamask_jax.data.in_memory import ArraySource
from metamask_jax.data.sources import DATA_UNCHANGED_BY, Source, open_configured
from metamask_jax.errors import ConfigError, DataError, one_line
from metamask_jax.training import distributed, processes
from metamask_jax.training.initial import first_state
from metamask_jax.training.logging import check_libraries
from metamask_jax.training.monitor import Evaluator, Monitor, rounding_warning
from metamask_jax.training.recorder import Outputs, Plan
from metamask_jax.training.registry import REGISTRY, Registry, resolve_registry, validate
from metamask_jax.training.saved_steps import has_checkpoints
from metamask_jax.training.settings import Programs, settings_of
from metamask_jax.training.state import TrainState, has_judge, init_state
from metamask_jax.training.stream import batch_stream, labelled_source
from metamask_jax.training.workdir import check_workdir
from metamask_jax.version import __version__

_log = logging.getLogger(__name__)
_FINGERPRINT_IMAGES = 64


@dataclasses.dataclass(frozen=True)
class PreparedRun:
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


def prepare(
    config: ConfigDict,
    workdir: Place,
    registry: Registry | None,
    make_evaluator: Callable[[ConfigDict, Registry], Evaluator] | None,
    programs: Programs,
    *,
    accept_changes: bool,
    restart: bool,
) -> tuple[PreparedRun, TrainState]:
    """Finds everything and builds everything before anything is written; the arguments are those of `train`.

    Returns:
      The run, still without outputs, and the state before its first step, on the host.

    Raises:
      ConfigError, DataError, CheckpointError: it cannot be run as it is.
    """
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
        labelled = processes.main_first(lambda: labelled_source(config))  # which refuses what cannot judge
        if distributed.is_main() and np.bincount(labelled.labels).max() < 2:
            _log.warning(
                "config.meta.labels=%g gives one image of every class, so that the mask stays as it is: images of a "
                "class judge by each other",
                config.meta.labels,
            )
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
    run = PreparedRun(config, workdir, source, plan, monitor, initial, step, settings)
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


def _rehearse(run: PreparedRun, fresh: TrainState, registry: Registry) -> None:
    """Traces the step for a first batch; what was traced is used again when training begins."""
    stream = batch_stream(run.config, run.source, start_step=0, total_steps=run.plan.total_steps)
    with closing(stream), _building(run.config, registry):
        for batch in stream:
            run.train_step.lower(distributed.replicate(fresh), batch, run.settings)
            break
