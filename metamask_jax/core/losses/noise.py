"""Noise-contrastive estimation as contrastive multiview coding uses it (Tian et al. 2019; Gutmann & Hyvarinen 2010)."""

import math

import jax
import jax.numpy as jnp
from jax import lax

from metamask_jax.core import collectives
from metamask_jax.core.arrays import (
    batch_mean,
    matmul,
    require_number,
    require_shape,
    require_temperature,
    require_whole,
    unit_norm,
    widen,
)


def memory_logits(
    z: jax.Array, positives: jax.Array, negatives: jax.Array, *, temperature: float | jax.Array = 0.07
) -> jax.Array:
    """Similarities of projections to their own and to others' memories.

    Args:
      z: [..., batch, dim].
      positives: the memory of each image [batch, dim], without gradient.
      negatives: memories [size, dim], the same for all images, without gradient.
      temperature: divides the cosines; the default is CMC's.

    Returns:
      [..., batch, 1 + size], the image's own memory first.

    Example:
      >>> memory_logits(jnp.eye(2), jnp.eye(2), -jnp.eye(2), temperature=0.5)
      Array([[ 2., -2.,  0.],
             [ 2.,  0., -2.]], dtype=float32)
    """
    require_temperature(temperature)
    z, positives, negatives = widen(z, "z"), widen(positives, "positives"), widen(negatives, "negatives")
    require_shape("z", z, z.ndim >= 2, "[..., batch, dim]")
    require_shape("positives", positives, positives.shape == z.shape[-2:], f"the [batch, dim] of z, {z.shape[-2:]}")
    dim = z.shape[-1]
    require_shape("negatives", negatives, negatives.ndim == 2 and negatives.shape[1] == dim, f"[size, {dim}]")
    z, positives, negatives = unit_norm(z), unit_norm(positives), unit_norm(negatives)
    positive = jnp.sum(z * lax.stop_gradient(positives), axis=-1, keepdims=True)
    return jnp.concatenate([positive, matmul(z, lax.stop_gradient(negatives).T)], axis=-1) / temperature


def noise_contrastive(
    logits: jax.Array,
    *,
    normalizer: float | jax.Array | None = None,
    population: int | None = None,
    axis_name: str | None = None,
) -> jax.Array:
    """Tells an image's own memory from ones drawn uniformly: -log D(own) - sum of log(1 - D(drawn)).

    D = p / (p + m / n) for p = exp(logit) / Z: the probability that a memory is the image's own rather than one of m
    drawn from n.

    Args:
      logits: [..., 1 + m], the image's own memory first.
      normalizer: Z. By default n times the mean of exp(logit) over these logits, without gradient, which is CMC's
        estimate from its first batch; n then cancels.
      population: n, from how many the others were drawn; needed with a normalizer.
      axis_name: the mapped axis over which the images are split, if any.

    Returns:
      The mean over images, a scalar.

    Example:
      >>> f"{noise_contrastive(jnp.zeros((5, 2)), normalizer=4.0, population=4):.4f}"  # p = 1/4 = m/n: 2 log(2)
      '1.3863'
    """
    logits = widen(logits, "logits")
    require_shape("logits", logits, logits.ndim >= 1 and logits.shape[-1] >= 2, "[..., 1 + m] with m >= 1")
    drawn = logits.shape[-1] - 1
    if normalizer is None:
        odds = logits - _log_mean_exp(logits, axis_name) - math.log(drawn)
    else:
        require_number("normalizer", normalizer, lambda z: z > 0, "a number > 0, or None")
        population = require_whole("population", population, expected="a whole number >= 1 to go with a normalizer")
        odds = logits - jnp.log(normalizer) - math.log(drawn / population)
    losses = -jax.nn.log_sigmoid(odds[..., 0]) - jnp.sum(jax.nn.log_sigmoid(-odds[..., 1:]), axis=-1)
    return batch_mean(losses, axis_name)


def _log_mean_exp(logits: jax.Array, axis_name: str | None) -> jax.Array:
    """log(mean(exp(logits))) over all entries of all devices, a constant to every derivative."""
    own = jax.nn.logsumexp(lax.stop_gradient(logits)) - math.log(logits.size)
    everyone = collectives.gather(own[None], axis_name, axis=0)
    return jax.nn.logsumexp(everyone) - math.log(len(everyone))
