"""The check of a configuration's keys, types and values."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ml_collections import ConfigDict

from metamask_jax.config.defaults import default_config
from metamask_jax.config.keys import FREE, flatten, require_known
from metamask_jax.errors import ConfigError


def check_values(config: ConfigDict, choices: Mapping[str, Collection[str]]) -> None:
    """Checks every key, type and value of a configuration by itself.

    Args:
      config: the configuration.
      choices: the names that are allowed, by key.

    Raises:
      ConfigError: naming the culprit and what is allowed.
    """
    values = {key: value for key, value in flatten(config).items() if not key.startswith(FREE)}
    defaults = default_config()
    for key, value in values.items():
        require_known(key)
        _require_type(defaults, key, value)
    for key, allowed in choices.items():
        if values[key] not in allowed:
            raise ConfigError(f"config.{key}={values[key]!r}; expected one of {', '.join(map(repr, allowed))}")
    for keys, (fits, expected) in _BOUNDS.items():
        for key in keys.split():
            value = values[key]
            smallest = min(value, default=0) if isinstance(value, tuple) else value
            if smallest is not None and not fits(smallest):
                raise ConfigError(f"config.{key}={value!r}; expected {expected}")
    if values["train.batch_size"] % values["train.accumulate"]:
        raise ConfigError(
            f"config.train.batch_size={values['train.batch_size']}; expected a multiple of "
            f"config.train.accumulate={values['train.accumulate']}"
        )
    if not (values["loss.drr"] or values["loss.alpha"] > 0):
        raise ConfigError("config.loss.drr=False with config.loss.alpha=0; expected at least one of the two losses")
    if values["meta.estimator"] == "lookahead":
        for key, needed in (("train.accumulate", 1), ("meta.every", 1), ("meta.scope", "all")):
            if values[key] != needed:
                raise ConfigError(
                    f"config.{key}={values[key]!r}; expected {needed!r} for config.meta.estimator='lookahead', which "
                    "learns from every whole step"
                )


_BOUNDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "train.batch_size": (lambda x: x >= 2, "a whole number >= 2"),
    "train.epochs train.steps train.accumulate data.size data.image_size data.views data.prefetch meta.every "
    "data.small_size loss.chunk_size method.predictor method.queue_size method.num_classes method.prototypes "
    "method.iterations method.negatives "
    "checkpoint.every_steps checkpoint.keep_last checkpoint.keep_every eval.k eval.batch_size eval.size "
    "guard.max_skipped log.every_steps": (lambda x: x >= 1, "a whole number >= 1"),
    "method.head loss.drr_head": (lambda x: x >= 1, "a non-empty tuple of whole numbers >= 1"),
    "data.small_views method.bank_size eval.every_epochs": (lambda x: x >= 0, "a whole number >= 0"),
    "train.seed": (lambda x: 0 <= x < 2**31, "a whole number in [0, 2**31)"),
    "encoder.width method.temperature method.epsilon optimizer.trust_coefficient eval.temperature": (
        lambda x: x > 0,
        "a number > 0",
    ),
    "data.crop_split": (lambda x: 0.05 < x < 1, "a number in (0.05, 1)"),
    "method.bank_start method.freeze_epochs "
    "method.concentration loss.alpha loss.off_diagonal_weight mask.learning_rate mask.weight_decay meta.learning_rate "
    "meta.head_learning_rate optimizer.learning_rate optimizer.weight_decay optimizer.warmup_epochs "
    "guard.min_feature_std guard.min_effective_rank": (lambda x: x >= 0, "a number >= 0"),
    "mask.momentum method.dropout method.positive_prior optimizer.momentum": (
        lambda x: 0 <= x < 1,
        "a number in [0, 1)",
    ),
    "method.momentum": (lambda x: 0 <= x <= 1, "a number in [0, 1]"),
}


def _require_type(defaults: ConfigDict, key: str, value: Any) -> None:
    *parents, name = key.split(".")
    node = defaults
    for parent in parents:
        node = node[parent]
    expected = node.get_type(name)
    found = type(value)
    fits = found is expected or (found is int and expected is float) or (value is None and node[name] is None)
    if found is tuple and fits:
        fits = all(type(item) is (str if key == "plugins" else int) for item in value)
    if not fits:
        raise ConfigError(f"config.{key}={value!r}; expected a value of type {expected.__name__}")
