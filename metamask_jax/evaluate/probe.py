"""The linear probe: multinomial logistic regression on frozen features, fitted to all rows at once by LBFGS.

The rows go through all local devices chunk by chunk, so that neither a device nor the host has to hold them: features
may be memory-mapped. Only sets that are small beside a machine's memory stay on the devices from pass to pass.
"""

import contextlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from metamask_jax.core.arrays import matmul
from metamask_jax.data.loader import prefetch
from metamask_jax.evaluate.rows import moments
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
    looked at once, at the end.

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
    held_out = held_out_rows(len(labels), held_out_fraction, seed)

    start = Linear(np.zeros((train_h.shape[1], num_classes)), np.zeros(num_classes))
    fits, accuracies = {}, {}
    for l2 in l2_grid:  # one after the other, each starting where the one before ended
        start = fits[l2] = _fit(start, train, labels, ~held_out, l2, max_iterations)
        found = np.concatenate([np.asarray(_scores(start, x)).argmax(axis=1)[:count] for x, count in train])
        accuracies[l2] = float(np.mean((found == labels)[held_out]))
    best = max(accuracies, key=lambda l2: accuracies[l2])
    probe = _fit(fits[best], train, labels, np.ones(len(labels), bool), best, max_iterations)
    test = _Rows(test_h, mean, inverse, num_classes)
    scores = np.concatenate([np.asarray(_scores(probe, x))[:count] for x, count in test])
    return ProbeResult(float(np.mean(scores.argmax(axis=1) == np.asarray(test_labels))), scores, best, accuracies)


def _check(h: np.ndarray, labels: np.ndarray, *, num_classes: int) -> None:
    if h.ndim != 2 or np.shape(labels) != h.shape[:1]:
        raise ValueError(f"shapes {h.shape} and {np.shape(labels)}; expected (train, dim) and (train,)")
    if np.min(labels) < 0 or np.max(labels) >= num_classes:
        raise ValueError(f"train_labels {np.min(labels)} to {np.max(labels)}; expected 0 to {num_classes - 1}")


def chunk_rows(dim: int, num_classes: int) -> int:
    """Rows that one device works on at a time."""
    return max(1, _NUMBERS // (dim + num_classes))


class _Rows:
    """Standardised features on all local devices, chunk by chunk: pairs of x [chunk, dim], padded, and a row count."""

    def __init__(self, h: np.ndarray, mean: np.ndarray, inverse: np.ndarray, num_classes: int) -> None:
        """Standardised are (h - mean) * inverse, of features h [size, dim]."""
        self._h, self.mesh = h, Mesh(np.array(jax.local_devices()), (AXIS,))
        rows = min(chunk_rows(h.shape[1], num_classes), -(-len(h) // self.mesh.size))
        self.chunk = rows * self.mesh.size
        self._scale = tuple(jnp.asarray(x, jnp.float32) for x in (mean, inverse))
        self._kept = list(self._stream()) if h.size <= _KEPT else None

    def __iter__(self) -> Iterator[tuple[jax.Array, int]]:
        return self._stream() if self._kept is None else iter(self._kept)

    def split(self, values: np.ndarray) -> list[jax.Array]:
        """Numbers [size], one per row, in chunks [chunk] beside those of the features; the padding is zero."""
        padded = np.pad(values, (0, -len(values) % self.chunk)).reshape(-1, self.chunk)
        return [self._put(part) for part in padded]

    def _stream(self) -> Iterator[tuple[jax.Array, int]]:
        parts = (self._h[start : start + self.chunk] for start in range(0, len(self._h), self.chunk))
        with contextlib.closing(prefetch(parts, depth=1, transfer=self._padded)) as ready:
            for x, count in ready:
                yield _standardized(x, *self._scale), count

    def _padded(self, part: np.ndarray) -> tuple[jax.Array, int]:
        filled = np.zeros((self.chunk, part.shape[1]), np.float32)
        filled[: len(part)] = part
        return self._put(filled), len(part)

    def _put(self, array: np.ndarray) -> jax.Array:
        return jax.device_put(array, NamedSharding(self.mesh, PartitionSpec(AXIS)))


@jax.jit
def _standardized(h: jax.Array, mean: jax.Array, inverse: jax.Array) -> jax.Array:
    return (h - mean) * inverse


@jax.jit
def _scores(probe: Linear, x: jax.Array) -> jax.Array:
    return matmul(x, probe.weights) + probe.bias


def _fit(start: Linear, rows: _Rows, labels: np.ndarray, used: np.ndarray, l2: float, max_iterations: int) -> Linear:
    """Minimises mean cross-entropy over the `used` rows plus l2/2 * |weights|^2 by LBFGS.

    All rows take part, unused ones with weight zero, so that the same program serves every split.
    """
    from scipy.optimize import minimize

    shape, size = start.weights.shape, start.weights.size
    row_labels, row_weights = rows.split(labels.astype(np.int32)), rows.split((used / used.sum()).astype(np.float32))
    add = add_chunk(rows.mesh)

    def unpacked(flat: np.ndarray) -> Linear:
        return Linear(flat[:size].reshape(shape), flat[size:])

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        probe = Linear(*(jnp.asarray(part, jnp.float32) for part in unpacked(flat)))
        total: tuple[jax.Array, Linear] = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, probe))
        for (x, _), own_labels, own_weights in zip(rows, row_labels, row_weights, strict=True):
            total = add(total, probe, x, own_labels, own_weights)
        value, gradient = total
        slope = np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in gradient])
        slope[:size] += l2 * flat[:size]
        return float(value) + 0.5 * l2 * float(flat[:size] @ flat[:size]), slope

    flat = np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in start])
    options = {"maxiter": max_iterations, "maxcor": 10, "gtol": 1e-4, "ftol": 1e-9}
    found = minimize(objective, flat, jac=True, method="L-BFGS-B", options=options).x
    return Linear(*(jnp.asarray(part, jnp.float32) for part in unpacked(found)))


@lru_cache
def add_chunk(mesh: Mesh) -> "jax.stages.Wrapped":
    """Builds the function that adds a chunk's part of the cross-entropy, and of its gradient, to a running total."""
    split, whole = PartitionSpec(AXIS), PartitionSpec()

    def add(
        total: tuple[jax.Array, Linear], probe: Linear, x: jax.Array, labels: jax.Array, weights: jax.Array
    ) -> tuple[jax.Array, Linear]:
        def loss(probe: Linear) -> jax.Array:
            losses = optax.softmax_cross_entropy_with_integer_labels(_scores(probe, x), labels)
            return jnp.sum(weights * losses)

        part = lax.psum(jax.value_and_grad(loss)(probe), AXIS)
        return jax.tree.map(jnp.add, total, part)

    specs = (whole, whole, split, split, split)
    return jax.jit(jax.shard_map(add, mesh=mesh, in_specs=specs, out_specs=whole, check_vma=False))
