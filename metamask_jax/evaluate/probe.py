"""The linear probe: multinomial logistic regression on frozen features, fitted to all rows at once by LBFGS.

The rows go through the devices of all processes chunk by chunk, so that neither a device nor a host has to hold them:
features may be memory-mapped, and each process has only its own rows (`sharding`). Only sets that are small beside a
machine's memory stay on the devices from pass to pass. Every process runs LBFGS on the same sums, hence alike.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from metamask_jax.core.arrays import matmul
from metamask_jax.data.loader import prefetch
from metamask_jax.evaluate.rows import moments
from metamask_jax.evaluate.sharding import SPLIT, WHOLE, all_devices, own_part, share_of, spread, total
from metamask_jax.evaluate.subsets import held_out_rows
from metamask_jax.training.distributed import AXIS

L2_GRID = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
_NUMBERS = 2**24  # features and scores of a chunk on one device
_KEPT = 2**28  # features that stay on the devices from pass to pass, 1 GB of them


class Linear(NamedTuple):
    """A linear classifier.

    Attributes:
      weights: [dim, num_classes].
      bias: [num_classes].
    """

    weights: np.ndarray | jax.Array
    bias: np.ndarray | jax.Array


Sums = tuple[jax.Array, Linear]  # of the cross-entropy and its gradient


class ProbeResult(NamedTuple):
    """What a probe found.

    Attributes:
      accuracy: fraction in [0, 1] of the test rows whose class is found.
      scores: float32 [test, num_classes], log-probabilities up to one constant per row.
      l2: the regularisation strength chosen.
      held_out: accuracy of each strength on the held-out part of the training set.
    """

    accuracy: float
    scores: np.ndarray
    l2: float
    held_out: dict[float, float]


def linear_probe(
    train_h: np.ndarray,
    train_labels: np.ndarray,
    test_h: np.ndarray,
    test_labels: np.ndarray,
    *,
    num_classes: int,
    seed: int,
    l2_grid: Sequence[float] = L2_GRID,
    held_out_fraction: float = 0.2,
    max_iterations: int = 300,
    used: np.ndarray | None = None,
) -> ProbeResult:
    """Fits a linear classifier to training features and tests it.

    The features are standardised by the training set's mean and standard deviation. The strength of the regularisation
    is chosen on a random held-out part of the training set, then the classifier is fitted to all of it. The test set is
    looked at once, at the end. In a run of several processes each passes its own rows, and gets their scores.

    Args:
      train_h: features [train, dim]; may be memory-mapped, as only chunks are copied.
      train_labels: int [train], each in [0, num_classes).
      test_h: features [test, dim]; likewise.
      test_labels: int [test].
      num_classes: number of classes.
      seed: of the held-out part.
      l2_grid: strengths to choose from, of l2/2 * |weights|^2 beside the mean cross-entropy; of equally good ones the
        first is taken.
      held_out_fraction: part of the training set to choose the strength on.
      max_iterations: of LBFGS, for each fit.
      used: bool [dim], the dimensions that the classifier sees; None for all.

    Returns:
      The result.
    """
    _check(train_h, train_labels, num_classes=num_classes)
    labels = np.asarray(train_labels)
    mean, variance = moments(train_h)
    deviation = np.sqrt(variance)
    told = deviation > 1e-6 * np.abs(mean)  # a constant dimension says nothing
    inverse = np.divide(1.0, deviation, out=np.zeros_like(mean), where=told if used is None else told & used)
    train = _Rows(train_h, mean, inverse, num_classes)
    share = share_of(len(labels))
    held_out = held_out_rows(share.total, held_out_fraction, seed)[share.own]

    start = Linear(np.zeros((train_h.shape[1], num_classes)), np.zeros(num_classes))
    fits, accuracies = {}, {}
    for l2 in l2_grid:  # one after the other, each starting where the one before ended
        start = fits[l2] = _fit(start, train, labels, ~held_out, l2, max_iterations)
        found = np.concatenate([x.argmax(axis=1) for x in train.scores(start)])
        accuracies[l2] = _mean((found == labels)[held_out])
    best = max(accuracies, key=lambda l2: accuracies[l2])
    probe = _fit(fits[best], train, labels, np.ones(len(labels), bool), best, max_iterations)
    test = _Rows(test_h, mean, inverse, num_classes)
    scores = np.concatenate(list(test.scores(probe)))
    return ProbeResult(_mean(scores.argmax(axis=1) == np.asarray(test_labels)), scores, best, accuracies)


def _mean(values: np.ndarray) -> float:
    """The mean over the values of all processes."""
    right, size = total([np.sum(values), len(values)])
    return float(right / size)


def _check(h: np.ndarray, labels: np.ndarray, *, num_classes: int) -> None:
    if h.ndim != 2 or np.shape(labels) != h.shape[:1]:
        raise ValueError(f"shapes {h.shape} and {np.shape(labels)}; expected (train, dim) and (train,)")
    if len(labels) and (np.min(labels) < 0 or np.max(labels) >= num_classes):
        raise ValueError(f"train_labels {np.min(labels)} to {np.max(labels)}; expected 0 to {num_classes - 1}")


def chunk_rows(dim: int, num_classes: int) -> int:
    """Rows that one device works on at a time."""
    return max(1, _NUMBERS // (dim + num_classes))


class _Rows:
    """Standardised features on the devices of all processes, in chunks x [chunk * processes, dim], padded with zeros.

    Processes whose rows are fewer have more padding, so that all go through the same number of chunks.
    """

    def __init__(self, h: np.ndarray, mean: np.ndarray, inverse: np.ndarray, num_classes: int) -> None:
        """Standardised are (h - mean) * inverse, of this process's features h [size, dim]."""
        self._h, self._most = h, max(1, share_of(len(h)).longest)
        devices = jax.local_device_count()
        self.chunk = devices * min(chunk_rows(h.shape[1], num_classes), -(-self._most // devices))
        self._scale = tuple(spread(np.asarray(x, np.float32), WHOLE) for x in (mean, inverse))
        self._kept = list(self._stream()) if h.size <= _KEPT else None

    def __iter__(self) -> Iterator[jax.Array]:
        return self._stream() if self._kept is None else iter(self._kept)

    def split(self, values: np.ndarray) -> list[jax.Array]:
        """Numbers [size], one per row, in chunks beside those of the features; the padding is zero."""
        size = -(-self._most // self.chunk) * self.chunk
        return [spread(part) for part in np.pad(values, (0, size - len(values))).reshape(-1, self.chunk)]

    def scores(self, probe: Linear) -> Iterator[np.ndarray]:
        """The scores [rows, num_classes] of this process's rows, chunk by chunk."""
        everywhere, score = _everywhere(probe), score_chunk(all_devices())
        for start, x in zip(range(0, self._most, self.chunk), self, strict=True):
            yield own_part(score(everywhere, x))[: max(0, len(self._h) - start)]

    def _stream(self) -> Iterator[jax.Array]:
        parts = (self._h[start : start + self.chunk] for start in range(0, self._most, self.chunk))
        with contextlib.closing(prefetch(parts, depth=1, transfer=self._padded)) as ready:
            for x in ready:
                yield _standardized(x, *self._scale)

    def _padded(self, part: np.ndarray) -> jax.Array:
        filled = np.zeros((self.chunk, part.shape[1]), np.float32)
        filled[: len(part)] = part
        return spread(filled)


def _everywhere(probe: Linear) -> Linear:
    """A classifier on all devices."""
    return Linear(*(spread(np.asarray(part, np.float32), WHOLE) for part in probe))


@jax.jit
def _standardized(h: jax.Array, mean: jax.Array, inverse: jax.Array) -> jax.Array:
    return (h - mean) * inverse


def _scores(probe: Linear, x: jax.Array) -> jax.Array:
    return matmul(x, probe.weights) + probe.bias


def _fit(start: Linear, rows: _Rows, labels: np.ndarray, used: np.ndarray, l2: float, max_iterations: int) -> Linear:
    """Minimises mean cross-entropy over the `used` rows plus l2/2 * |weights|^2 by LBFGS.

    All rows take part, unused ones with weight zero, so that the same program serves every split.
    """
    from scipy.optimize import minimize

    shape, size = start.weights.shape, start.weights.size
    weights = used / total([used.sum()])
    row_labels, row_weights = rows.split(labels.astype(np.int32)), rows.split(weights.astype(np.float32))
    nothing, add, add_up = sums(all_devices())

    def unpacked(flat: np.ndarray) -> Linear:
        return Linear(flat[:size].reshape(shape), flat[size:])

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        probe = _everywhere(unpacked(flat))
        found = nothing(probe)
        for x, own_labels, own_weights in zip(rows, row_labels, row_weights, strict=True):
            found = add(found, probe, x, own_labels, own_weights)
        value, gradient = add_up(found)
        slope = np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in gradient])
        slope[:size] += l2 * flat[:size]
        return float(value) + 0.5 * l2 * float(flat[:size] @ flat[:size]), slope

    flat = np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in start])
    options = {"maxiter": max_iterations, "maxcor": 10, "gtol": 1e-4, "ftol": 1e-9}
    return unpacked(minimize(objective, flat, jac=True, method="L-BFGS-B", options=options).x)


