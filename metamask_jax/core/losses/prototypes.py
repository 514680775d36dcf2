"""SwAV's loss (Caron et al. 2020): views predict each other's assignment to prototypes, balanced over the batch."""

import itertools

import jax
import jax.numpy as jnp
from jax import lax

from metamask_jax.core import collectives
from metamask_jax.core.arrays import (
    as_projections,
    batch_mean,
    matmul,
    require_number,
    require_shape,
    require_temperature,
    require_whole,
    unit_norm,
    widen,
)


def sinkhorn(
    scores: jax.Array,
    *,
    epsilon: float = 0.05,
    iterations: int = 3,
    past: jax.Array | None = None,
    past_counts: bool | jax.Array = True,
    axis_name: str | None = None,
) -> jax.Array:
    """Soft assignments of images to prototypes that share the images equally, by Sinkhorn and Knopp's algorithm.

    exp(scores / epsilon), with prototypes and images scaled in turn to equal sums. The images come last, so the
    assignments of each sum to one exactly, and the prototypes' shares are as equal as the iterations make them. All
    in logarithms: nothing overflows however small epsilon is. The defaults are SwAV's.

    Args:
      scores: cosines [batch, prototypes].
      epsilon: entropy of the assignments; the smaller, the harder they are.
      iterations: how often both are scaled.
      past: scores [size, prototypes] of further images that share the prototypes, equal on all devices.
      past_counts: whether they do.
      axis_name: the mapped axis over which the batch is split, if any; the prototypes share the batch of all devices.

    Returns:
      [batch, prototypes], constants to every derivative.

    Example:
      >>> codes = sinkhorn(jnp.array([[1.0, 0.9], [1.0, 0.8]]))  # both prefer the first
      >>> [[f"{share:.2f}" for share in image] for image in codes]
      [['0.27', '0.73'], ['0.73', '0.27']]
    """
    require_number("epsilon", epsilon, lambda epsilon: epsilon > 0, "a number > 0")
    require_whole("iterations", iterations)
    scores = widen(scores, "scores")
    require_shape("scores", scores, scores.ndim == 2, "[batch, prototypes]")
    batch = len(scores)
    log_weights = jnp.zeros(batch)
    if past is not None:
        past = widen(past, "past")
        fits = past.ndim == 2 and past.shape[1] == scores.shape[1]
        require_shape("past", past, fits, f"[size, {scores.shape[1]}]")
        scores = jnp.concatenate([scores, past])
        # Every device has them all; together they count once.
        log_weight = jnp.where(past_counts, -jnp.log(collectives.device_count(axis_name)), -jnp.inf)
        log_weights = jnp.concatenate([log_weights, jnp.broadcast_to(log_weight, len(past))])
    logits = lax.stop_gradient(scores) / epsilon
    prototype_scale, image_scale = jnp.zeros(logits.shape[1]), jnp.zeros(len(logits))
    for _ in range(iterations):
        mass = jax.nn.logsumexp(logits + (image_scale + log_weights)[:, None], axis=0)
        prototype_scale = -jax.nn.logsumexp(collectives.gather(mass[None], axis_name, axis=0), axis=0)
        image_scale = -jax.nn.logsumexp(logits + prototype_scale, axis=1)
    return jax.nn.softmax(logits[:batch] + prototype_scale)


def swapped_prediction(
    z: jax.Array,
    prototypes: jax.Array,
    *,
    temperature: float | jax.Array = 0.1,
    epsilon: float = 0.05,
    iterations: int = 3,
    small: jax.Array | None = None,
    past: jax.Array | None = None,
    past_counts: bool | jax.Array = True,
    axis_name: str | None = None,
) -> jax.Array:
    """Cross-entropy of every view's softmax over prototypes to the assignment of every other full view.

    The defaults are SwAV's.

    Args:
      z: [views, batch, dim].
      prototypes: [prototypes, dim]; only their directions count.
      temperature: of the softmax that predicts.
      epsilon: of the assignments, see `sinkhorn`.
      iterations: of the same.
      small: projections of small crops [small views, batch, dim], which predict but are not predicted.
      past: projections [views, size, dim] of past images, that share the prototypes with this batch's same view.
      past_counts: whether they do.
      axis_name: the mapped axis over which the batch is split, if any.

    Returns:
      The mean over pairs of views and over images, a scalar.

    Example:
      >>> z = jnp.stack([jnp.eye(3), jnp.eye(3)])
      >>> f"{swapped_prediction(z, jnp.eye(3)):.4f}"  # log(1 + 2 exp(-10))
      '0.0001'
    """
    require_temperature(temperature)
    z, prototypes = as_projections(z), widen(prototypes, "prototypes")
    dim = z.shape[-1]
    require_shape("prototypes", prototypes, prototypes.ndim == 2 and prototypes.shape[1] == dim, f"[prototypes, {dim}]")
    directions = unit_norm(prototypes)
    if small is not None:
        small = widen(small, "small")
        fits = small.ndim == 3 and small.shape[1:] == z.shape[1:]
        require_shape("small", small, fits, f"[views, {z.shape[1]}, {dim}]")
    if past is not None:
        past = widen(past, "past")
        fits = past.ndim == 3 and (len(past), past.shape[2]) == (len(z), dim)
        require_shape("past", past, fits, f"[{len(z)}, size, {dim}]")
    views = len(z) + (0 if small is None else len(small))
    scores = matmul(unit_norm(z if small is None else jnp.concatenate([z, small])), directions.T)
    past_scores = None if past is None else matmul(unit_norm(past), directions.T)
    codes = [
        sinkhorn(
            scores[i],
            epsilon=epsilon,
            iterations=iterations,
            past=None if past_scores is None else past_scores[i],
            past_counts=past_counts,
            axis_name=axis_name,
        )
        for i in range(len(z))
    ]
    predictions = jax.nn.log_softmax(scores / temperature)
    pairs = [(i, j) for i, j in itertools.product(range(len(z)), range(views)) if i != j]
    return -batch_mean(jnp.stack([jnp.sum(codes[i] * predictions[j], axis=-1) for i, j in pairs]), axis_name)
