"""Configurations as files, flags and text."""

import ast
import importlib.util
import json
import pathlib
from collections.abc import Mapping

from ml_collections import ConfigDict

from metamask_jax.config.defaults import default_config
from metamask_jax.config.keys import flatten, set_key
from metamask_jax.errors import ConfigError

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
    spec = importlib.util.spec_from_file_location("metamask_config", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"--config {name}; expected a Python file or one of {', '.join(config_names())}")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config(*([argument] if argument else []))
    except ConfigError as error:
        raise ConfigError(f"--config {source}: {error}") from error
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


def differences(old: ConfigDict, new: ConfigDict) -> list[str]:
    """One line per key whose value differs, such as `train.seed: 0 -> 1`."""
    before, after = flatten(old), flatten(new)
    return [
        f"{key}: {before.get(key)!r} -> {after.get(key)!r}"
        for key in sorted(before | after)
        if before.get(key) != after.get(key)
    ]
