"""Which kernels run on a CPU: ours in native code, or XLA's own operations alone.

The environment variable `METAMASK_KERNELS`, "native" or "xla", decides. Where it is not set, `use` does.
"""

import os
from functools import cache

import jax

from metamask_jax.errors import ConfigError

_VARIABLE = "METAMASK_KERNELS"
# A value that JAX watches: programs that were compiled for another one are compiled anew.
_chosen = jax.make_user_context("auto")


def use(name: str) -> None:
    """Chooses the kernels of this process; the environment variable `METAMASK_KERNELS` has the last word.

    Example:
      >>> use("xla")   # nothing of the native kernels is even imported from here on
      >>> use("auto")

    Args:
      name: "native" for kernels in native code, "xla" for XLA's own, "auto" for native ones where they can run.

    Raises:
      ConfigError: for any other name, or another value of the environment variable.
    """
    if name not in ("auto", "native", "xla"):
        raise ConfigError(f"kernels={name!r}; expected 'auto', 'native' or 'xla'")
    _from_environment()
    _chosen.set_global(name)


def has_native() -> bool:
    """Whether programs for the CPU of this machine run on native kernels.

    Raises:
      ConfigError: if they must but cannot, or if the environment variable has an unknown value.
    """
    wanted = _from_environment() or _chosen.value
    if wanted == "xla":
        return False
    if wanted == "native" and not _can_run():
        raise ConfigError(
            "kernels='native', but llvmlite is missing, or the kernels are not made for this processor or this version "
            "of XLA; expected 'auto' or 'xla'"
        )
    return _can_run()


def _from_environment() -> str | None:
    name = os.environ.get(_VARIABLE) or None  # an empty variable counts as none
    if name not in (None, "native", "xla"):
        raise ConfigError(f"{_VARIABLE}={name!r}; expected 'native' or 'xla'")
    return name


@cache
def _can_run() -> bool:
    """Whether there is a compiler, and a processor that the native kernels are made for."""
    try:
        from metamask_jax.kernels.native import machine
    except ImportError:
        return False
    return machine() is not None
