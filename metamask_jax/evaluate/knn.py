"""Exact nearest neighbours and their vote, in bounded memory, on all devices of all processes.

Each process passes its own rows, of training and of test features, and gets the result for its own test rows; it
compares all test rows with its own training rows, and the best that all processes found are put together.

Protocols in use: `k=5, temperature=1` with the cosine (the authors' program), `k=200, temperature=0.1` with the cosine,
and `k=5, temperature=None` (every neighbour counts the same) with the Euclidean distance.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from metamask_jax.core.arrays import matmul, unit_norm
from metamask_jax.evaluate.sharding import gathered, of_all, share_of, total

METRICS = ("cosine", "euclidean")
TRAIN_CHUNK, TEST_CHUNK = 65536, 128  # rows compared at a time on one device: 32 MB of similarities
_NUMBERS = 2**25  # features of a chunk of training rows
_SENT = 4096  # test rows whose neighbours are sent at a time
_BLOCK = 16  # similarities of which first only the largest is looked at


class Neighbors(NamedTuple):
    """The training rows nearest to each test row, nearest first; the order of equally near ones is not defined.

    Attributes:
      similarity: float32 [test, k], the cosine, or minus the Euclidean distance.
      indices: int32 [test, k], rows of the training features.
    """

    similarity: np.ndarray | jax.Array
    indices: np.ndarray | jax.Array


def nearest_neighbors(
    train_h: np.ndarray, test_h: np.ndarray, *, k: int, metric: str, weights: np.ndarray | None = None
) -> Neighbors:
    """Finds the exact k nearest training rows of every test row.

    Example:
      >>> nearest_neighbors(np.eye(3), np.array([[0.1, 0.9, 0.2]]), k=2, metric="cosine").indices
      array([[1, 2]], dtype=int32)

    Args:
      train_h: features [train, dim]; may be memory-mapped, as only chunks are copied.
      test_h: features [test, dim]; likewise.
      k: number of neighbours.
      metric: `cosine` or `euclidean`.
      weights: a mask [dim] by which all features are multiplied; None for ones.

    Returns:
      The neighbours, by their places among the training rows of all processes.
    """
    share = share_of(len(train_h))
    _check(train_h, test_h, size=share.total, k=k, metric=metric)
    found = _nearest(
        train_h, gathered(test_h), most=share.longest, k=min(k, share.longest), metric=metric, weights=weights
    )
    if jax.process_count() == 1:
        return found
    found = found._replace(indices=np.asarray(found.indices) + np.int32(share.start))
    return _best_of_all(found, share_of(len(test_h)).own, k)


def _best_of_all(found: Neighbors, own: slice, k: int) -> Neighbors:
    """The best of the neighbours of all test rows that all processes found, for the test rows that are this one's."""
    parts = []
    for start in range(0, len(found.indices), _SENT):
        rows = slice(start, start + _SENT)
        # [processes, rows, found] to [rows, processes * found]
        similarity, indices = (np.concatenate(list(of_all(np.asarray(x)[rows])), axis=1) for x in found)
        places = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
        mine = slice(max(own.start - start, 0), max(own.stop - start, 0))
        parts.append([np.take_along_axis(x, places, axis=1)[mine] for x in (similarity, indices)])
    return Neighbors(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _nearest(
    train_h: np.ndarray, test_h: np.ndarray, *, most: int, k: int, metric: str, weights: np.ndarray | None
) -> Neighbors:
    """The nearest of this process's training rows, chunk by chunk, keeping the best so far.

    As many rows as the process with the `most` has are gone through, so that all run the same programs; what is not
    there comes out farther away than anything else.
    """
    devices = jax.local_device_count()
    chunk = partial(_chunk, weights=weights)
    train_rows = min(TRAIN_CHUNK, most, max(1, _NUMBERS // train_h.shape[1]))
    if train_rows > _BLOCK:
        train_rows = -(-train_rows // _BLOCK) * _BLOCK  # whole blocks
    test_rows = min(TEST_CHUNK, -(-len(test_h) // devices))
    # Distances are the same from any origin, but near the data fewer digits cancel in |a|^2 - 2ab + |b|^2.
    origin = np.mean(chunk(train_h, 0, max(1, min(train_rows, len(train_h)))), axis=0)
    starts = range(0, len(test_h), devices * test_rows)
    shape = (devices, test_rows, k)
    best = {start: Neighbors(np.full(shape, -np.inf, np.float32), np.zeros(shape, np.int32)) for start in starts}
    for offset in range(0, most, train_rows):
        first = offset == 0 and k <= train_rows  # there is nothing to merge with
        rows = chunk(train_h, offset, train_rows)
        everywhere = np.broadcast_to(rows, (devices, *rows.shape))
        train = _train_factor(metric, everywhere, origin, np.int32(len(train_h) - offset))
        for start in starts:
            test = chunk(test_h, start, devices * test_rows).reshape(devices, test_rows, -1)
            best[start] = _merge(metric, first, best[start], test, train, origin, np.int32(offset))
    similarity, indices = (
        np.concatenate([np.asarray(part).reshape(-1, k) for part in parts])[: len(test_h)]
        for parts in zip(*best.values(), strict=True)
    )
    if metric == "euclidean":
        parts = (
            chunk(test_h, start, min(TEST_CHUNK, len(test_h) - start)) for start in range(0, len(test_h), TEST_CHUNK)
        )
        squares = [np.sum((part - origin) ** 2, axis=1) for part in parts]
        similarity = -np.sqrt(np.maximum(np.concatenate(squares)[:, None] - similarity, 0.0))
    return Neighbors(similarity, indices)


def knn_scores(
    train_h: np.ndarray,
    train_labels: np.ndarray,
    test_h: np.ndarray,
    *,
    k: int,
    temperature: float | None,
    num_classes: int,
    metric: str = "cosine",
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """Votes [test, num_classes] of the k nearest neighbours, where each row's nearest neighbour has a vote of one.

    Args:
      train_h: features [train, dim].
      train_labels: int [train], each in [0, num_classes).
      test_h: features [test, dim].
      k: number of neighbours.
      temperature: a neighbour's vote is exp(similarity / temperature); None: it is one.
      num_classes: number of classes.
      metric: `cosine` or `euclidean`.
      weights: a mask [dim] by which all features are multiplied; None for ones.

    Returns:
      float32 [test, num_classes].
    """
    labels = np.asarray(train_labels)
    if labels.shape != train_h.shape[:1]:
        raise ValueError(
            f"train_labels.shape={labels.shape}; expected one label per row of train_h, {train_h.shape[:1]}"
        )
    if len(labels) and (labels.min() < 0 or labels.max() >= num_classes):
        raise ValueError(f"train_labels {labels.min()} to {labels.max()}; expected 0 to {num_classes - 1}")
    if temperature is not None and temperature <= 0:
        raise ValueError(f"{temperature=}; expected a number > 0, or None for votes of one")
    found = nearest_neighbors(train_h, test_h, k=k, metric=metric, weights=weights)
    return votes(found, gathered(labels), temperature=temperature, num_classes=num_classes)


def votes(neighbors: Neighbors, train_labels: np.ndarray, *, temperature: float | None, num_classes: int) -> np.ndarray:
    """Votes float32 [test, num_classes] of neighbours that are known already.

    Args:
      neighbors: of test rows.
      train_labels: int, of the training rows of all processes.
      temperature: as for `knn_scores`.
      num_classes: likewise.
    """
    similarity, indices = map(np.asarray, neighbors)
    # Relative to the nearest: what cannot change the winner cannot overflow either.
    share = np.ones_like(similarity) if temperature is None else np.exp((similarity - similarity[:, :1]) / temperature)
    scores = np.zeros((len(indices), num_classes), np.float32)
    np.add.at(scores, (np.arange(len(indices))[:, None], np.asarray(train_labels)[indices]), share)
    return scores


def knn_predict(
    train_h: np.ndarray,
    train_labels: np.ndarray,
    test_h: np.ndarray,
    *,
    k: int,
    temperature: float | None,
    num_classes: int,
    metric: str = "cosine",
) -> np.ndarray:
    """Classes int64 [test] with the most votes, the lowest of equals; arguments as for `knn_scores`.

    Example:
      >>> train_h = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
      >>> test_h = np.array([[1.0, 0.2], [0.1, 1.0]])
      >>> knn_predict(train_h, np.array([0, 0, 1]), test_h, k=1, temperature=1.0, num_classes=2)
      array([0, 1])
    """
    return knn_scores(
        train_h, train_labels, test_h, k=k, temperature=temperature, num_classes=num_classes, metric=metric
    ).argmax(axis=1)


def knn_accuracy(
    train_h: np.ndarray,
    train_labels: np.ndarray,
    test_h: np.ndarray,
    test_labels: np.ndarray,
    *,
    k: int,
    temperature: float | None,
    num_classes: int,
    metric: str = "cosine",
) -> float:
    """Fraction in [0, 1] of the test rows of all processes whose class is found; arguments as for `knn_scores`."""
    predictions = knn_predict(
        train_h, train_labels, test_h, k=k, temperature=temperature, num_classes=num_classes, metric=metric
    )
    right, size = total([np.sum(predictions == np.asarray(test_labels)), len(predictions)])
    return float(right / size)


def _check(train_h: np.ndarray, test_h: np.ndarray, *, size: int, k: int, metric: str) -> None:
    if metric not in METRICS:
        raise ValueError(f"{metric=}; expected one of {', '.join(map(repr, METRICS))}")
    if train_h.ndim != 2 or test_h.ndim != 2 or train_h.shape[1] != test_h.shape[1]:
        raise ValueError(f"shapes {train_h.shape} and {test_h.shape}; expected (train, dim) and (test, dim)")
    if not 1 <= k <= size:
        raise ValueError(f"{k=}; expected 1 to {size}, the number of training rows")


def _chunk(h: np.ndarray, start: int, rows: int, *, weights: np.ndarray | None) -> np.ndarray:
    """float32 [rows, dim] from `start` on, weighted, with zeros where there are no more rows."""
    part = np.asarray(h[start : start + rows], np.float32)
    if weights is not None:
        part = part * np.asarray(weights, np.float32)
    return np.pad(part, ((0, rows - len(part)), (0, 0)))


# Both factors have one more column than the features: there the product of two rows gains the training row's own term,
# which would otherwise take another pass over all the similarities. In the test rows that column is one.


@partial(jax.pmap, in_axes=(None, 0, None, None), static_broadcasted_argnums=0)
def _train_factor(metric: str, train: jax.Array, origin: jax.Array, size: jax.Array) -> jax.Array:
    """Training rows [rows, dim + 1], ready to be multiplied; rows from `size` on are padding and never nearest."""
    if metric == "cosine":
        train, own = unit_norm(train), jnp.zeros(len(train))
    else:
        train = train - origin
        own = -jnp.sum(train**2, axis=1)
    # Finite, because accelerators split factors into parts, and infinity minus infinity is not a number.
    own = jnp.where(jnp.arange(len(train)) < size, own, -0.25 * jnp.finfo(own.dtype).max)
    return jnp.concatenate([train, own[:, None]], axis=1)


@partial(jax.pmap, in_axes=(None, None, 0, 0, 0, None, None), static_broadcasted_argnums=(0, 1))
def _merge(
    metric: str, first: bool, best: Neighbors, test: jax.Array, train: jax.Array, origin: jax.Array, offset: jax.Array
) -> Neighbors:
    """The best of the neighbours so far and of one more chunk of training rows, which starts at row `offset`.

    The similarity is the cosine, or minus the squared distance without the test row's own square, which is the same for
    all training rows. Of the `first` chunk there is nothing better yet.
    """
    k = best.indices.shape[1]
    test = unit_norm(test) if metric == "cosine" else 2 * (test - origin)
    test = jnp.pad(test, ((0, 0), (0, 1)), constant_values=1.0)
    similarity, indices = _largest(matmul(test, train.T), min(k, len(train)))
    indices = offset + indices
    if first:
        return Neighbors(similarity, indices)
    similarity = jnp.concatenate([best.similarity, similarity], axis=1)
    indices = jnp.concatenate([best.indices, indices], axis=1)
    similarity, places = lax.top_k(similarity, k)
    return Neighbors(similarity, jnp.take_along_axis(indices, places, axis=1))


def _largest(values: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The k largest of values [rows, columns], largest first, and their columns; exact.

    No value among the k largest is outside the k blocks with the largest maxima. Maxima take one pass at the speed of
    memory, so hardly anything is left for the slow part, which keeps things in order.
    """
    rows, columns = values.shape
    if columns % _BLOCK or 2 * k * _BLOCK >= columns:  # nothing would be saved
        return lax.top_k(values, k)
    blocks = values.reshape(rows, -1, _BLOCK)
    _, chosen = lax.top_k(jnp.max(blocks, axis=2), k)
    survivors = jnp.take_along_axis(blocks, chosen[:, :, None], axis=1).reshape(rows, k * _BLOCK)
    largest, places = lax.top_k(survivors, k)
    return largest, jnp.take_along_axis(chosen, places // _BLOCK, axis=1) * _BLOCK + places % _BLOCK
