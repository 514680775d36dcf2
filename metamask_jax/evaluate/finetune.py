"""Fine-tuning of the whole network on labelled images, on a copy of the pretrained weights."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.typing import ArrayLike

from metamask_jax.augment import ViewSpec, example_keys, make_augmentation
from metamask_jax.core.types import PyTree
from metamask_jax.data.sources import Source
from metamask_jax.data.streams import MapParts, StreamSource, map_steps
from metamask_jax.evaluate.features import extract_source, make_extractor
from metamask_jax.evaluate.minibatch_probe import TrainedProbe, momentum
from metamask_jax.evaluate.sharding import total
from metamask_jax.evaluate.subsets import held_out_rows
from metamask_jax.evaluate.views import left_to_device, seen_on_host
from metamask_jax.evaluate.workdir import Run
from metamask_jax.training.distributed import AXIS, own_rows
from metamask_jax.training.optimizers import SCHEDULES, make_schedule
from metamask_jax.training.state import build_encoder


class Tuned(NamedTuple):
    """A network being fine-tuned.

    Attributes:
      params: of the `encoder`, and the linear classifier's `weights` [dim, num_classes] and `bias`.
      batch_stats: BatchNorm statistics of the encoder.
      opt_state: of the optimiser.
    """

    params: PyTree
    batch_stats: PyTree
    opt_state: PyTree


Step = Callable[[Tuned, ArrayLike, ArrayLike, ArrayLike, ArrayLike, ArrayLike], Tuned]


def finetune(
    run: Run,
    train: Source,
    train_labels: np.ndarray,
    rows: np.ndarray,
    test: Source,
    *,
    view: ViewSpec,
    num_classes: int,
    learning_rates: Sequence[float],
    weight_decay: float,
    steps: int,
    trial_steps: int,
    batch_size: int,
    held_out_fraction: float,
    seed: int,
) -> TrainedProbe:
    """Trains the encoder and a linear classifier together; the run itself stays as it is.

    The learning rate is chosen by shorter runs, judged on a held-out part of the training images; then the network is
    trained anew on all of them. The devices of all processes share each batch; every process passes all labels and
    gets the scores of its own test images.

    Args:
      run: where the encoder comes from.
      train: labelled images.
      train_labels: int [train], each in [0, num_classes).
      rows: int [size], which of them to use.
      test: images to score.
      view: random augmentation of the training images.
      num_classes: number of classes.
      learning_rates: to choose from, each decayed to zero by a cosine; of equally good ones the first is taken.
      weight_decay: added to the gradient.
      steps: of the final training.
      trial_steps: of each training on which the learning rate is chosen.
      batch_size: images per step over all devices, which share them; cut down to a multiple of their number.
      held_out_fraction: part of the training images to choose the learning rate on.
      seed: of the held-out part, the order and the augmentation.
    """
    devices = jax.device_count()
    fit = _Fit(
        start=_start(run, num_classes, weight_decay),
        step=_make_step(run, train, view, weight_decay=weight_decay, seed=seed),
        shown=partial(seen_on_host, train, view, image_size=run.config.data.image_size, seed=seed),
        labels=train_labels,
        batch_size=max(1, batch_size // devices) * devices,
        seed=seed,
    )
    extract = make_extractor(run.config, registry=run.registry)

    def scores(tuned: Tuned, source: Source, rows: np.ndarray | None) -> np.ndarray:
        h, _ = extract_source(extract, tuned.params, {"encoder": tuned.batch_stats}, source, rows=rows)
        return np.asarray(h @ np.asarray(tuned.params["weights"]) + np.asarray(tuned.params["bias"]))

    held_out = held_out_rows(len(rows), held_out_fraction, seed)
    accuracies = {}
    for rate in learning_rates:
        found = scores(fit(rows[~held_out], rate, trial_steps), train, rows[held_out])
        judged = train_labels[rows[held_out]][own_rows(int(held_out.sum()))]
        right, count = total([np.sum(found.argmax(axis=1) == judged), len(judged)])
        accuracies[rate] = float(right / count)
    best = max(accuracies, key=lambda rate: accuracies[rate])
    return TrainedProbe(scores(fit(rows, best, steps), test, None), best, accuracies)


class _Fit(NamedTuple):
    """Trains from the pretrained weights on; a function of the rows to use, the learning rate and the steps."""

    start: Tuned
    step: Step
    shown: Callable[..., Source]  # the training images as they are seen, a function of the `draw`
    labels: np.ndarray
    batch_size: int
    seed: int

    def __call__(self, rows: np.ndarray, learning_rate: float, steps: int) -> Tuned:
        random, devices = np.random.default_rng(self.seed), jax.local_device_count()
        passes = -(-steps * self.batch_size // len(rows))
        # A batch may begin in one epoch and end in the next, so that a few images fill a batch of any size.
        order = np.concatenate([random.permutation(rows) for _ in range(passes)])
        rate = make_schedule(
            SCHEDULES["cosine"],
            learning_rate=learning_rate,
            steps_per_epoch=steps,
            total_steps=steps,
            warmup_epochs=0.0,
        )
        tuned, own = self.start, own_rows(self.batch_size)
        positions = np.arange(self.batch_size, dtype=np.int32)[own].reshape(jax.local_device_count(), -1)
        make = partial(_gather, shown=self.shown, batches=order[: steps * self.batch_size].reshape(steps, -1)[:, own])
        ready: Iterator[tuple[np.ndarray, np.ndarray]] = map(make, range(steps))
        source = self.shown()
        if isinstance(source, StreamSource):  # pictures that must be decoded are worked on in parallel
            ready = map_steps(make, start=0, stop=steps, streaming=source.streaming)
        for i, (batch, images) in enumerate(ready):
            tuned = self.step(
                tuned,
                images.reshape(devices, -1, *images.shape[1:]),
                self.labels[batch].reshape(devices, -1),
                positions,
                np.int32(i),
                rate(i),
            )
        return tuned


def _gather(
    step: int, *map_parts: MapParts, shown: Callable[..., Source], batches: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a step's batch, and its images as the host gives them."""
    return batches[step], shown(draw=step).gather(batches[step], *map_parts)[0]