@lru_cache
def score_chunk(mesh: Mesh) -> "jax.stages.Wrapped":
    """Builds the function of a classifier and features [rows, dim], split over the mesh, that gives their scores."""
    return jax.jit(jax.shard_map(_scores, mesh=mesh, in_specs=(WHOLE, SPLIT), out_specs=SPLIT))


@lru_cache
def sums(mesh: Mesh) -> tuple["jax.stages.Wrapped", "jax.stages.Wrapped", "jax.stages.Wrapped"]:
    """Builds the functions that sum the cross-entropy and its gradient, on each device by itself until the end.

    Returns:
      A function of the classifier that gives empty sums; one that adds a chunk's to them, which is given the sums, the
      classifier, and the chunk's features, labels and weights; and one of the sums that gives the whole sum.
    """

    def empty(probe: Linear) -> Sums:
        return jax.tree.map(lambda leaf: jnp.zeros_like(leaf)[None], (jnp.zeros(()), probe))

    def add(found: Sums, probe: Linear, x: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
        def loss(probe: Linear) -> jax.Array:
            losses = optax.softmax_cross_entropy_with_integer_labels(_scores(probe, x), labels)
            return jnp.sum(weights * losses)

        return jax.tree.map(lambda leaf, part: leaf + part[None], found, jax.value_and_grad(loss)(probe))

    def add_up(found: Sums) -> Sums:
        return lax.psum(jax.tree.map(lambda leaf: leaf[0], found), AXIS)

    def mapped(function: Callable[..., Sums], ins: tuple[PartitionSpec, ...], out: PartitionSpec, **how: Any) -> Any:
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=ins, out_specs=out, check_vma=False), **how)

    return (
        mapped(empty, (WHOLE,), SPLIT),
        mapped(add, (SPLIT, WHOLE, SPLIT, SPLIT, SPLIT), SPLIT, donate_argnums=0),
        mapped(add_up, (SPLIT,), WHOLE),
    )
