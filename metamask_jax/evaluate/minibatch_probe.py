"""Probes trained by SGD on minibatches of frozen features: linear classifiers, or networks with hidden layers.

All candidates, one for each mask, learning rate and part of the training set, are trained side by side in one program,
so features of augmented images are computed once for all of them. `probe.py` has the linear probe without minibatches.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from metamask_jax.core.arrays import matmul
from metamask_jax.core.types import PyTree
from metamask_jax.evaluate.rows import moments, row_chunks
from metamask_jax.evaluate.subsets import held_out_rows

_NUMBERS = 2**24  # features on the device at a time

Layers = tuple[tuple[jax.Array, jax.Array], ...]  # weights [in, out] and bias [out] of each layer


class TrainedProbe(NamedTuple):
    """What a classifier trained by SGD found.

    Attributes:
      scores: float32 [test, num_classes], log-probabilities up to one constant per row.
      learning_rate: the one chosen.
      held_out: accuracy of each learning rate on the held-out part of the training set.
    """

    scores: np.ndarray
    learning_rate: float
    held_out: dict[float, float]


class _Candidates(NamedTuple):
    """What candidates [count] differ in: gain [count, dim], rows trained on [count, train], learning rate [count]."""

    gain: np.ndarray
    used: np.ndarray
    rate: np.ndarray


def minibatch_probes(
    epoch_features: Callable[[int], np.ndarray],
    train_h: np.ndarray,
    train_labels: np.ndarray,
    test_h: np.ndarray,
    *,
    masks: Sequence[np.ndarray],
    hidden: Sequence[int],
    num_classes: int,
    learning_rates: Sequence[float],
    weight_decay: float,
    epochs: int,
    batch_size: int,
    held_out_fraction: float,
    seed: int,
) -> list[TrainedProbe]:
    """Trains one probe on each masking of the features, its learning rate chosen on held-out training rows.

    The features lose their mean and are divided by one number, their overall spread: unlike standardising every
    dimension, that leaves the mask's weights in force.

    Args:
      epoch_features: features [train, dim] to train on in an epoch, the same or those of newly augmented images; may be
        memory-mapped, as only some batches are copied at a time.
      train_h: features [train, dim] of the images as they are: give mean and spread, and judge the held-out rows.
      train_labels: int [train], each in [0, num_classes).
      test_h: features [test, dim].
      masks: weights [dim] each, by which the features are multiplied.
      hidden: widths of hidden layers; none for a linear probe.
      num_classes: number of classes.
      learning_rates: to choose from, each decayed to zero by a cosine; of equally good ones the first is taken.
      weight_decay: added to the gradient.
      epochs: passes over the training rows.
      batch_size: rows per step.
      held_out_fraction: part of the training rows to choose the learning rate on.
      seed: of the held-out part, the order and the initial weights.

    Returns:
      One result per mask.
    """
    held_out = held_out_rows(len(train_h), held_out_fraction, seed)
    exact_mean, variance = moments(train_h)
    mean = exact_mean.astype(np.float32)
    gains = [(mask / max(np.sqrt(np.mean(variance * mask**2)), 1e-12)).astype(np.float32) for mask in masks]
    # Where a candidate is: of each mask, learning rates trained without the held-out rows, then with them.
    index = np.arange(2 * len(masks) * len(learning_rates)).reshape(len(masks), 2, len(learning_rates))
    trained = _train(
        epoch_features,
        np.asarray(train_labels),
        mean,
        _candidates(gains, held_out, learning_rates),
        _init(jax.random.key(seed), (train_h.shape[1], *hidden, num_classes)),
        weight_decay=weight_decay,
        epochs=epochs,
        batch_size=min(batch_size, len(train_h)),
        seed=seed,
    )

    def scores(h: np.ndarray, mask: int, part: int, rate: int) -> Iterator[np.ndarray]:
        layers = jax.tree.map(lambda leaf: leaf[index[mask, part, rate]], trained)
        return (np.asarray(_scores(layers, (h[rows] - mean) * gains[mask])) for rows in row_chunks(h))

    judged, judged_labels = train_h[held_out], train_labels[held_out]
    results = []
    for mask in range(len(masks)):
        accuracies = [
            float(np.mean(np.concatenate([x.argmax(axis=1) for x in scores(judged, mask, 0, rate)]) == judged_labels))
            for rate in range(len(learning_rates))
        ]
        best = int(np.argmax(accuracies))
        table = dict(zip(learning_rates, accuracies, strict=True))
        results.append(TrainedProbe(np.concatenate(list(scores(test_h, mask, 1, best))), learning_rates[best], table))
    return results


def momentum(weight_decay: float) -> optax.GradientTransformation:
    """SGD's direction with momentum 0.9, still to be multiplied by minus the learning rate."""
    return optax.chain(optax.add_decayed_weights(weight_decay), optax.trace(0.9))


