"""Configurations as files, flags and text."""

import ast
import difflib
import importlib.util
import json
import pathlib
from collections.abc import Mapping
from functools import cache
from typing import Any

from ml_collections import ConfigDict

from metamask_jax.config.defaults import default_config
from metamask_jax.errors import ConfigError

FREE = "data.options."  # keys under it belong to the dataset, which checks them itself


def load_config(source: str) -> ConfigDict:
    """Runs a config file, given as `path.py` or `path.py:argument`."""
    path, _, argument = source.partition(":")
    spec = importlib.util.spec_from_file_location("metamask_config", path)
    if not pathlib.Path(path).is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"--config {path}; expected an existing Python file, such as configs/quickstart.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config(*([argument] if argument else []))
    except Exception as error:
        raise ConfigError(f"--config {source}; expected get_config() to work, but: {error}") from error
    if not isinstance(config, ConfigDict):
        raise ConfigError(f"--config {source}; expected get_config() to return a ConfigDict, found {config!r}")
    return config.lock()


def apply_overrides(config: ConfigDict, overrides: Mapping[str, str]) -> ConfigDict:
    """Sets keys such as `train.steps` to values given as text."""
    for key, text in overrides.items():
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = {"true": True, "false": False}.get(text.lower(), text)
        set_key(config, key, value)
    return config


def to_json(config: ConfigDict) -> str:
    """The configuration as text that `from_json` reads back."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True)


def from_json(text: str) -> ConfigDict:
    """Reads what `to_json` wrote; keys this version does not know are refused by name."""
    config = default_config()
    for key, value in flatten(json.loads(text)).items():
        set_key(config, key, tuple(value) if isinstance(value, list) else value)
    return config


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one dict with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping | ConfigDict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def differences(old: ConfigDict, new: ConfigDict) -> list[str]:
    """One line a key whose value differs, such as `train.seed: 0 -> 1`."""
    before, after = flatten(old), flatten(new)
    return [
        f"{key}: {before.get(key)!r} -> {after.get(key)!r}"
        for key in sorted(before | after)
        if before.get(key) != after.get(key)
    ]


def set_key(config: ConfigDict, key: str, value: Any) -> None:
    """Sets a dotted key of a locked config. `validate` judges the value; only an unknown key is refused here."""
    if not key.startswith(FREE):
        require_known(key)
    *parents, name = key.split(".")
    node = config
    for parent in parents:
        node = node[parent]
    with node.unlocked(), node.ignore_type():
        node[name] = value


def require_known(key: str) -> None:
    """Refuses a key that no configuration has, naming the nearest one that is."""
    if key not in _known():
        nearest = difflib.get_close_matches(key, sorted(_known()), n=1, cutoff=0.0)[0]
        raise ConfigError(f"config.{key} is unknown; the nearest key is config.{nearest}")


@cache
def _known() -> frozenset[str]:
    return frozenset(flatten(default_config()))
