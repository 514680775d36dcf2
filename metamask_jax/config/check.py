"""The check of a configuration's keys, types and values."""

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from metamask_jax.config.defaults import default_config
from metamask_jax.config.keys import FREE, flatten, require_known, require_option
from metamask_jax.errors import ConfigError, one_line, shown


def check_values(config: ConfigDict, choices: Mapping[str, Collection[str | None]]) -> None:
    """Checks every key, type and value of a configuration by itself.

    Args:
      config: the configuration.
      choices: the names that are allowed, by key.

    Raises:
      ConfigError: naming the culprit and what is allowed.
    """
    values = require_complete(config)
    for key, allowed in choices.items():
        if values[key] not in allowed:
            raise ConfigError(f"config.{key}={shown(values[key])}; expected one of {', '.join(map(repr, allowed))}")
    for keys, allowed_range in _RANGES.items():
        for key in keys.split():
            value = values[key]
            if value is not None and not allowed_range.fits(value):
                raise ConfigError(f"config.{key}={shown(value)}; expected {allowed_range.expected}")
    if values["train.batch_size"] % values["train.accumulate"]:
        raise ConfigError(
            f"config.train.batch_size={values['train.batch_size']}; expected a multiple of "
            f"config.train.accumulate={values['train.accumulate']}"
        )
    if not (values["loss.drr"] or values["loss.alpha"] > 0):
        raise ConfigError("config.loss.drr=False with config.loss.alpha=0; expected at least one of the two losses")
    if values["meta.estimator"] == "lookahead":
        for key, needed in (("train.accumulate", 1), ("meta.every", 1), ("meta.scope", "all"), ("meta.outer", "batch")):
            if values[key] != needed:
                raise ConfigError(
                    f"config.{key}={values[key]!r}; expected {needed!r} for config.meta.estimator='lookahead', which "
                    "learns from every whole step"
                )


def require_complete(config: ConfigDict) -> dict[str, Any]:
    """The values of a configuration by key, of which none is missing, unknown, or of another type than its default.

    Options of the dataset are checked to be plain values, and are not among those returned.
    """
    if not isinstance(config, ConfigDict):
        raise ConfigError(f"config={shown(config)}; expected a ConfigDict such as default_config() gives")
    try:
        _require_tree(config, _defaults(), "")
        found = flatten(config)
    except RecursionError as error:
        raise ConfigError("config is nested too deeply; expected the sections of default_config()") from error
    for key, value in found.items():
        if key.startswith(FREE):
            require_option(key)
            _require_plain(key, value)
        else:
            require_known(key)
    return {key: value for key, value in found.items() if not key.startswith(FREE)}


@cache
def _defaults() -> ConfigDict:
    """What values are compared with; to make it anew for every check would take longer than the check."""
    return default_config()


def _require_tree(node: ConfigDict, defaults: ConfigDict, prefix: str) -> None:
    """Refuses a section, or a key within it, that is missing or of another type than its default."""
    for name in defaults:
        key = f"{prefix}{name}"
        if name not in node:
            raise ConfigError(f"config.{key} is missing; expected all keys that default_config() has")
        try:
            value = node[name]
        except Exception as error:  # a reference to what has no value
            raise ConfigError(f"config.{key} has no value ({one_line(error)}); expected one") from error
        default = defaults[name]
        if not isinstance(default, ConfigDict):
            _require_type(key, value, defaults.get_type(name), optional=default is None)
        elif isinstance(value, ConfigDict):
            _require_tree(value, default, f"{key}.")
        else:
            raise ConfigError(f"config.{key}={shown(value)}; expected a section, as default_config() has")


def _require_type(key: str, value: Any, expected: type, *, optional: bool) -> None:
    found = type(value)
    fits = found is expected or (found is int and expected is float) or (value is None and optional)
    if found is tuple and fits:
        fits = all(type(item) is (str if key == "plugins" else int) for item in value)
    if not fits:
        either = " or None" if optional else ""
        raise ConfigError(f"config.{key}={shown(value)}; expected a value of type {expected.__name__}{either}")


