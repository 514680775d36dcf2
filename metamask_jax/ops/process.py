"""Settings of the whole process that make training on a CPU faster."""

import ctypes
import os
import sys
from importlib.metadata import version

# mallopt's names for what is set below (malloc.h).
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
# XLA's newer code generator takes twice as long for the same speed, on the programs here.
_XLA_FLAG, _XLA_VALUE = "--xla_cpu_use_fusion_emitters", "false"
_XLA_RELEASE = "0.10."  # XLA aborts on a flag it does not know, and any release may drop one


def tune_cpu_process() -> None:
    """Sets what helps on a CPU and harms nowhere else; to be called before anything uses JAX.

    A flag that is already in `XLA_FLAGS` is left as it is.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if _XLA_FLAG not in flags and version("jaxlib").startswith(_XLA_RELEASE):
        os.environ["XLA_FLAGS"] = f"{flags} {_XLA_FLAG}={_XLA_VALUE}".strip()
    keep_freed_memory()


def keep_freed_memory() -> bool:
    """Makes this process keep the memory it frees.

    XLA allocates the temporary buffers of a step, gigabytes of them, anew in every step. glibc takes such blocks from
    the system and returns them at once, so that every step pays for clearing all of its pages. Nothing changes where
    the C library is another one.

    Returns:
        Whether the C library took the settings.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    # One heap that never shrinks, for blocks of any size and all threads.
    return all([mallopt(_ARENA_MAX, 1), mallopt(_MMAP_MAX, 0), mallopt(_TRIM_THRESHOLD, -1)])
