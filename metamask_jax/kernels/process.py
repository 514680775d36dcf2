"""What holds for the whole process: its cores, and settings that make training on a CPU start and run faster."""

import ctypes
import gc
import os
import sys

# mallopt's names for what is set below (malloc.h).
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8


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


def collect_rarely() -> None:
    """Makes this process look for reference cycles less often.

    Tracing a step and writing its kernels makes millions of small objects that live as long as their program; Python
    would look through them again and again, an eighth of the time to the first step.
    """
    gc.set_threshold(50_000, 20, 100)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
