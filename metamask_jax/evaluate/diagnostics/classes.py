"""Which dimensions stand for which class, and how alike the dimensions are (paper Fig. 1a)."""

import numpy as np


def class_means(h: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Mean feature of every class, float64 [classes, dim]; NaN for a class without rows.

    Example:
      >>> class_means(np.array([[1.0], [3.0], [5.0]]), np.array([0, 0, 1])).tolist()
      [[2.0], [5.0]]

    Args:
      h: features [size, dim].
      labels: int [size], each at least 0.
    """
    labels = _checked(h, labels)
    counts = np.bincount(labels)
    sums = np.zeros((len(counts), h.shape[1]))
    np.add.at(sums, labels, h)
    with np.errstate(invalid="ignore"):
        return sums / counts[:, None]


def class_dimension_map(h: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How far each class's mean is from that of all rows, in standard deviations of the dimension [classes, dim].

    Zero where a dimension is constant; arguments as for `class_means`.
    """
    mean, deviation = np.mean(h, axis=0, dtype=np.float64), np.std(h, axis=0, dtype=np.float64)
    constant = deviation <= 1e-6 * np.abs(mean)
    return (class_means(h, labels) - mean) / np.where(constant, np.inf, deviation)


def dimension_similarity(h: np.ndarray) -> np.ndarray:
    """Cosine [dim, dim] of the dimensions of a batch of features [size, dim], each a vector over the batch.

    Unlike a correlation it is not centred; zero where a dimension is zero throughout.
    """
    unit = unit_length(h.T)
    return unit @ unit.T


def unit_length(z: np.ndarray) -> np.ndarray:
    """Vectors [..., dim] scaled to length one; zeros stay. In float64, where `core.arrays.unit_norm` keeps the dtype.

    Example:
      >>> unit_length(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
      [[0.6, 0.8], [0.0, 0.0]]
    """
    z = np.asarray(z, np.float64)
    norms = np.linalg.norm(z, axis=-1, keepdims=True)
    return z / np.where(norms > 0, norms, 1.0)


def _checked(h: np.ndarray, labels: np.ndarray) -> np.ndarray:
    labels = np.asarray(labels)
    if h.ndim != 2 or labels.shape != h.shape[:1]:
        raise ValueError(f"shapes {h.shape} and {labels.shape}; expected features (size, dim) and labels (size,)")
    if labels.size == 0 or labels.min() < 0:
        raise ValueError(f"labels {labels[:1].tolist()}...; expected at least one, and none below 0")
    return labels
