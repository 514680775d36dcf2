"""The linear probe: multinomial logistic regression on frozen features, fitted to all rows at once by LBFGS."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from metamask_jax.core.arrays import matmul
from metamask_jax.evaluate.subsets import held_out_rows

L2_GRID = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)


class Linear(NamedTuple):
    """A linear classifier.

    Attributes:
      weights: [dim, num_classes].
      bias: [num_classes].
    """

    weights: jax.Array
    bias: jax.Array


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
) -> ProbeResult:
    """Fits a linear classifier to training features and tests it.

    The features are standardised by the training set's mean and standard deviation. The strength of the regularisation
    is chosen on a random held-out part of the training set, then the classifier is fitted to all of it. The test set is
    looked at once, at the end.

    Args:
      train_h: features [train, dim].
      train_labels: int [train], each in [0, num_classes).
      test_h: features [test, dim].
      test_labels: int [test].
      num_classes: number of classes.
      seed: of the held-out part.
      l2_grid: strengths to choose from, of l2/2 * |weights|^2 beside the mean cross-entropy; of equally good ones the
        first is taken.
      held_out_fraction: part of the training set to choose the strength on.
      max_iterations: of LBFGS, for each fit.

    Returns:
      The result.
    """
    _check(train_h, train_labels, num_classes=num_classes)
    mean, deviation = (f(train_h, axis=0, dtype=np.float64) for f in (np.mean, np.std))  # float32 sums lose digits
    scale = np.where(deviation > 1e-6 * np.abs(mean), deviation, np.inf)  # a constant dimension says nothing
    h, labels = jnp.asarray((train_h - mean) / scale, jnp.float32), jnp.asarray(train_labels)
    held_out = held_out_rows(len(h), held_out_fraction, seed)

    start = Linear(jnp.zeros((h.shape[1], num_classes)), jnp.zeros(num_classes))
    fits, accuracies = {}, {}
    for l2 in l2_grid:  # one after the other, each starting where the one before ended
        start = fits[l2] = _fit(start, h, labels, ~held_out, l2, max_iterations)
        accuracies[l2] = float(np.mean((_scores(start, h).argmax(axis=1) == labels)[held_out]))
    best = max(accuracies, key=lambda l2: accuracies[l2])
    probe = _fit(fits[best], h, labels, np.ones(len(h), bool), best, max_iterations)
    scores = np.asarray(_scores(probe, jnp.asarray((test_h - mean) / scale, jnp.float32)))
    accuracy = float(np.mean(scores.argmax(axis=1) == np.asarray(test_labels)))
    return ProbeResult(accuracy, scores, best, accuracies)


def _check(h: np.ndarray, labels: np.ndarray, *, num_classes: int) -> None:
    if h.ndim != 2 or np.shape(labels) != h.shape[:1]:
        raise ValueError(f"shapes {h.shape} and {np.shape(labels)}; expected (train, dim) and (train,)")
    if np.min(labels) < 0 or np.max(labels) >= num_classes:
        raise ValueError(f"train_labels {np.min(labels)} to {np.max(labels)}; expected 0 to {num_classes - 1}")


@jax.jit
def _scores(probe: Linear, h: jax.Array) -> jax.Array:
    return matmul(h, probe.weights) + probe.bias


@jax.jit
def _fit(
    start: Linear, h: jax.Array, labels: jax.Array, used: jax.Array, l2: jax.Array, max_iterations: jax.Array
) -> Linear:
    """Minimises mean cross-entropy over the `used` rows plus l2/2 * |weights|^2 by LBFGS.

    All rows take part, unused ones with weight zero, so that the same program serves every split.
    """
    row_weights = used / jnp.sum(used)

    def objective(probe: Linear) -> jax.Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(_scores(probe, h), labels)
        return jnp.sum(row_weights * losses) + 0.5 * l2 * jnp.sum(probe.weights**2)

    solver = optax.lbfgs()
    value_and_gradient = optax.value_and_grad_from_state(objective)

    def unfinished(carry: tuple[Linear, optax.OptState]) -> jax.Array:
        state = carry[1]
        iteration, gradient = optax.tree.get(state, "count"), optax.tree.get(state, "grad")
        # The state has no gradient before the first iteration.
        return (iteration == 0) | ((iteration < max_iterations) & (optax.tree.norm(gradient, ord=jnp.inf) > 1e-4))

    def step(carry: tuple[Linear, optax.OptState]) -> tuple[Linear, optax.OptState]:
        probe, state = carry
        value, gradient = value_and_gradient(probe, state=state)
        updates, state = solver.update(gradient, state, probe, value=value, grad=gradient, value_fn=objective)
        return optax.apply_updates(probe, updates), state

    probe, _ = lax.while_loop(unfinished, step, (start, solver.init(start)))
    return probe
