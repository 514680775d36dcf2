"""Noise-contrastive estimation as contrastive multiview coding uses it (Tian et al. 2019; Gutmann & Hyvarinen 2010)."""

import math

import jax
import jax.numpy as jnp
from jax import lax

from metamask_jax.core.arrays import matmul, require_temperature, unit_norm, widen


def memory_logits(
    z: jax.Array, positives: jax.Array, negatives: jax.Array, *, temperature: float | jax.Array
) -> jax.Array:
    """Similarities of projections to their own and to others' memories.

    Args:
      z: [..., batch, dim].
      positives: the memory of each image [batch, dim], without gradient.
      negatives: memories [size, dim], the same for all images, without gradient.
      temperature: divides the cosines.

    Returns:
      [..., batch, 1 + size], the image's own memory first.

    Example:
      >>> memory_logits(jnp.eye(2), jnp.eye(2), -jnp.eye(2), temperature=0.5)
      Array([[ 2., -2.,  0.],
             [ 2.,  0., -2.]], dtype=float32)
    """
    require_temperature(temperature)
    z, positives, negatives = (unit_norm(widen(x)) for x in (z, positives, negatives))
    positive = jnp.sum(z * lax.stop_gradient(positives), axis=-1, keepdims=True)
    return jnp.concatenate([positive, matmul(z, lax.stop_gradient(negatives).T)], axis=-1) / temperature


def noise_contrastive(
    logits: jax.Array, *, normalizer: float | jax.Array, population: int, axis_name: str | None = None
) -> jax.Array:
    """Tells an image's own memory from ones drawn uniformly: -log D(own) - sum of log(1 - D(drawn)).

    D = p / (p + m / n) for p = exp(logit) / Z: the probability that a memory is the image's own rather than one of m
    drawn from n.

    Args:
      logits: [..., 1 + m], the image's own memory first.
      normalizer: Z.
      population: n, from how many the others were drawn.
      axis_name: the mapped axis over which the images are split, if any.

    Returns:
      The mean over images, a scalar.

    Example:
      >>> f"{noise_contrastive(jnp.zeros((5, 2)), normalizer=4.0, population=4):.4f}"  # p = 1/4 = m/n: 2 log(2)
      '1.3863'
    """
    drawn = logits.shape[-1] - 1
    odds = widen(logits) - jnp.log(normalizer) - math.log(drawn / population)
    losses = -jax.nn.log_sigmoid(odds[..., 0]) - jnp.sum(jax.nn.log_sigmoid(-odds[..., 1:]), axis=-1)
    mean = jnp.mean(losses)
    return mean if axis_name is None else lax.pmean(mean, axis_name)
