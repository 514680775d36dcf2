"""Accuracies, intervals and counts from a classifier's scores on a test set."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

_NORMAL_95 = 1.959963984540054  # 95 % of a normal distribution are within so many standard deviations


def top_k_accuracy(scores: np.ndarray, labels: np.ndarray, *, k: int) -> float:
    """Fraction in [0, 1] of rows whose class is among the k with the highest scores, the lowest class of equals first.

    A class scored minus infinity, such as one without a neighbour, is never among them.

    Example:
      >>> top_k_accuracy(np.array([[0.1, 0.7, 0.2], [0.5, 0.1, 0.4]]), np.array([2, 2]), k=2)
      1.0
    """
    own = scores[np.arange(len(labels)), labels][:, None]
    before = np.arange(scores.shape[1]) < np.asarray(labels)[:, None]
    rank = np.sum((scores > own) | ((scores == own) & before), axis=1)
    return float(np.mean((rank < k) & (own[:, 0] > -np.inf)))


def wilson_interval(correct: int, size: int) -> tuple[float, float]:
    """Wilson's 95 % confidence interval of an accuracy: `correct` of `size` independent test examples.

    It tells how far another test set could move the number; it knows nothing of other seeds of the training.

    Example:
      >>> [round(bound, 4) for bound in wilson_interval(50, 100)]
      [0.4038, 0.5962]
    """
    share, doubt = correct / size, _NORMAL_95**2 / size  # SciPy has it too, but takes long to import
    centre = (share + doubt / 2) / (1 + doubt)
    reach = math.sqrt(doubt * share * (1 - share) + doubt**2 / 4) / (1 + doubt)
    return max(centre - reach, 0.0), min(centre + reach, 1.0)


def confusion_matrix(predictions: np.ndarray, labels: np.ndarray, *, num_classes: int) -> np.ndarray:
    """Counts int64 [class, predicted class].

    Example:
      >>> confusion_matrix(np.array([0, 1, 1]), np.array([0, 0, 1]), num_classes=2).tolist()
      [[1, 1], [0, 1]]
    """
    pairs = np.asarray(labels, np.int64) * num_classes + predictions
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def summarize(scores: np.ndarray, labels: np.ndarray, *, class_names: Sequence[str]) -> dict[str, Any]:
    """Everything worth keeping of scores [test, classes], ready for JSON.

    Returns:
      `top1`, its 95 % `interval`, `top5` (None where there are at most five classes), `per_class` accuracies by name
      (None for a class without test examples), and the `confusion` matrix, one row for each true class.
    """
    num_classes = scores.shape[1]
    confusion = confusion_matrix(scores.argmax(axis=1), labels, num_classes=num_classes)
    correct = int(np.trace(confusion))
    counts = confusion.sum(axis=1)
    return {
        "top1": correct / len(labels),
        "interval": list(wilson_interval(correct, len(labels))),
        "top5": top_k_accuracy(scores, labels, k=5) if num_classes > 5 else None,
        "per_class": {
            name: float(confusion[i, i] / counts[i]) if counts[i] else None for i, name in enumerate(class_names)
        },
        "confusion": confusion.tolist(),
    }