def _start(run: Run, num_classes: int, weight_decay: float) -> Tuned:
    dim = len(run.mask_weights)
    params = {
        "encoder": run.state.params["encoder"],
        "weights": jnp.zeros((dim, num_classes)),
        "bias": jnp.zeros(num_classes),
    }
    return Tuned(params, run.state.batch_stats["encoder"], momentum(weight_decay).init(params))


def _make_step(run: Run, train: Source, view: ViewSpec, *, weight_decay: float, seed: int) -> Step:
    """Builds the step `(tuned, images, labels, positions, step, learning_rate) -> tuned` on all devices."""
    encoder = build_encoder(run.config, axis_name=AXIS, registry=run.registry)
    size = run.config.data.image_size
    on_device = left_to_device(view, image_size=size) if isinstance(train, StreamSource) else view
    augment = make_augmentation((on_device,), image_size=size, views=1)

    def step(
        tuned: Tuned, images: jax.Array, labels: jax.Array, positions: jax.Array, step: jax.Array, rate: jax.Array
    ) -> Tuned:
        inputs = augment(images, example_keys(seed, step, positions))[0]

        def loss(params: PyTree) -> tuple[jax.Array, PyTree]:
            variables = {"params": params["encoder"], "batch_stats": tuned.batch_stats}
            h, updated = encoder.apply(variables, inputs, train=True, mutable=["batch_stats"])
            scores = h @ params["weights"] + params["bias"]
            return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores, labels)), updated["batch_stats"]

        gradient, batch_stats = jax.grad(loss, has_aux=True)(tuned.params)
        gradient = lax.pmean(gradient, AXIS)
        updates, opt_state = momentum(weight_decay).update(gradient, tuned.opt_state, tuned.params)
        params = jax.tree.map(lambda leaf, update: leaf - rate * update, tuned.params, updates)
        return Tuned(params, batch_stats, opt_state)

    # Nothing is donated: the first step's arguments are the run's own arrays.
    return jax.pmap(step, axis_name=AXIS, in_axes=(None, 0, 0, 0, None, None), out_axes=None)
