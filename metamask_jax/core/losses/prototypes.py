"""SwAV's loss (Caron et al. 2020): views predict each other's assignment to prototypes, balanced over the batch."""

import itertools

import jax
import jax.numpy as jnp
from jax import lax

from metamask_jax.core.arrays import as_projections, matmul, require_temperature, unit_norm, widen


def sinkhorn(
    scores: jax.Array,
    *,
    epsilon: float,
    iterations: int,
    past: jax.Array | None = None,
    past_counts: bool | jax.Array = True,
    axis_name: str | None = None,
) -> jax.Array:
    """Soft assignments of images to prototypes that share the images equally, by Sinkhorn and Knopp's algorithm.

    exp(scores / epsilon), with prototypes and images scaled in turn to equal sums. The images come last, so the
    assignments of each sum to one exactly, and the prototypes' shares are as equal as the iterations make them. All
    in logarithms: nothing overflows however small epsilon is.

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
      >>> codes = sinkhorn(jnp.array([[1.0, 0.9], [1.0, 0.8]]), epsilon=0.05, iterations=3)  # both prefer the first
      >>> [[f"{share:.2f}" for share in image] for image in codes]
      [['0.27', '0.73'], ['0.73', '0.27']]
    """
    batch, devices = len(scores), 1 if axis_name is None else lax.axis_size(axis_name)
    log_weights = jnp.zeros(batch)
    if past is not None:
        scores = jnp.concatenate([scores, past])
        # Every device has them all; together they count once.
        log_weight = jnp.where(past_counts, -jnp.log(devices), -jnp.inf)
        log_weights = jnp.concatenate([log_weights, jnp.broadcast_to(log_weight, len(past))])
    logits = lax.stop_gradient(widen(scores)) / epsilon
    prototype_scale, image_scale = jnp.zeros(logits.shape[1]), jnp.zeros(len(logits))
    for _ in range(iterations):
        mass = jax.nn.logsumexp(logits + (image_scale + log_weights)[:, None], axis=0)
        if axis_name is not None:
            mass = jax.nn.logsumexp(lax.all_gather(mass, axis_name), axis=0)
        prototype_scale = -mass
        image_scale = -jax.nn.logsumexp(logits + prototype_scale, axis=1)
    return jax.nn.softmax(logits[:batch] + prototype_scale)


def swapped_prediction(
    z: jax.Array,
    prototypes: jax.Array,
    *,
    temperature: float | jax.Array,
    epsilon: float,
    iterations: int,
    small: jax.Array | None = None,
    past: jax.Array | None = None,
    past_counts: bool | jax.Array = True,
    axis_name: str | None = None,
) -> jax.Array:
    """Cross-entropy of every view's softmax over prototypes to the assignment of every other full view.

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
      >>> f"{swapped_prediction(z, jnp.eye(3), temperature=0.1, epsilon=0.05, iterations=3):.4f}"  # log(1 + 2 exp(-10))
      '0.0001'
    """
    require_temperature(temperature)
    z, directions = as_projections(z), unit_norm(widen(prototypes))
    views = len(z) + (0 if small is None else len(small))
    scores = matmul(unit_norm(z if small is None else jnp.concatenate([z, widen(small)])), directions.T)
    past_scores = None if past is None else matmul(unit_norm(widen(past)), directions.T)
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
    loss = -jnp.mean(jnp.stack([jnp.sum(codes[i] * predictions[j], axis=-1) for i, j in pairs]))
    return loss if axis_name is None else lax.pmean(loss, axis_name)
