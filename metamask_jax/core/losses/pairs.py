"""Losses of predictions and their targets: BYOL's and SimSiam's, MoCo's, NNCLR's, and classification."""

import jax
import jax.numpy as jnp
from jax import lax

from metamask_jax.core import collectives
from metamask_jax.core.arrays import (
    as_array,
    as_projections,
    batch_mean,
    matmul,
    require_shape,
    require_temperature,
    unit_norm,
    widen,
)


def negative_cosine(predictions: jax.Array, targets: jax.Array, *, axis_name: str | None = None) -> jax.Array:
    """Minus the cosine of each view's predictions to every *other* view's targets, which get no gradient.

    The mean over ordered pairs of views and over images: SimSiam's loss (Chen & He 2021), and BYOL's (Grill et al.
    2020) up to a scale and a constant.

    Args:
      predictions: [views, batch, dim].
      targets: [views, batch, dim].
      axis_name: the mapped axis over which the batch is split, if any.

    Returns:
      The loss in [-1, 1], a scalar.

    Example:
      >>> z = jnp.stack([jnp.eye(3), jnp.eye(3)])
      >>> float(negative_cosine(z, z))
      -1.0
    """
    predictions, targets = as_projections(predictions, "predictions"), as_projections(targets, "targets")
    require_shape("targets", targets, targets.shape == predictions.shape, f"that of predictions, {predictions.shape}")
    predictions, targets = unit_norm(predictions), lax.stop_gradient(unit_norm(targets))
    # Roll r pairs view j with view j + r (modulo views): over all r, each prediction meets all targets but its own.
    cosines = [jnp.sum(predictions * jnp.roll(targets, -r, axis=0), axis=-1) for r in range(1, len(targets))]
    return batch_mean(-jnp.stack(cosines), axis_name)


def info_nce(
    queries: jax.Array,
    keys: jax.Array,
    negatives: jax.Array,
    *,
    temperature: float | jax.Array = 0.07,
    axis_name: str | None = None,
) -> jax.Array:
    """Contrast of queries with one key each against shared negatives (MoCo, He et al. 2020).

    Args:
      queries: [..., dim].
      keys: the queries' positives [..., dim], without gradient.
      negatives: [size, dim], the same for all queries, without gradient.
      temperature: divides the cosine similarities; the default is MoCo's.
      axis_name: the mapped axis over which the queries are split, if any.

    Returns:
      The mean over queries of -log(positive / (positive + sum of negatives)), a scalar.

    Example:
      >>> f"{info_nce(jnp.eye(3), jnp.eye(3), -jnp.eye(3), temperature=0.5):.4f}"  # log(1 + 2 exp(-2) + exp(-4))
      '0.2539'
    """
    require_temperature(temperature)
    queries, keys, negatives = widen(queries, "queries"), widen(keys, "keys"), widen(negatives, "negatives")
    require_shape("queries", queries, queries.ndim >= 1, "[..., dim]")
    require_shape("keys", keys, keys.shape == queries.shape, f"that of queries, {queries.shape}")
    dim = queries.shape[-1]
    require_shape("negatives", negatives, negatives.ndim == 2 and negatives.shape[1] == dim, f"[size, {dim}]")
    queries, keys, negatives = unit_norm(queries), unit_norm(keys), unit_norm(negatives)
    positive = jnp.sum(queries * lax.stop_gradient(keys), axis=-1) / temperature
    logits = matmul(queries, lax.stop_gradient(negatives).T) / temperature
    denominator = jnp.logaddexp(positive, jax.nn.logsumexp(logits, axis=-1))
    return batch_mean(denominator - positive, axis_name)


def info_nce_in_batch(
    anchors: jax.Array, candidates: jax.Array, *, temperature: float | jax.Array = 0.1, axis_name: str | None = None
) -> jax.Array:
    """Contrast of each anchor with its own candidate against the batch's other candidates (NNCLR, Dwibedi et al. 2021).

    Args:
      anchors: [batch, dim].
      candidates: [batch, dim]; row i is anchor i's positive.
      temperature: divides the cosine similarities; the default is NNCLR's.
      axis_name: the mapped axis over which the batch is split, if any; candidates come from all devices.

    Returns:
      The mean over anchors of -log(positive / sum over all candidates), a scalar.

    Example:
      >>> f"{info_nce_in_batch(jnp.eye(3), jnp.eye(3), temperature=0.5):.4f}"  # log(1 + 2 exp(-2))
      '0.2395'
    """
    require_temperature(temperature)
    anchors, candidates = widen(anchors, "anchors"), widen(candidates, "candidates")
    require_shape("anchors", anchors, anchors.ndim == 2, "[batch, dim]")
    require_shape("candidates", candidates, candidates.shape == anchors.shape, f"that of anchors, {anchors.shape}")
    anchors, candidates = unit_norm(anchors), unit_norm(candidates)
    positive = jnp.sum(anchors * candidates, axis=-1) / temperature
    logits = matmul(anchors, collectives.gather(candidates, axis_name, axis=0).T) / temperature
    return batch_mean(jax.nn.logsumexp(logits, axis=-1) - positive, axis_name)


def cross_entropy(logits: jax.Array, labels: jax.Array, *, axis_name: str | None = None) -> jax.Array:
    """Classification loss, the mean over the images that have a label; without any, it is not a number.

    Args:
      logits: [..., batch, classes].
      labels: int [batch], each in [0, classes), or -1 where there is none.
      axis_name: the mapped axis over which the batch is split, if any.

    Returns:
      The loss, a scalar.

    Example:
      >>> f"{cross_entropy(jnp.zeros((3, 10)), jnp.array([0, 9, -1])):.4f}"  # log(10)
      '2.3026'
    """
    logits, labels = widen(logits, "logits"), as_array(labels, "labels")
    require_shape("logits", logits, logits.ndim >= 2, "[..., batch, classes]")
    require_shape("labels", labels, labels.shape == logits.shape[-2:-1], f"the batch of logits, {logits.shape[-2:-1]}")
    log_probabilities = jax.nn.log_softmax(logits)
    one_hot = jax.nn.one_hot(labels, logits.shape[-1], dtype=log_probabilities.dtype)  # all zeros for -1
    total = -batch_mean(jnp.sum(one_hot * log_probabilities, axis=-1), axis_name)
    return total / batch_mean((labels >= 0).astype(total.dtype), axis_name)
