"""Dotted keys such as `train.steps`: how they are read, set, and refused with the key that was probably meant."""

import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from ml_collections import ConfigDict

from metamask_jax.config.defaults import default_config
from metamask_jax.errors import ConfigError, one_line, shown

FREE = "data.options."  # keys under it belong to the dataset, which checks them itself
_LONGEST = 100  # characters of a key; to look for one that is like a longer one would take long

# What other programs call a key, and which of several keys of the same name is meant where the section does not tell.
_ALIASES = {
    "accumulation": "train.accumulate",
    "aug": "data.augmentation",
    "augmentations": "data.augmentation",
    "arch": "encoder.name",
    "backbone": "encoder.name",
    "batch": "train.batch_size",
    "batch_size": "train.batch_size",
    "beta": "method.concentration",
    "bs": "train.batch_size",
    "crop_size": "data.image_size",
    "data_dir": "data.dir",
    "dataset": "data.name",
    "encoder": "encoder.name",
    "grad_accum": "train.accumulate",
    "init": "init.from",
    "init_checkpoint": "init.from",
    "iterations": "train.steps",
    "lambd": "loss.off_diagonal_weight",
    "learning_rate": "optimizer.learning_rate",
    "lr": "optimizer.learning_rate",
    "mask_lr": "mask.learning_rate",
    "max_steps": "train.steps",
    "method": "method.name",
    "model": "encoder.name",
    "momentum": "optimizer.momentum",
    "num_epochs": "train.epochs",
    "num_steps": "train.steps",
    "opt": "optimizer.name",
    "optim": "optimizer.name",
    "optimizer": "optimizer.name",
    "outer_lr": "mask.learning_rate",
    "precision": "train.dtype",
    "pretrained": "init.from",
    "random_seed": "train.seed",
    "rng": "train.seed",
    "schedule": "optimizer.schedule",
    "scheduler": "optimizer.schedule",
    "size": "data.size",
    "tau": "method.temperature",
    "temp": "method.temperature",
    "temperature": "method.temperature",
    "trial_lr": "meta.learning_rate",
    "warmup": "optimizer.warmup_epochs",
    "weights": "init.from",
    "wd": "optimizer.weight_decay",
    "weight_decay": "optimizer.weight_decay",
}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one dict with dotted keys.

    Example:
      >>> flatten({"train": {"steps": 3, "seed": 0}})
      {'train.steps': 3, 'train.seed': 0}
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping | ConfigDict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def set_key(config: ConfigDict, key: str, value: Any) -> None:
    """Sets a dotted key of a locked config.

    `validate` judges the value; refused here are an unknown key, and a value that a ConfigDict would not keep as it is.
    """
    if not key.startswith(FREE):
        require_known(key)
    section, _, name = key.rpartition(".")
    if key.startswith(FREE):
        section, name = FREE.removesuffix("."), require_option(key)
    node = config[section] if section else config
    if name in node and type(node[name]) is type(value) and node[name] == value:
        return  # most keys of a saved configuration are the defaults; to unlock a section takes long
    if type(value) is bool and name in node and node.get_type(name) is float:  # it would become 0.0 or 1.0
        raise ConfigError(f"config.{key}={value}; expected a value of type float")
    try:
        with node.unlocked(), node.ignore_type():
            node[name] = value
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"config.{key}={shown(value)}; expected a plain value, but: {one_line(error)}") from error


def require_option(key: str) -> str:
    """The name of a dataset's option, such as `path` of `data.options.path`; refuses what is no name."""
    name = key.removeprefix(FREE)
    if not name.isidentifier() or len(name) > _LONGEST:
        raise ConfigError(f"config.{shown(key)[1:-1]} is unknown; expected config.{FREE}NAME, NAME an option's name")
    return name


def require_known(key: str) -> None:
    """Refuses a key that no configuration has, naming the one that was probably meant.

    Example:
      >>> require_known("train.lr")
      Traceback (most recent call last):
      metamask_jax.errors.ConfigError: config.train.lr is unknown; the nearest key is config.optimizer.learning_rate
    """
    if key in _known():
        return
    comparable = key.isprintable() and len(key) <= _LONGEST
    nearest = _nearest(key) if comparable else None
    if nearest is not None:
        raise ConfigError(f"config.{key} is unknown; the nearest key is config.{nearest}")
    key = key if comparable else shown(key)[1:-1]
    section = key.split(".")[0]
    inside = [known for known in _known() if known.startswith(f"{section}.")]
    if inside:
        raise ConfigError(f"config.{key} is unknown; expected one of {', '.join(f'config.{name}' for name in inside)}")
    raise ConfigError(f"config.{key} is unknown; expected a key of one of {', '.join(default_config())}")


def _nearest(key: str) -> str | None:
    """The key that was probably meant, or None if nothing is like it."""
    if key in default_config() and key not in _ALIASES:  # a whole section
        return None
    section, _, name = key.rpartition(".")
    if section in _ALIASES:  # `model.width`
        section = _ALIASES[section].partition(".")[0]
        key = f"{section}.{name}"
    longer = [known for known in _known() if known.startswith(key)]
    if section and len(longer) == 1:
        return longer[0]
    names: dict[str, list[str]] = {}
    for known in _known():
        names.setdefault(known.rpartition(".")[2], []).append(known)
    word = _most_alike(name, {*names, *_ALIASES})
    if word is None:
        return _most_alike(key, _known(), cutoff=0.8)
    home = _ALIASES.get(word)
    meant = [*names.get(word, ()), *(names[home.rpartition(".")[2]] if home else ())]
    here = _most_alike(section, {known.rpartition(".")[0] for known in meant})
    if here is not None:
        return next(known for known in meant if known.rpartition(".")[0] == here)
    return home or meant[0]


def _most_alike(word: str, words: Iterable[str], cutoff: float = 0.7) -> str | None:
    return next(iter(difflib.get_close_matches(word, sorted(words), n=1, cutoff=cutoff)), None)


@cache
def _known() -> tuple[str, ...]:
    return tuple(flatten(default_config()))
