"""Losses of features and labels that need no classifier of their own: how well the labels can be read off."""

import jax
import jax.numpy as jnp

from metamask_jax.core import collectives
from metamask_jax.core.arrays import (
    as_array,
    batch_mean,
    matmul,
    require_number,
    require_shape,
    require_temperature,
    unit_norm,
    widen,
)


def soft_nearest_neighbor(
    h: jax.Array, labels: jax.Array, *, temperature: float | jax.Array = 0.1, axis_name: str | None = None
) -> jax.Array:
    """Soft nearest-neighbour loss (Salakhutdinov & Hinton 2007, Frosst et al. 2019) by cosine similarity.

    The probability that a neighbour drawn in proportion to exp(similarity / temperature) is of another class, as
    -log(1 - p), the mean over the images whose class is there more than once; zero if there is none.

    Args:
      h: features [batch, dim]; their norms do not matter.
      labels: int [batch], -1 where there is none; such images are neither asked nor neighbours.
      temperature: divides the similarities; the default is the usual one of weighted kNN, not of the papers.
      axis_name: the mapped axis over which the batch is split, if any; neighbours come from all devices.

    Returns:
      The loss, a scalar.

    Example:
      >>> h = jnp.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
      >>> good, bad = (soft_nearest_neighbor(h, jnp.array(labels)) for labels in ([0, 0, 1, 1], [0, 1, 0, 1]))
      >>> bool(good < 0.01), bool(bad > 5.0)
      (True, True)
    """
    require_temperature(temperature)
    h, labels = _features(h, labels)
    h = unit_norm(h)
    others, other_labels = (collectives.gather(x, axis_name, axis=0) for x in (h, labels))
    places = collectives.device_index(axis_name) * len(h) + jnp.arange(len(h))
    neighbor = (other_labels >= 0) & (jnp.arange(len(others)) != places[:, None])
    same = neighbor & (other_labels == labels[:, None])
    logits = matmul(h, others.T) / temperature
    counts = jnp.any(same, axis=1) & (labels >= 0)
    # Where nothing counts, anything finite will do: it is left out of the mean.
    same, neighbor = same | ~counts[:, None], neighbor | ~counts[:, None]
    loss = jax.nn.logsumexp(logits, axis=1, where=neighbor) - jax.nn.logsumexp(logits, axis=1, where=same)
    return _mean_where(loss, counts, axis_name)


def linear_head(
    h: jax.Array, labels: jax.Array, *, l2: float | jax.Array = 0.1, axis_name: str | None = None
) -> jax.Array:
    """Error on one half of a batch of the best linear head on the other half, and the other way round.

    The head is ridge regression on one-hot labels, solved in closed form, so derivatives go through the fit.

    Args:
      h: features [batch, dim] of an even number of images over all devices.
      labels: int [batch], -1 where there is none; such images have no weight in either half.
      l2: weight of the penalty, relative to the mean squared norm of the features; the default is ours.
      axis_name: the mapped axis over which the batch is split, if any.

    Returns:
      The mean squared error of the scores, summed over classes, a scalar.

    Example:
      >>> labels = jnp.arange(16) // 2 % 2
      >>> h = jax.nn.one_hot(labels, 2) + 0.1 * jax.random.normal(jax.random.key(0), (16, 2))
      >>> bool(linear_head(h, labels) < 0.1 < linear_head(h[::-1] ** 0, labels))
      True
    """
    require_number("l2", l2, lambda l2: l2 >= 0, "a number >= 0")
    h, labels = _features(h, labels)
    h, labels = (collectives.gather(x, axis_name, axis=0) for x in (h, labels))
    require_shape("h", h, len(h) % 2 == 0, "an even batch over all devices")
    known = (labels >= 0).astype(h.dtype)
    # Products of one-hot labels: all that the error needs to know of the classes, however many there are.
    same = (labels[:, None] == labels) * known[:, None] * known

    def error(fit: slice, test: slice) -> jax.Array:
        seen = h[fit] * known[fit][:, None]
        kernel = matmul(seen, seen.T)
        ridge = l2 * jnp.trace(kernel) / len(kernel) + jnp.finfo(h.dtype).tiny
        between = matmul(h[test], seen.T)
        # [test, fit]: a score is this much of the label of each image that the head was fitted on.
        shares = jnp.linalg.solve(kernel + ridge * jnp.eye(len(kernel), dtype=h.dtype), between.T).T
        square = jnp.sum(matmul(shares, same[fit, fit]) * shares, axis=1)
        return jnp.sum((square - 2.0 * jnp.sum(shares * same[test, fit], axis=1) + 1.0) * known[test])

    halves = slice(0, None, 2), slice(1, None, 2)
    return (error(*halves) + error(*halves[::-1])) / jnp.maximum(jnp.sum(known), 1.0)


def _features(h: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    h, labels = widen(h, "h"), as_array(labels, "labels")
    require_shape("h", h, h.ndim == 2 and len(h) > 0, "[batch, dim]")
    require_shape("labels", labels, labels.shape == h.shape[:1], f"the batch of h, {h.shape[:1]}")
    return h, labels


def _mean_where(values: jax.Array, counts: jax.Array, axis_name: str | None) -> jax.Array:
    """Mean over the entries [batch] that count, of all devices; zero if there is none."""
    total = batch_mean(jnp.where(counts, values, 0.0), axis_name)
    share = batch_mean(counts.astype(values.dtype), axis_name)
    return total / jnp.where(share > 0, share, 1.0)
