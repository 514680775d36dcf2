"""Features that need not fit into memory: what is computed of all their rows goes chunk by chunk."""

from collections.abc import Callable, Iterator

import numpy as np

from metamask_jax.evaluate.sharding import share_of, total

_CHUNK = 2**24  # numbers looked at at a time


def row_chunks(h: np.ndarray) -> Iterator[slice]:
    """Slices that cover the rows of features [size, dim], each small beside what a machine's memory holds."""
    rows = max(1, _CHUNK // max(1, h.shape[1]))
    return (slice(start, start + rows) for start in range(0, len(h), rows))


def moments(h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance, float64 [dim] each, over the rows of features [size, dim] of all processes.

    In float64, because float32 sums would lose digits.

    Example:
      >>> [x.tolist() for x in moments(np.array([[1.0, 5.0], [3.0, 5.0]]))]
      [[2.0, 5.0], [1.0, 0.0]]
    """
    size = share_of(len(h)).total
    mean = total(_sum(h, lambda part: part)) / size
    return mean, total(_sum(h, lambda part: (part - mean) ** 2)) / size


def all_finite(h: np.ndarray) -> bool:
    """Whether every number of features [size, dim] is finite, on all processes."""
    return not total([sum(not np.isfinite(h[part]).all() for part in row_chunks(h))]).any()


def _sum(h: np.ndarray, of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    found = np.zeros(h.shape[1])
    for part in row_chunks(h):
        found += of(np.asarray(h[part], np.float64)).sum(axis=0)
    return found
