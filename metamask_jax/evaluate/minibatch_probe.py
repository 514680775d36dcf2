"""Probes trained by SGD on minibatches of frozen features: linear classifiers, or networks with hidden layers.

All candidates, one for each mask, learning rate and part of the training set, are trained side by side in one program,
so features of augmented images are computed once for all of them. A minibatch is spread over the devices of all
processes, each of which gives the rows that are its own (`sharding`): minibatches are the same however many there are.
`probe.py` has the linear probe without minibatches.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from metamask_jax.core.arrays import matmul
from metamask_jax.core.types import PyTree
from metamask_jax.evaluate.rows import moments, row_chunks
from metamask_jax.evaluate.sharding import WHOLE, Share, all_devices, share_of, spread, total
from metamask_jax.evaluate.subsets import held_out_rows
from metamask_jax.training.distributed import AXIS

_NUMBERS = 2**24  # features on the devices at a time
_ROUND = 16  # rows of a process in a batch are filled up to a multiple of this, where there are several processes

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
    dimension, that leaves the mask's weights in force. In a run of several processes each passes its own rows of
    everything, and gets the scores of its own test rows.

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
    share = share_of(len(train_h))
    held_out = held_out_rows(share.total, held_out_fraction, seed)
    exact_mean, variance = moments(train_h)
    mean = exact_mean.astype(np.float32)
    gains = [(mask / max(np.sqrt(np.mean(variance * mask**2)), 1e-12)).astype(np.float32) for mask in masks]
    # Where a candidate is: of each mask, learning rates trained without the held-out rows, then with them.
    index = np.arange(2 * len(masks) * len(learning_rates)).reshape(len(masks), 2, len(learning_rates))
    trained = _train(
        epoch_features,
        np.asarray(train_labels),
        share,
        mean,
        _candidates(gains, held_out, learning_rates),
        _init(jax.random.key(seed), (train_h.shape[1], *hidden, num_classes)),
        weight_decay=weight_decay,
        epochs=epochs,
        batch_size=min(batch_size, share.total),
        seed=seed,
    )

    def scores(h: np.ndarray, mask: int, part: int, rate: int) -> np.ndarray:
        layers = jax.tree.map(lambda leaf: leaf[index[mask, part, rate]], trained)
        return np.asarray(_scores(layers, (h - mean) * gains[mask]))

    judged = held_out[share.own]
    right = np.zeros((len(masks), len(learning_rates)))
    for rows in row_chunks(train_h):  # once over the rows: they may be on disk
        h, labels = train_h[rows][judged[rows]], np.asarray(train_labels)[rows][judged[rows]]
        for mask, rate in np.ndindex(right.shape):
            right[mask, rate] += np.sum(scores(h, mask, 0, rate).argmax(axis=1) == labels)
    accuracies = total(right) / held_out.sum()

    results = []
    for mask in range(len(masks)):
        best = int(np.argmax(accuracies[mask]))
        table = dict(zip(learning_rates, accuracies[mask].tolist(), strict=True))
        nothing = np.empty((0, num_classes), np.float32)
        parts = [nothing, *(scores(test_h[rows], mask, 1, best) for rows in row_chunks(test_h))]
        results.append(TrainedProbe(np.concatenate(parts), learning_rates[best], table))
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
    share: Share,
    mean: np.ndarray,
    candidates: _Candidates,
    layers: Layers,
    *,
    weight_decay: float,
    epochs: int,
    batch_size: int,
    seed: int,
) -> Layers:
    """Trains all candidates, which start from the same layers; returns layers with a leading axis [count].

    The order is one of the rows of all processes, and drawn alike by each of them.
    """
    optimizer = momentum(weight_decay)
    steps = share.total // batch_size
    schedule = optax.cosine_decay_schedule(1.0, epochs * steps)
    random = np.random.default_rng(seed)
    count = len(candidates.rate)
    every = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[None], count, axis=0), layers)
    state = jax.tree.map(lambda leaf: spread(np.asarray(leaf), WHOLE), (every, jax.vmap(optimizer.init)(every)))
    gain, rate = (spread(x, WHOLE) for x in (candidates.gain, candidates.rate))
    train_all = train_steps(all_devices(), optimizer)
    group = max(1, _NUMBERS // (batch_size * len(mean)))  # steps whose rows are on the devices at a time
    for epoch in range(epochs):
        batches = random.permutation(share.total)[: steps * batch_size].reshape(steps, batch_size)
        h = epoch_features(epoch)
        for first in range(0, steps, group):
            rows, there = own_rows_of(batches[first : first + group], share, jax.local_device_count())
            decay = np.asarray(schedule(epoch * steps + first + np.arange(len(rows))), np.float32)
            x = np.where(there[:, :, None], h[rows.ravel()].reshape(*rows.shape, -1) - mean, 0).astype(np.float32)
            used = candidates.used[:, share.start + rows] & there
            state = train_all(
                state,
                gain,
                rate,
                spread(used, PartitionSpec(None, None, AXIS)),
                spread(x, PartitionSpec(None, AXIS)),
                spread(labels[rows].astype(np.int32), PartitionSpec(None, AXIS)),
                spread(decay, WHOLE),
            )
    trained: Layers = jax.tree.map(np.asarray, state[0])
    return trained


def own_rows_of(batches: np.ndarray, share: Share, devices: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of batches that are this process's, filled up to as many as any process has of any of the batches.

    Args:
      batches: int [steps, batch], rows of all processes.
      share: how they are spread.
      devices: of a process, which share its rows equally.

    Returns:
      Places among this process's own rows, int [steps, own], and whether there is a row, bool [steps, own].
    """
    holder = np.searchsorted(share.ends, batches, side="right")
    most = max(int((holder == index).sum(axis=1).max()) for index in range(len(share.ends)))
    if len(share.ends) > 1:
        most = -(-most // _ROUND) * _ROUND  # few different numbers, few programs
    most = -(-most // devices) * devices
    mine = holder == share.index
    first = np.argsort(~mine, axis=1, kind="stable")[:, :most]
    there, rows = (np.take_along_axis(x, first, axis=1) for x in (mine, batches - share.start))
    missing = most - there.shape[1]  # a batch that the devices cannot share equally
    return np.pad(np.where(there, rows, 0), ((0, 0), (0, missing))), np.pad(there, ((0, 0), (0, missing)))


def train_steps(mesh: Mesh, optimizer: optax.GradientTransformation) -> "jax.stages.Wrapped":
    """Builds the function that takes all candidates through steps.

    It is given layers and optimiser states [count, ...]; gain [count, dim] and learning rate [count]; which rows each
    may use, bool [count, steps, batch]; features [steps, batch, dim], labels [steps, batch] and decay [steps]. The
    batch is split over the mesh.
    """
    steps = jax.vmap(partial(_steps, optimizer), in_axes=(0, 0, 0, 0, None, None, None))
    batch = PartitionSpec(None, AXIS)
    specs = (WHOLE, WHOLE, WHOLE, PartitionSpec(None, None, AXIS), batch, batch, WHOLE)
    return jax.jit(jax.shard_map(steps, mesh=mesh, in_specs=specs, out_specs=WHOLE, check_vma=False), donate_argnums=0)


def _steps(
    optimizer: optax.GradientTransformation,
    carry: tuple[Layers, PyTree],
    gain: jax.Array,
    rate: jax.Array,
    used: jax.Array,
    h: jax.Array,
    labels: jax.Array,
    decay: jax.Array,
) -> tuple[Layers, PyTree]:
    """One candidate's steps over batches h [steps, batch, dim]; rows it may not use have weight zero."""

    def step(carry: tuple[Layers, PyTree], batch: tuple[jax.Array, ...]) -> tuple[tuple[Layers, PyTree], None]:
        (layers, state), (h, labels, used, decay) = carry, batch
        weights = used.astype(jnp.float32)
        weights /= lax.psum(jnp.sum(weights), AXIS).clip(1.0)

        def loss(layers: Layers) -> jax.Array:
            losses = optax.softmax_cross_entropy_with_integer_labels(_scores(layers, h * gain), labels)
            return jnp.sum(weights * losses)

        gradient = lax.psum(jax.grad(loss)(layers), AXIS)
        updates, state = optimizer.update(gradient, state, layers)
        layers = jax.tree.map(lambda leaf, update: leaf - rate * decay * update, layers, updates)
        return (layers, state), None

    return lax.scan(step, carry, (h, labels, used, decay))[0]
