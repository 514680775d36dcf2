"""The numbers of a configuration that a compiled step takes as arguments: another rate or length is the same program.

Rates, decays, weights and temperatures only take part in arithmetic, so that a step need not be compiled for their
values. What decides shapes, or whether something is computed at all, stays a part of the program. So does what the
code of a plugin sees, which may ask about it in ways that only plain numbers answer.
"""

import json
import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from ml_collections import ConfigDict

from metamask_jax.config import flatten, set_key
from metamask_jax.training import distributed
from metamask_jax.training.kept import Kept
from metamask_jax.training.registry import REGISTRY, Registry, resolve_registry
from metamask_jax.training.step import Step, make_train_step

T = TypeVar("T")
Settings = dict[str, Any]  # numbers by dotted key; `steps_per_epoch` and `total_steps` beside those of a configuration

_LENGTHS = ("steps_per_epoch", "total_steps")
_ALWAYS = (
    "loss.alpha",
    "loss.off_diagonal_weight",
    "mask.learning_rate",
    "mask.weight_decay",
    "meta.head_learning_rate",
    "meta.learning_rate",
    "meta.outer_temperature",
    "optimizer.learning_rate",
)
_OF_METHOD = (
    "method.bank_start",
    "method.concentration",
    "method.epsilon",
    "method.freeze_epochs",
    "method.momentum",
    "method.positive_prior",
    "method.temperature",
)
_OF_OPTIMIZER = ("optimizer.trust_coefficient", "optimizer.weight_decay")
_OF_SCHEDULES = (*_LENGTHS, "optimizer.warmup_epochs")

# What a step does not see: the seed is in the state, the length among the settings, the rest is the host's business.
_NOT_THE_STEP = (
    *("checkpoint.", "data.dir", "data.prefetch", "eval.", "guard.", "init.", "log."),
    *("train.epochs", "train.seed", "train.steps"),
)
# What the encoder in evaluation does not see either.
_NOT_THE_ENCODER = ("data.size", "loss.", "mask.", "meta.", "optimizer.", "train.accumulate", "train.batch_size")
_MOST_MAPS = 0.5  # share of the memory maps that a process may have, which the programs of dozens of runs exhaust


def settings_of(
    config: ConfigDict, *, steps_per_epoch: int, total_steps: int, registry: Registry | None = None
) -> Settings:
    """The numbers that a step of a validated configuration takes as arguments.

    Args:
      config: a validated configuration.
      steps_per_epoch: for the schedules.
      total_steps: of the whole run.
      registry: what the configuration's names stand for; None is ours and `config.plugins`.

    Example:
      >>> from metamask_jax.config import default_config
      >>> from metamask_jax.training.registry import validate
      >>> settings = settings_of(validate(default_config()), steps_per_epoch=10, total_steps=100)
      >>> settings["optimizer.learning_rate"], settings["total_steps"], "train.batch_size" in settings
      (0.001, 100, False)
    """
    numbers = flatten(config) | {"steps_per_epoch": steps_per_epoch, "total_steps": total_steps}
    keys = _arguments(config, resolve_registry(registry, config))
    return {key: numbers[key] for key in keys if numbers[key] is not None}


def make_program(
    config: ConfigDict,
    *,
    steps_per_epoch: int,
    total_steps: int,
    axis_name: str | None = None,
    registry: Registry | None = None,
) -> Any:
    """Builds the step `(state, batch, settings) -> (state, metrics)`.

    The arguments are those of `make_train_step`. Where the settings have a number, it takes the place of the
    configuration's.
    """
    registry = resolve_registry(registry, config)
    length = {"steps_per_epoch": steps_per_epoch, "total_steps": total_steps}

    def program(state: Any, batch: Any, settings: Settings) -> Any:
        present = config.copy_and_resolve_references()
        for key, value in settings.items():
            if key not in _LENGTHS:
                set_key(present, key, value)
        lengths = {key: settings.get(key, length[key]) for key in _LENGTHS}
        step: Step = make_train_step(present, **lengths, axis_name=axis_name, registry=registry)
        return step(state, batch)

    return program