def _require_plain(key: str, value: Any) -> None:
    """Refuses an option that config.json could not hold."""
    items = value if type(value) in (tuple, list) else [value]
    for item in items:
        plain = item is None or type(item) in (str, bool, int, float)
        if not plain or (type(item) in (int, float) and not abs(item) < 2**63):
            raise ConfigError(f"config.{key}={shown(value)}; expected text, a finite number, True, False, or None")


class _Range(NamedTuple):
    """Which values a key may have, and how a message says so."""

    fits: Callable[[Any], bool]
    expected: str


def _whole(least: int, most: int) -> _Range:
    return _Range(lambda x: least <= x <= most, f"a whole number >= {least}, up to {most}")


_STEPS = 2**31 - 1  # counted in int32
_PICTURES = 2**24  # rows of an array in memory
_UNITS = 2**20  # width of a layer
_LAYERS = 64
_SIDE = 2**13  # of a picture
_SMALL, _LARGE = 1e-30, 1e30  # float32 holds these and what is computed from them

# Of every number and every free text. What is larger would be refused hours later, by the memory or by a NaN.
_RANGES = {
    "train.batch_size": _whole(2, _PICTURES),
    "train.steps meta.every checkpoint.every_steps checkpoint.keep_last checkpoint.keep_every log.every_steps "
    "guard.max_skipped data.size eval.size eval.k init.step": _whole(1, _STEPS),
    "train.epochs": _whole(1, 10**6),
    "train.accumulate eval.batch_size method.queue_size method.negatives loss.chunk_size": _whole(1, _PICTURES),
    "method.bank_size": _whole(0, _PICTURES),
    "method.predictor method.num_classes method.prototypes encoder.features": _whole(1, _UNITS),
    "data.image_size data.small_size": _whole(1, _SIDE),
    "data.views meta.unroll": _whole(1, 64),
    "data.small_views": _whole(0, 64),
    "data.prefetch method.iterations meta.neumann_terms": _whole(1, 1000),
    "eval.every_epochs": _whole(0, 10**6),
    "eval.least_times": _whole(0, 1000),
    "train.seed": _Range(lambda x: 0 <= x < 2**31, "a whole number in [0, 2**31)"),
    "method.head loss.drr_head": _Range(
        lambda widths: 1 <= len(widths) <= _LAYERS and all(1 <= width <= _UNITS for width in widths),
        f"a non-empty tuple of whole numbers >= 1, up to {_LAYERS} of up to {_UNITS}",
    ),
    "encoder.width": _Range(lambda x: 1e-3 <= x <= 64, "a number > 0, from 0.001 to 64"),
    "method.temperature method.epsilon meta.outer_temperature optimizer.trust_coefficient eval.temperature": _Range(
        lambda x: _SMALL <= x <= _LARGE, f"a number > 0, from {_SMALL} to {_LARGE}"
    ),
    "meta.labels": _Range(lambda x: 0 < x <= _PICTURES, f"a share in (0, 1], or a number of images up to {_PICTURES}"),
    "data.crop_split": _Range(lambda x: 0.05 < x < 1, "a number in (0.05, 1)"),
    "method.bank_start method.freeze_epochs method.concentration loss.alpha loss.off_diagonal_weight "
    "mask.learning_rate mask.weight_decay meta.learning_rate meta.head_learning_rate optimizer.learning_rate "
    "optimizer.weight_decay optimizer.warmup_epochs guard.min_feature_std guard.min_effective_rank": _Range(
        lambda x: 0 <= x <= _LARGE, f"a number >= 0, up to {_LARGE}"
    ),
    "mask.momentum method.dropout method.positive_prior optimizer.momentum": _Range(
        lambda x: 0 <= x < 1, "a number in [0, 1)"
    ),
    "method.momentum": _Range(lambda x: 0 <= x <= 1, "a number in [0, 1]"),
    "data.name data.dir init.from log.wandb_project": _Range(
        lambda text: text.strip() and text.isprintable() and len(text) < 4096, "one line of text, up to 4095 characters"
    ),
}
RANGED = frozenset(" ".join(_RANGES).split())
"""The keys whose values have a range; a test finds the ones that were forgotten."""