def _candidates(gains: Sequence[np.ndarray], held_out: np.ndarray, learning_rates: Sequence[float]) -> _Candidates:
    """Every gain with every part of the rows with every learning rate, the last of which changes fastest."""
    parts, rates = np.stack([~held_out, np.ones_like(held_out)]), np.asarray(learning_rates, np.float32)
    return _Candidates(
        gain=np.repeat(np.stack(gains), len(parts) * len(rates), axis=0),
        used=np.tile(np.repeat(parts, len(rates), axis=0), (len(gains), 1)),
        rate=np.tile(rates, len(parts) * len(gains)),
    )


def _init(key: jax.Array, widths: Sequence[int]) -> Layers:
    """He's initialisation of hidden layers, zeros for the last: all classes start out equally likely."""
    layers = []
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
        std = (2 / fan_in) ** 0.5 if i < len(widths) - 2 else 0.0
        weights = std * jax.random.normal(jax.random.fold_in(key, i), (fan_in, fan_out))
        layers.append((weights, jnp.zeros(fan_out)))
    return tuple(layers)


@jax.jit
def _scores(layers: Layers, h: jax.Array) -> jax.Array:
    for i, (weights, bias) in enumerate(layers):
        h = matmul(jax.nn.relu(h) if i else h, weights) + bias
    return h


def _train(
    epoch_features: Callable[[int], np.ndarray],
    labels: np.ndarray,
    mean: np.ndarray,
    candidates: _Candidates,
    layers: Layers,
    *,
    weight_decay: float,
    epochs: int,
    batch_size: int,
    seed: int,
) -> Layers:
    """Trains all candidates, which start from the same layers; returns layers with a leading axis [count]."""
    optimizer = momentum(weight_decay)
    steps = len(labels) // batch_size
    schedule = optax.cosine_decay_schedule(1.0, epochs * steps)
    random = np.random.default_rng(seed)
    all_layers = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], len(candidates.rate), axis=0), layers)
    states = jax.vmap(optimizer.init)(all_layers)
    train_all = jax.jit(jax.vmap(partial(_steps, optimizer), in_axes=(0, 0, 0, None, None, None)))
    group = max(1, _NUMBERS // (batch_size * len(mean)))  # steps whose rows are on the device at a time
    for epoch in range(epochs):
        batches = random.permutation(len(labels))[: steps * batch_size].reshape(steps, batch_size)
        h = epoch_features(epoch)
        for first in range(0, steps, group):
            rows = batches[first : first + group]
            decay = schedule(epoch * steps + first + jnp.arange(len(rows)))
            own = candidates._replace(used=candidates.used[:, rows])
            x = np.asarray(h[rows.ravel()], np.float32).reshape(*rows.shape, -1) - mean
            all_layers, states = train_all(all_layers, states, own, x, labels[rows], decay)
    return all_layers


def _steps(
    optimizer: optax.GradientTransformation,
    layers: Layers,
    state: PyTree,
    candidate: _Candidates,
    h: jax.Array,
    labels: jax.Array,
    decay: jax.Array,
) -> tuple[Layers, PyTree]:
    """One candidate's steps over batches h [steps, batch, dim]; rows it may not use have weight zero."""

    def step(carry: tuple[Layers, PyTree], batch: tuple[jax.Array, ...]) -> tuple[tuple[Layers, PyTree], None]:
        (layers, state), (h, labels, used, decay) = carry, batch
        weights = used.astype(jnp.float32)

        def loss(layers: Layers) -> jax.Array:
            losses = optax.softmax_cross_entropy_with_integer_labels(_scores(layers, h * candidate.gain), labels)
            return jnp.sum(weights * losses) / jnp.sum(weights).clip(1.0)

        updates, state = optimizer.update(jax.grad(loss)(layers), state, layers)
        layers = jax.tree.map(lambda leaf, update: leaf - candidate.rate * decay * update, layers, updates)
        return (layers, state), None

    batches: tuple[jax.Array, ...] = (h, labels, jnp.asarray(candidate.used), decay)
    (layers, state), _ = lax.scan(step, (layers, state), batches)
    return layers, state
