"""What a step sees: an augmented batch, and for some outer losses the one that judges it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from metamask_jax.augment import Augmentation, CustomViews, example_keys, make_augmentation, make_multi_crop
from metamask_jax.core.state import Judged
from metamask_jax.data.loader import Batch
from metamask_jax.methods import Clock
from metamask_jax.training.optimizers import exact_epoch
from metamask_jax.training.registry import Registry
from metamask_jax.training.state import TrainState

_JUDGE_STREAM = 0x6A756467  # sets the draws of what judges apart from those of training


class Sample(NamedTuple):
    """An augmented batch, and when it is met.

    Attributes:
      views: [views, batch, height, width, channels].
      small: smaller crops [small views, batch, height, width, channels], possibly none.
      keys: one per image, [batch], for whatever else is random.
      labels: int32 [batch].
      indices: int32 [batch].
      clock: how far the training is.
      judge: another sample, which the outer loss sees; empty where it sees this one.
    """

    views: jax.Array
    small: jax.Array
    keys: jax.Array
    labels: jax.Array
    indices: jax.Array
    clock: Clock
    judge: Any = ()


def make_sampler(
    config: ConfigDict, *, steps_per_epoch: int, total_steps: int, registry: Registry
) -> Callable[[TrainState, Batch | Judged], Sample]:
    """Builds the function that augments the batch of a state's next step; see `make_train_step` for the arguments."""
    augment, augment_small = _augmentations(config.data, registry)
    augment_judge = _judge_augmentation(config, registry)

    def sample(state: TrainState, batch: Batch | Judged) -> Sample:
        batch, judge = batch if isinstance(batch, Judged) else (batch, batch)
        images, labels, positions, indices = map(jnp.asarray, batch)
        keys = example_keys(state.seed, state.step, positions)
        clock = Clock(state.step, exact_epoch(state.step, steps_per_epoch), state.step / total_steps)
        judging: Any = ()
        if config.mask.learn and config.meta.outer != "batch":
            judging = _judge(state, judge, clock, augment_judge, next_step=config.meta.outer == "next")
        small = augment_small(images, keys)
        augmented = Sample(augment(images, keys), small, keys, labels, indices, clock, judging)
        return _micro_batches(augmented, config.train.accumulate)

    return sample


def _augmentations(data: ConfigDict, registry: Registry) -> tuple[Augmentation, Augmentation]:
    """Those of the full-size views and of the small ones, of which there may be none."""

    def no_views(images: jax.Array, keys: jax.Array) -> jax.Array:
        del keys
        return jnp.zeros((0, len(images), data.small_size, data.small_size, 3))

    views = registry.augmentations[data.augmentation](data.image_size)
    if isinstance(views, CustomViews):
        return views.full, views.small or no_views
    if not data.small_views:
        return make_augmentation(views, image_size=data.image_size, views=data.views), no_views
    return make_multi_crop(
        views,
        image_size=data.image_size,
        views=data.views,
        small_size=data.small_size,
        small_views=data.small_views,
        split=data.crop_split,
    )


def _judge_augmentation(config: ConfigDict, registry: Registry) -> Augmentation:
    """That of the images that judge the mask: as many views as the method sees, or one of labelled images."""
    size, labels = config.data.image_size, config.meta.outer == "labels"
    views = registry.augmentations[config.meta.outer_augmentation or config.data.augmentation](size)
    if isinstance(views, CustomViews):
        return views.full
    return make_augmentation(views, image_size=size, views=1 if labels else config.data.views)


def _judge(state: TrainState, batch: Batch, clock: Clock, augment: Augmentation, *, next_step: bool) -> Sample:
    """The sample that judges: the views that the next step will see, or others than this step's."""
    images, labels, positions, indices = map(jnp.asarray, batch)
    keys = example_keys(state.seed, state.step + next_step, positions)
    if not next_step:
        keys = jax.vmap(jax.random.fold_in, (0, None))(keys, _JUDGE_STREAM)
    views = augment(images, keys)
    return Sample(views, views[:0], keys, labels, indices, clock)


def _micro_batches(sample: Sample, count: int) -> Sample:
    """Splits a batch, if into more than one: micro-batch i takes the positions with remainder i.

    So it holds the same images however many devices share the batch. The new axis is the first.
    """
    if count == 1:
        return sample

    def split(leaf: jax.Array, batch_axis: int) -> jax.Array:
        shape = leaf.shape
        leaf = leaf.reshape(*shape[:batch_axis], shape[batch_axis] // count, count, *shape[batch_axis + 1 :])
        return jnp.moveaxis(leaf, batch_axis + 1, 0)

    return Sample(
        views=split(sample.views, 1),
        small=split(sample.small, 1),
        keys=split(sample.keys, 0),
        labels=split(sample.labels, 0),
        indices=split(sample.indices, 0),
        clock=jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count,)), sample.clock),
        judge=_micro_batches(sample.judge, count) if sample.judge else (),
    )
