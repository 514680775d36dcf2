"""What the names in a configuration stand for, and the check of a configuration against them."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import optax
from ml_collections import ConfigDict

from metamask_jax.augment import PRESETS, Preset, color_space
from metamask_jax.config import check_values, from_json, set_key, to_json
from metamask_jax.core.longer_trials import LONGER_TRIALS
from metamask_jax.core.mask import ACTIVATIONS
from metamask_jax.core.meta import TRAINING_ESTIMATORS
from metamask_jax.errors import ConfigError, one_line, shown
from metamask_jax.methods import METHODS, Recipe
from metamask_jax.models import ENCODERS, INITIALIZERS, STEMS, Encoder
from metamask_jax.training.optimizers import OPTIMIZERS, SCHEDULES, ScheduleShape


@dataclasses.dataclass(frozen=True)
class Registry:
    """Methods, encoders, augmentations, optimisers and schedules by the names that a configuration calls them.

    Registries do not change: `extended` gives a new one, to be passed as `registry=` to whatever reads a configuration.

    Attributes:
      methods: `config.method.name`.
      encoders: `config.encoder.name`; constructors with the arguments of `models.make_encoder`.
      augmentations: `config.data.augmentation`; functions of the picture size.
      optimizers: `config.optimizer.name`; `(config.optimizer, learning_rate, decayed=...)` to an optax transformation.
      schedules: `config.optimizer.schedule` and `config.mask.schedule`; `(epoch, epochs)` to a factor.
    """

    methods: Mapping[str, Recipe]
    encoders: Mapping[str, Callable[..., Encoder]]
    augmentations: Mapping[str, Preset]
    optimizers: Mapping[str, Callable[..., optax.GradientTransformation]]
    schedules: Mapping[str, ScheduleShape]

    def extended(self, **more: Mapping[str, Any]) -> "Registry":
        """This registry and more entries; an entry of the same name takes the place of the present one.

        Example:
          >>> import optax
          >>> mine = REGISTRY.extended(optimizers={"lion": lambda config, rate, decayed: optax.lion(rate)})
          >>> "lion" in mine.optimizers, "lion" in REGISTRY.optimizers
          (True, False)
        """
        return dataclasses.replace(self, **{kind: {**getattr(self, kind), **entries} for kind, entries in more.items()})


REGISTRY = Registry(METHODS, ENCODERS, PRESETS, OPTIMIZERS, SCHEDULES)
"""What comes with this package."""


def registry_of(config: ConfigDict) -> Registry:
    """Our registry, extended by the plugins of a configuration in turn.

    A plugin is a module with a function `register(registry) -> registry`. Its name is part of the configuration, so
    whatever opens the working directory later finds the same parts.
    """
    registry = REGISTRY
    plugins = config.get("plugins") if isinstance(config, ConfigDict) else None
    plugins = plugins if isinstance(plugins, tuple) else ()  # anything else is refused by `check_values`
    for name in plugins:
        try:
            registry = importlib.import_module(name).register(registry)
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"config.plugins={shown(plugins)}; expected modules with register(registry) -> registry, but "
                f"{shown(name)[1:-1]}: {one_line(error)}"
            ) from error
        if not isinstance(registry, Registry):
            raise ConfigError(f"config.plugins={shown(plugins)}; expected register() of {name} to return a Registry")
    return registry


def resolve_registry(registry: Registry | None, config: ConfigDict) -> Registry:
    """The registry that is given, or where none is that of the configuration.

    Raises:
      ConfigError: the configuration is none.
      TypeError: the registry is none.
    """
    if not isinstance(config, ConfigDict):
        raise ConfigError(f"config={shown(config)}; expected a ConfigDict such as default_config() gives")
    if registry is None:
        return registry_of(config)
    if not isinstance(registry, Registry):
        raise TypeError(f"registry={shown(registry)}; expected a Registry such as REGISTRY.extended(...), or None")
    return registry


def validate(config: ConfigDict, registry: Registry | None = None) -> ConfigDict:
    """Checks every key, type and value, and fills in the method's own defaults.

    Args:
      config: the configuration; it is not changed.
      registry: what its names may be; None is ours and `config.plugins`.

    Returns:
      A complete, locked copy.

    Raises:
      ConfigError: naming the culprit and what is allowed.
    """
    registry = resolve_registry(registry, config)
    check_values(
        config,
        {
            "data.augmentation": registry.augmentations,
            "encoder.name": registry.encoders,
            "encoder.init": (None, *INITIALIZERS),
            "encoder.stem": STEMS,
            "eval.dtype": (None, "float32", "bfloat16"),
            "init.parts": ("encoder", "all"),
            "method.name": registry.methods,
            "mask.activation": ACTIVATIONS,
            "mask.schedule": registry.schedules,
            "meta.estimator": (*TRAINING_ESTIMATORS, "exact_recomputed", *LONGER_TRIALS),
            "meta.outer": ("batch", "next", "views", "labels"),
            "meta.outer_augmentation": [None, *registry.augmentations],
            "meta.outer_loss": ("neighbors", "linear"),
            "meta.scope": ("all", "head"),
            "meta.trial": ("gradient", "optimizer"),
            "optimizer.name": registry.optimizers,
            "optimizer.schedule": registry.schedules,
            "train.dtype": ("float32", "bfloat16"),
            "train.precision": ("default", "high", "highest"),
            "train.kernels": ("auto", "native", "xla"),
        },
    )
    return _with_method(from_json(to_json(config)), registry).lock()


def _with_method(config: ConfigDict, registry: Registry) -> ConfigDict:
    """Fills in what the method leaves to its own defaults, and checks what it needs."""
    recipe = registry.methods[config.method.name]
    for key, value in recipe.defaults.items():
        if config.method[key] is None:
            set_key(config, f"method.{key}", value)
    needed = max(recipe.min_views, 2 if config.loss.drr else 1)
    if config.data.views < needed:
        raise ConfigError(
            f"config.data.views={config.data.views}; expected at least {needed} for config.method.name="
            f"{config.method.name!r} with config.loss.drr={config.loss.drr}"
        )
    if config.data.small_views and not recipe.multi_crop:
        allowed = ", ".join(repr(name) for name, other in registry.methods.items() if other.multi_crop)
        raise ConfigError(
            f"config.data.small_views={config.data.small_views}; expected 0 for config.method.name="
            f"{config.method.name!r}: only {allowed} can use small views"
        )
    found = color_space(registry.augmentations[config.data.augmentation](config.data.image_size))
    if recipe.color_space not in (None, found):
        suitable = [
            name
            for name, preset in registry.augmentations.items()
            if color_space(preset(config.data.image_size)) == recipe.color_space
        ]
        raise ConfigError(
            f"config.data.augmentation={config.data.augmentation!r}; expected one of {', '.join(map(repr, suitable))} "
            f"for config.method.name={config.method.name!r}, whose encoders see {recipe.color_space} channels"
        )
    _require_encoder(config, recipe, registry)
    if recipe.color_space == "lab" and config.encoder.features is not None:
        raise ConfigError(
            f"config.encoder.features={config.encoder.features}; expected None for config.method.name="
            f"{config.method.name!r}, whose two encoders have a half of the features each"
        )
    recipe.check(config)
    return config


def _require_encoder(config: ConfigDict, recipe: Recipe, registry: Registry) -> None:
    """Refuses what the encoder cannot be built with, such as pictures too small for it."""
    try:
        recipe.encoder(
            config.encoder.name,
            width=config.encoder.width,
            stem=config.encoder.stem,
            image_size=config.data.image_size,
            dtype=config.train.dtype,
            axis_name=None,
            remat=config.train.remat,
            init=config.encoder.init,
            encoders=registry.encoders,
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"config.encoder.name={config.encoder.name!r} with config.data.image_size={config.data.image_size}: "
            f"{one_line(error)}"
        ) from error
