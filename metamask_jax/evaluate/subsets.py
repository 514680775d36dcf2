"""Random parts of a labelled set: the rows held out to choose hyper-parameters on, and the few labels of a protocol."""

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


def stratified_subset(labels: np.ndarray, *, fraction: float, seed: int) -> np.ndarray:
    """Rows, in order, of a random part of every class: the fraction rounded, and at least one.

    Example:
      >>> labels = np.array([0] * 20 + [1] * 10 + [2])
      >>> labels[stratified_subset(labels, fraction=0.2, seed=0)].tolist()
      [0, 0, 0, 0, 1, 1, 2]
    """
    random = np.random.default_rng(seed)
    parts = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        parts.append(random.permutation(rows)[: max(1, round(fraction * len(rows)))])
    return np.sort(np.concatenate(parts))
