"""Random parts of a labelled set, drawn class by class."""

import numpy as np


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
