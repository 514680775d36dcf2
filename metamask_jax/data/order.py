"""The order of the examples, as a pure function of the step.

There is no iterator state: any process can compute any step's batch, so resuming is exact and the order does not
depend on how many devices or processes share the batch.
"""

import functools

import numpy as np

from metamask_jax.errors import DataError


def steps_per_epoch(size: int, batch_size: int) -> int:
    """Returns the number of whole batches in `size` examples; the remainder of an epoch is dropped.

    Example:
      >>> steps_per_epoch(size=10, batch_size=4)
      2
    """
    if not 1 <= batch_size <= size:
        raise DataError(f"{batch_size=}; expected 1 to {size}, the number of examples (config.train.batch_size)")
    return size // batch_size


def batch_indices(seed: int, step: int, batch_size: int, size: int) -> np.ndarray:
    """Returns the examples of one global batch.

    Each epoch is a fresh permutation of the set, so that an example comes at most once per epoch.

    Args:
      seed: of the run, at least 0.
      step: counted from 0 over the whole run.
      batch_size: global batch size, over all devices and processes.
      size: number of examples in the set.

    Returns:
      Indices into the set, int64 [batch_size].

    Example:
      >>> sorted(i for step in (4, 5) for i in batch_indices(seed=7, step=step, batch_size=3, size=6).tolist())
      [0, 1, 2, 3, 4, 5]
    """
    if seed < 0 or step < 0:
        raise ValueError(f"{seed=}, {step=}; expected both to be at least 0")
    epoch, position = divmod(step, steps_per_epoch(size, batch_size))
    return _permutation(seed, epoch, size)[position * batch_size : (position + 1) * batch_size].copy()


@functools.lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    """Returns the order of one epoch, int64 [size]."""
    # NumPy promises the raw bits of a bit generator in all versions, but not what Generator.permutation makes of them.
    keys = np.random.Philox(np.random.SeedSequence((seed, epoch))).random_raw(size)
    return np.argsort(keys, kind="stable")
