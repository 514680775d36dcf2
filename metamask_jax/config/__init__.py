"""Hyper-parameters: their defaults, the files and flags that change them, and the check of their values.

A config file in `configs/` defines `get_config()`, which returns `default_config()` with what differs changed. On the
command line, `--config configs/NAME.py` names the file, `--config configs/NAME.py:ARGUMENT` passes an argument to its
`get_config`, and `--config.KEY=VALUE` overrides any key.
"""

from metamask_jax.config.check import validate
from metamask_jax.config.defaults import default_config
from metamask_jax.config.files import (
    ConfigError,
    apply_overrides,
    differences,
    flatten,
    from_json,
    load_config,
    to_json,
)
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
    "ConfigError",
    "alone",
    "apply_overrides",
    "default_config",
    "differences",
    "flatten",
    "from_json",
    "load_config",
    "metamask",
    "official",
    "paper",
    "to_json",
    "validate",
    "without_drr",
    "without_meta",
]