class Programs:
    """What the runs of one process compile, for runs that follow each other: equal programs are compiled once."""

    def __init__(self, folder: pathlib.Path | None = None) -> None:
        """Holds none yet.

        Args:
          folder: where programs outlive the process. Whoever changes functions of this package at run time should give
            none: a program is found there by the sources, not by what has become of them.
        """
        self._folder = folder
        self._built: dict[str, tuple[Registry | None, Any]] = {}

    def step(self, config: ConfigDict, *, registry: Registry | None = None, **lengths: int) -> Any:
        """The step of a validated configuration on all devices, `(state, batch, settings) -> (state, metrics)`.

        Args:
          config: a validated configuration.
          registry: None is ours and `config.plugins`; the object itself tells one registry from another.
          **lengths: `steps_per_epoch` and `total_steps`.

        A run asks for it before it begins: where the process is short of memory maps, all older programs are given up.
        """
        if _share_of_maps() > _MOST_MAPS:
            self._built.clear()
            jax.clear_caches()
        identity = _identity(config, registry, lengths)

        def build() -> Any:
            program = make_program(config, **lengths, axis_name=distributed.AXIS, registry=registry)
            return self.keep(distributed.parallelize(program), f"step {identity}", config, registry)

        return self._once(identity, registry, build)

    def keep(self, function: T, identity: str, config: ConfigDict, registry: Registry | None) -> T | Kept:
        """The function, made to outlive the process if it is of our own code, on the CPU of one host.

        Args:
          function: what `jax.jit` or `jax.pmap` gave.
          identity: everything that tells it from others with the same arguments.
          config: whose plugins may change it, so that it is not kept.
          registry: likewise; None is ours and `config.plugins`.
        """
        ours = registry is None and not config.plugins
        if self._folder is None or not ours or jax.process_count() > 1 or jax.default_backend() != "cpu":
            return function
        return Kept(function, identity, self._folder)

    def evaluation(self, config: ConfigDict, registry: Registry | None, build: Callable[[str], T]) -> T:
        """What evaluates the encoder of a validated configuration: what `build` gave for its like, or gives now.

        `build` gets what tells it from others, for `keep`.
        """
        lengths = dict.fromkeys(_LENGTHS, 0)
        identity = f"evaluation {config.eval.to_json()} {_identity(config, registry, lengths, _NOT_THE_ENCODER)}"
        return self._once(identity, registry, lambda: build(identity))

    def _once(self, key: str, registry: Registry | None, build: Callable[[], T]) -> T:
        if key not in self._built:
            self._built[key] = registry, build()  # the registry too, so that no other one gets its id
        found: T = self._built[key][1]
        return found


def _share_of_maps() -> float:
    """How many of the memory maps that the system allows this process has in use, from 0 to 1."""
    try:
        limit = int(pathlib.Path("/proc/sys/vm/max_map_count").read_text())
        return pathlib.Path("/proc/self/maps").read_bytes().count(b"\n") / limit
    except (OSError, ValueError):
        return 0.0  # no Linux, no such limit


def _identity(
    config: ConfigDict, registry: Registry | None, lengths: dict[str, int], without: tuple[str, ...] = ()
) -> str:
    """What a program is compiled for, as text; `without` are beginnings of keys that it does not see either."""
    arguments = _arguments(config, resolve_registry(registry, config))
    values = {**flatten(config), **lengths}
    static = {
        key: value
        for key, value in values.items()
        if not key.startswith((*_NOT_THE_STEP, *without)) and (key not in arguments or value is None)
    }
    return json.dumps([static, None if registry is None else id(registry)], sort_keys=True, default=repr)


def _arguments(config: ConfigDict, registry: Registry) -> list[str]:
    """Keys of the settings: a plugin's own code gets plain numbers."""

    def ours(kind: str, name: str) -> bool:
        return getattr(registry, kind)[name] is getattr(REGISTRY, kind).get(name)

    keys = [*_ALWAYS]
    keys += _OF_METHOD if ours("methods", config.method.name) else ()
    keys += _OF_OPTIMIZER if ours("optimizers", config.optimizer.name) else ()
    schedules = (config.optimizer.schedule, config.mask.schedule)
    # A method of somebody else's may ask its clock; our own only count with it.
    keys += _OF_SCHEDULES if all(ours("schedules", name) for name in schedules) else ()
    return keys
