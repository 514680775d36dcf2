"""What the report shows of a representation beside its accuracy: pictures, neighbours, a map, dimensions, mistakes.

Everything is an array of `report.npz`, so that a report can be drawn anew without the data.
"""

import numpy as np

from metamask_jax.data.sources import Source
from metamask_jax.evaluate.knn import Neighbors
from metamask_jax.evaluate.metrics import wilson_interval
from metamask_jax.evaluate.samples import Samples

QUERIES = 8  # test pictures whose neighbours are shown
NEIGHBORS = 6  # of each
MAP_POINTS = 1500
_DIMENSIONS = 6  # of those with the largest weights, and of those with the smallest
_TOP = 8  # pictures that a dimension responds to most
_SIDE = 64  # pixels; larger pictures are reduced

Arrays = dict[str, np.ndarray]


def query_rows(labels: np.ndarray) -> np.ndarray:
    """Rows of the test pictures whose neighbours are shown: of as many classes as there is room for.

    Example:
      >>> query_rows(np.array([0, 0, 1, 0, 1])).tolist()
      [0, 2, 1, 4, 3]
    """
    counts = dict.fromkeys(np.unique(labels).tolist(), 0)
    turns = np.empty(len(labels), np.int64)  # how many of its class come before a row
    for row, label in enumerate(labels.tolist()):
        turns[row] = counts[label]
        counts[label] += 1
    if len(counts) == 1:  # nothing tells them apart: evenly over the set
        return np.unique(np.linspace(0, len(labels) - 1, QUERIES).round().astype(int))
    first = turns == 0
    order = np.lexsort((labels, turns)) if first.sum() <= QUERIES else np.flatnonzero(first)
    return order[:QUERIES]


def neighbors_within(h: np.ndarray, queries: np.ndarray) -> Neighbors:
    """The nearest other rows of features [size, dim] of some of these rows, int [queries], by the cosine."""
    unit = h / np.maximum(np.linalg.norm(h, axis=1, keepdims=True), 1e-12)
    similarity = unit[queries] @ unit.T
    similarity[np.arange(len(queries)), queries] = -np.inf
    indices = np.argsort(-similarity, axis=1, kind="stable")[:, : min(NEIGHBORS, len(h) - 1)]
    return Neighbors(np.take_along_axis(similarity, indices, axis=1), indices)


def neighbor_arrays(found: Neighbors, rows: np.ndarray, test: Source, train: Source) -> Arrays:
    """Pictures and labels of test rows [queries] and of their neighbours [queries, k]."""
    queries, query_labels = test.gather(rows)
    indices = np.asarray(found.indices)[:, :NEIGHBORS]
    images, labels = train.gather(indices.ravel())
    return {
        "query_images": reduced(queries),
        "query_labels": query_labels,
        "neighbor_images": _grouped(reduced(images), indices.shape),
        "neighbor_labels": labels.reshape(indices.shape),
        "neighbor_similarity": np.asarray(found.similarity)[:, :NEIGHBORS],
    }


def map_arrays(h: np.ndarray, labels: np.ndarray) -> Arrays:
    """The two directions in which features [size, dim] differ most, and the share of their variance in each."""
    rows = np.unique(np.linspace(0, len(h) - 1, min(MAP_POINTS, len(h))).round().astype(int))
    # A decomposition fails on what is not finite.
    few = np.nan_to_num(np.asarray(h[rows], np.float64), posinf=0.0, neginf=0.0)
    centred = few - few.mean(axis=0)
    variances, directions = np.linalg.eigh(centred.T @ centred)
    chosen = directions[:, ::-1][:, :2]
    chosen = chosen * np.where(np.abs(chosen).max(0) == chosen.max(0), 1.0, -1.0)  # a sign that does not depend on BLAS
    total = max(float(variances.sum()), 1e-300)
    return {
        "map_points": (centred @ chosen).astype(np.float32),
        "map_labels": labels[rows],
        "map_shares": np.maximum(variances[::-1][:2], 0.0) / total,
    }


def dimension_arrays(h: np.ndarray, labels: np.ndarray, weights: np.ndarray, test: Source) -> Arrays:
    """The pictures to which some dimensions respond most: those that the mask keeps most, and those it keeps least.

    Where the mask treats all alike, those whose features vary most and least.

    Args:
      h: features [size, dim] of the test pictures, not masked.
      labels: int [size].
      weights: of the mask [dim].
      test: the pictures.
    """
    learned = float(np.ptp(weights)) > 1e-6
    order = np.argsort(weights if learned else h.std(axis=0), kind="stable")
    count = min(_DIMENSIONS, len(order) // 2)
    if count == 0:
        return {}
    chosen = np.concatenate([order[::-1][:count], order[:count]])
    rows = np.argsort(-h[:, chosen], axis=0, kind="stable")[:_TOP].T  # [dimensions, top]
    images, _ = test.gather(rows.ravel())
    return {
        "dimension_indices": chosen,
        "dimension_images": _grouped(reduced(images), rows.shape),
        "dimension_labels": labels[rows],
        "dimension_spread": h[:, chosen].std(axis=0),
    }


def accuracy_arrays(confusion: np.ndarray, among_five: int | None, class_names: tuple[str, ...]) -> Arrays:
    """Names of classes, what they were taken for [class, predicted class], the accuracy's interval, and top-5."""
    right, size = int(np.trace(confusion)), int(confusion.sum())
    top5 = {} if among_five is None else {"knn_top5": np.array([among_five / size])}
    return top5 | {
        "class_names": np.array(class_names),
        "knn_confusion": confusion.astype(np.int64),
        "knn_interval": np.array(wilson_interval(right, size)),
    }


def sample_arrays(samples: Samples) -> Arrays:
    """Training pictures and their views."""
    views = samples.views
    return {
        "sample_images": reduced(samples.originals),
        "sample_views": _grouped(reduced(views.reshape(-1, *views.shape[2:])), views.shape[:2]),
    }


def reduced(images: np.ndarray) -> np.ndarray:
    """Pictures uint8 [size, height, width, 3], no side longer than what a report shows."""
    height, width = images.shape[1:3]
    longest = max(height, width)
    if longest <= _SIDE:
        return np.asarray(images)
    from PIL import Image

    size = (max(1, round(width * _SIDE / longest)), max(1, round(height * _SIDE / longest)))
    return np.stack([np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS)) for image in images])


def _grouped(images: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return images.reshape(*shape, *images.shape[1:])
