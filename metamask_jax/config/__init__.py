"""Hyper-parameters: their defaults, the files and flags that change them, and the check of their values.

A config file defines `get_config()`, which returns `default_config()` with what differs changed. On the command line,
`--config NAME` is the file of that name in `configs/`, `--config FILE.py` any other, `--config NAME:ARGUMENT` passes an
argument to its `get_config`, and `--config.KEY=VALUE` overrides any key.
"""

from metamask_jax.config.check import check_values
from metamask_jax.config.defaults import default_config
from metamask_jax.config.files import apply_overrides, config_names, differences, from_json, load_config, to_json
from metamask_jax.config.keys import flatten, set_key
from metamask_jax.config.variants import (
    VARIANTS,
    alone,
    metamask,
    official,
    paper,
    without_drr,
    without_meta,
)

__all__ = [
    "VARIANTS",
    "alone",
    "apply_overrides",
    "check_values",
    "config_names",
    "default_config",
    "differences",
    "flatten",
    "from_json",
    "load_config",
    "metamask",
    "official",
    "paper",
    "set_key",
    "to_json",
    "without_drr",
    "without_meta",
]
