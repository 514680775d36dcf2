"""The rows that are held out to choose hyper-parameters on."""

import numpy as np


def held_out_rows(size: int, fraction: float, seed: int) -> np.ndarray:
    """Marks a random part of the rows, bool [size]: at least one of them, and not all.

    Example:
      >>> int(held_out_rows(10, 0.2, seed=0).sum())
      2
    """
    count = round(fraction * size)
    if not 0 < count < size:
        raise ValueError(
            f"held_out_fraction={fraction} of {size} rows; expected at least one row held out and one left"
        )
    held_out = np.zeros(size, bool)
    held_out[np.random.default_rng(seed).permutation(size)[:count]] = True
    return held_out
