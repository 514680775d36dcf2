"""Configurations as files, flags and text."""

import ast
import importlib.util
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from metamask_jax.config.check import require_complete
from metamask_jax.config.defaults import default_config
from metamask_jax.config.keys import flatten, require_known, set_key
from metamask_jax.errors import ConfigError, one_line, shown

_PACKAGE = pathlib.Path(__file__).parents[1]


def config_names() -> list[str]:
    """The configurations that have a name, such as `quickstart`."""
    return sorted(path.stem for path in _folder().glob("[!_]*.py"))


def _folder() -> pathlib.Path:
    """Where the named configurations are: inside an installed package, beside the package in a checkout."""
    installed = _PACKAGE / "configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"


def load_config(source: str) -> ConfigDict:
    """Runs a config file.

    Args:
      source: a name, such as `quickstart`, or the path of a file, such as `configs/quickstart.py`; followed by a colon
        and an argument for `get_config` if it takes one, as in `cifar10_resnet18:paper`.

    Returns:
      The configuration, locked; `validate` checks its values.

    Raises:
      ConfigError: there is no such file, or it does not give a configuration.

    Example:
      >>> load_config("table1:byol,cifar10,conv,alone").method.name
      'byol'
    """
    name, _, argument = source.partition(":")
    path = _folder() / f"{name}.py" if name in config_names() else pathlib.Path(name)
    spec = importlib.util.spec_from_file_location("metamask_config", path) if os.path.isfile(path) else None
    if spec is None or spec.loader is None:
        known = ", ".join(config_names())
        raise ConfigError(f"--config {shown(name)[1:-1]}; expected a Python file or one of {known}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config(*([argument] if argument else []))
    except ConfigError as error:
        raise ConfigError(f"--config {source}: {one_line(error)}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a file must not end the command without a word
        raise ConfigError(f"--config {source}; expected get_config() to work, but: {one_line(error)}") from error
    if not isinstance(config, ConfigDict):
        raise ConfigError(f"--config {source}; expected get_config() to return a ConfigDict, found {shown(config)}")
    try:
        require_complete(config)
    except ConfigError as error:
        raise ConfigError(f"--config {source}: {error}") from error
    return ConfigDict(config).lock()  # one that can be changed, even if it was frozen


def apply_overrides(config: ConfigDict, overrides: Mapping[str, str]) -> ConfigDict:
    """Sets keys such as `train.steps` to values given as text."""
    for key, text in overrides.items():
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # what is no Python is text
            value = {"true": True, "false": False}.get(text.lower(), text)
        set_key(config, key, value)
    return config


def to_json(config: ConfigDict) -> str:
    """The configuration as text that `from_json` reads back."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True)


def from_json(text: str | bytes) -> ConfigDict:
    """Reads what `to_json` wrote; keys this version does not know are refused by name, those left out are defaults.

    Raises:
      ConfigError: it is no such text.
    """
    try:
        found = json.loads(text.decode() if isinstance(text, bytes) else text, object_pairs_hook=_without_repeats)
        keys = flatten(found) if isinstance(found, dict) else None
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"it is no JSON ({one_line(error)}); expected a configuration") from error
    if keys is None:
        raise ConfigError(f"it holds {shown(found)}; expected an object with the sections of a configuration")
    config = default_config()
    for section in found:
        if section not in config:  # refused even if it is empty
            require_known(section)
    for key, value in keys.items():
        set_key(config, key, tuple(value) if isinstance(value, list) else value)
    return config


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; the usual reader would take the last of two values of one key without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ConfigError(f"the key {shown(twice)} is there twice; expected every key once")
    return found


def differences(old: ConfigDict, new: ConfigDict) -> list[str]:
    """One line per key whose value differs, such as `train.seed: 0 -> 1`."""
    before, after = flatten(old), flatten(new)
    return [
        f"{key}: {before.get(key)!r} -> {after.get(key)!r}"
        for key in sorted(before | after)
        if before.get(key) != after.get(key)
    ]
