"""One training step of MetaMask (paper Algorithm 1) as a pure function of the state and a batch.

    state, metrics = step(state, batch)

The regular step trains encoder and heads with the mask fixed; the meta step then trains the mask at the updated
weights, on the same batch; at last the method updates its targets and queues. Everything random follows from (seed,
step, position in the global batch).

The lookahead estimator takes another way to the mask (docs/lookahead.md): the regular step of the minibatch before is
its trial step, and the regular step's own backward pass judges it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from ml_collections import ConfigDict

from metamask_jax.augment import Augmentation, CustomViews, example_keys, make_augmentation, make_multi_crop
from metamask_jax.core.mask import mask_weights
from metamask_jax.core.meta import MetaGradient, lookahead_gradient, meta_gradient_parts
from metamask_jax.core.types import PyTree
from metamask_jax.data.loader import Batch, Pair
from metamask_jax.methods import Clock
from metamask_jax.training.objective import Context, Metrics, Sample, method_loss, total_loss
from metamask_jax.training.optimizers import make_mask_optimizer, make_optimizer, make_schedule
from metamask_jax.training.registry import REGISTRY, Registry
from metamask_jax.training.state import TrainState, build_encoder, build_model, init_state, looks_ahead

__all__ = ["META_METRICS", "Step", "TrainState", "build_encoder", "build_model", "init_state", "make_train_step"]

META_METRICS = ("loss_outer", "meta_direct_norm", "meta_second_order_norm")  # zero where there is no meta step
Step = Callable[[TrainState, Batch | Pair], tuple[TrainState, Metrics]]


class Moment(NamedTuple):
    """What a step meets.

    Attributes:
      context: the networks and how far the training is.
      sample: the augmented batch.
      rates: learning rates of the network, "optimizer", and of the "mask".
    """

    context: Context
    sample: Sample
    rates: dict[str, jax.Array]


class Gradient(NamedTuple):
    """Of the total loss.

    Attributes:
      params: of the whole batch of all devices.
      mask: of this device's share of it, [dim].
    """

    params: PyTree
    mask: jax.Array


def make_train_step(
    config: ConfigDict, *, steps_per_epoch: int, total_steps: int, axis_name: str | None, registry: Registry = REGISTRY
) -> Step:
    """Builds the step `(state, batch) -> (state, metrics)`.

    Args:
      config: a validated configuration.
      steps_per_epoch: for the schedules.
      total_steps: of the whole run.
      axis_name: the mapped axis over which the batch is split, or None for the whole batch on one device.
      registry: what the configuration's names stand for.

    Returns:
      A pure function; `batch` is this device's slice of the global batch, for the lookahead estimator paired with its
      slice of the batch before. Metrics are scalars, equal on all devices.
    """
    model = build_model(config, axis_name=axis_name, registry=registry)
    augment, augment_small = _augmentations(config.data, registry)
    schedules = {
        section: make_schedule(
            registry.schedules[config[section].schedule],
            learning_rate=config[section].learning_rate,
            steps_per_epoch=steps_per_epoch,
            total_steps=total_steps,
            warmup_epochs=config.optimizer.warmup_epochs if section == "optimizer" else 0.0,
        )
        for section in ("optimizer", "mask")
    }

    def moment(state: TrainState, batch: Batch) -> Moment:
        images, labels, positions, indices = map(jnp.asarray, batch)
        keys = example_keys(state.seed, state.step, positions)
        sample = Sample(augment(images, keys), augment_small(images, keys), keys, labels, indices)
        clock = Clock(state.step, state.step / steps_per_epoch, state.step / total_steps)
        rates = {section: schedule(state.step) for section, schedule in schedules.items()}
        return Moment(Context(config, model, clock, axis_name), sample, rates)

    def step(state: TrainState, batch: Batch | Pair) -> tuple[TrainState, Metrics]:
        if isinstance(batch, Pair) != looks_ahead(config):
            expected = "a Pair" if looks_ahead(config) else "a Batch"
            settings = f"{config.meta.estimator=}, {config.mask.learn=}"
            raise TypeError(f"batch is a {type(batch).__name__}; expected {expected} for {settings}")
        present = moment(state, batch.present if isinstance(batch, Pair) else batch)
        context, sample, rates = present
        updated, metrics, memory, gradient = regular_step(context, state, sample, rates["optimizer"])
        if isinstance(batch, Pair):
            previous = moment(state.previous, batch.previous)
            learned = lookahead_step(present, previous, updated, loss=metrics["loss"], gradient=gradient)
            # Not in the first step, and not after one that was skipped: the batch before is not that of `previous`.
            # Chosen afterwards, because on a CPU the branch of a `cond` runs on fewer cores.
            valid = state.previous.step + 1 == state.step
            updated, meta_metrics = jax.tree.map(partial(jnp.where, valid), learned, _leave_mask(updated))
            metrics |= meta_metrics
            updated = updated.replace(previous=state.replace(previous=()))
        elif config.mask.learn:
            learn = partial(meta_step, context, sample=sample, rates=rates)
            if config.meta.every > 1:
                learn = partial(lax.cond, state.step % config.meta.every == 0, learn, _leave_mask)
            updated, meta_metrics = learn(updated)
            metrics |= meta_metrics
        # Last, because the meta step must not meet this batch's own projections in a queue of past ones.
        method_state = model.method.update(state.method_state, updated.params, memory, context.clock)
        updated = updated.replace(method_state=method_state)
        metrics |= _mask_metrics(mask_weights(updated.mask, activation=config.mask.activation))
        metrics["learning_rate"] = rates["optimizer"]
        return _guard(state, updated, metrics)

    return step


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


def regular_step(
    context: Context, state: TrainState, sample: Sample, learning_rate: jax.Array
) -> tuple[TrainState, Metrics, PyTree, Gradient]:
    """Trains encoder and heads on both losses, the mask fixed (Eq. 5).

    Returns:
      The updated state, metrics, the method's memory, and the gradient of the total loss before the step. Its mask
      part is formed on the way to the encoder; where it is not used, it is not computed.
    """

    def micro_step(carry: tuple[Gradient, PyTree], sample: Sample) -> tuple[Any, tuple[Metrics, PyTree]]:
        gradient, batch_stats = carry
        objective = partial(total_loss, context, state.replace(batch_stats=batch_stats), sample=sample)
        new, (metrics, batch_stats, memory) = jax.grad(objective, (0, 1), has_aux=True)(state.params, state.mask)
        return (jax.tree.map(jnp.add, gradient, Gradient(*new)), batch_stats), (metrics, memory)

    zeros = jax.tree.map(jnp.zeros_like, Gradient(state.params, state.mask))
    (gradient, batch_stats), (metrics, memory) = _accumulate(context, micro_step, (zeros, state.batch_stats), sample)
    gradient = jax.tree.map(lambda g: g / context.config.train.accumulate, gradient)
    gradient = gradient._replace(params=_mean(context, gradient.params))
    updates, opt_state = _optimizer(context, learning_rate).update(gradient.params, state.opt_state, state.params)
    updated = state.replace(
        params=optax.apply_updates(state.params, updates), batch_stats=batch_stats, opt_state=opt_state
    )
    metrics = jax.tree.map(jnp.mean, metrics) | {"gradient_norm": optax.tree.norm(gradient.params)}
    return updated, metrics, jax.tree.map(partial(_whole_batch, context), memory), gradient


def meta_step(
    context: Context, state: TrainState, sample: Sample, rates: dict[str, jax.Array]
) -> tuple[TrainState, Metrics]:
    """Trains the mask through a trial step on the method's loss (Eq. 6-7); the network stays as it is."""
    config = context.config

    def micro_step(total: PyTree, sample: Sample) -> tuple[PyTree, tuple[()]]:
        def loss(params: PyTree, mask: jax.Array) -> jax.Array:
            # Trial statistics and memories are dropped: only the regular step's reach the state.
            return method_loss(context, state, params, mask, sample)[0].loss

        parts = meta_gradient_parts(
            loss,
            loss,
            state.params,
            state.mask,
            estimator=config.meta.estimator,
            axis_name=context.axis_name,
            **_trial(context, state, rates["optimizer"]),
        )
        return jax.tree.map(jnp.add, total, parts), ()

    none = MetaGradient(jnp.zeros(()), jnp.zeros_like(state.mask), jnp.zeros_like(state.mask))
    parts, _ = _accumulate(context, micro_step, none, sample)
    parts = jax.tree.map(lambda part: part / config.train.accumulate, parts)
    return _move_mask(context, state, parts, rates["mask"])


def lookahead_step(
    present: Moment, previous: Moment, state: TrainState, *, loss: jax.Array, gradient: Gradient
) -> tuple[TrainState, Metrics]:
    """Trains the mask by what it does to the present loss, directly and through the previous regular step.

    Args:
      present: the moment of this step.
      previous: the moment of the step from `state.previous` to the weights that this step started with.
      state: the state after this regular step, still with the mask and the `previous` that it started with.
      loss: the total loss of this step.
      gradient: its gradient.
    """
    context, before = previous.context, state.previous
    second_order = lookahead_gradient(
        lambda params, mask: total_loss(context, before, params, mask, previous.sample)[0],
        gradient.params,
        before.params,
        before.mask,
        optimizer=_optimizer(context, previous.rates["optimizer"]),
        opt_state=before.opt_state,
        axis_name=context.axis_name,
    )
    parts = MetaGradient(loss, _mean(context, gradient.mask), second_order)
    return _move_mask(context, state, parts, present.rates["mask"])


def _move_mask(
    context: Context, state: TrainState, parts: MetaGradient, learning_rate: jax.Array
) -> tuple[TrainState, Metrics]:
    """The mask's optimiser's step along a meta-gradient, and the metrics of it."""
    optimizer = make_mask_optimizer(context.config.mask, learning_rate)
    updates, opt_state = optimizer.update(parts.total, state.mask_opt_state, state.mask)
    metrics = {
        "loss_outer": parts.value,
        "meta_direct_norm": optax.tree.norm(parts.direct),
        "meta_second_order_norm": optax.tree.norm(parts.second_order),
    }
    return state.replace(mask=optax.apply_updates(state.mask, updates), mask_opt_state=opt_state), metrics


def _optimizer(context: Context, learning_rate: jax.Array) -> optax.GradientTransformation:
    return make_optimizer(context.config.optimizer, learning_rate, constant_rate=context.model.method.constant_rate)


def _trial(context: Context, state: TrainState, learning_rate: jax.Array) -> dict[str, Any]:
    """How the trial step is taken: plainly, or as the network's optimiser would take it."""
    meta = context.config.meta
    if meta.trial == "optimizer":
        return {"optimizer": _optimizer(context, learning_rate), "opt_state": state.opt_state}
    encoder, head = (learning_rate if rate is None else rate for rate in (meta.learning_rate, meta.head_learning_rate))
    return {"learning_rate": {part: encoder if part == "encoder" else head for part in state.params}}


def _mean(context: Context, tree: PyTree) -> PyTree:
    """The mean over devices."""
    return tree if context.axis_name is None else lax.pmean(tree, context.axis_name)


def _accumulate(context: Context, micro_step: Any, carry: PyTree, sample: Sample) -> tuple[PyTree, PyTree]:
    """Folds `micro_step` over the micro-batches; what else it gives is stacked, [accumulate, ...].

    Micro-batch i takes the positions with remainder i, so that it holds the same images however many devices share
    the batch.
    """
    count = context.config.train.accumulate
    if count == 1:  # a loop of one would be compiled differently
        carry, output = micro_step(carry, sample)
        return carry, jax.tree.map(lambda leaf: leaf[None], output)

    def split(leaf: jax.Array, batch_axis: int) -> jax.Array:
        shape = leaf.shape
        leaf = leaf.reshape(*shape[:batch_axis], shape[batch_axis] // count, count, *shape[batch_axis + 1 :])
        return jnp.moveaxis(leaf, batch_axis + 1, 0)

    return lax.scan(micro_step, carry, Sample(*map(split, sample, (1, 1, 0, 0, 0))))


def _whole_batch(context: Context, memory: jax.Array) -> jax.Array:
    """Brings micro-batches [accumulate, batch, ...] of all devices into the order of the global batch."""
    if context.axis_name is not None:
        memory = lax.all_gather(memory, context.axis_name, axis=1, tiled=True)
    return jnp.moveaxis(memory, 0, 1).reshape(-1, *memory.shape[2:])


def _guard(state: TrainState, updated: TrainState, metrics: Metrics) -> tuple[TrainState, Metrics]:
    """Keeps the whole old state if anything this step computed is not finite, and counts that."""
    finite = jnp.all(jnp.isfinite(jnp.stack(list(metrics.values()))))
    kept: TrainState = jax.tree.map(lambda new, old: jnp.where(finite, new, old), updated, state)
    skip = jnp.where(finite, 0, 1)
    kept = kept.replace(
        step=state.step + 1,
        skipped=state.skipped + skip,
        skipped_in_a_row=skip * (state.skipped_in_a_row + 1),
    )
    return kept, metrics | {"skipped": kept.skipped, "skipped_in_a_row": kept.skipped_in_a_row}


def _mask_metrics(weights: jax.Array) -> Metrics:
    return {
        "mask_mean": jnp.mean(weights),
        "mask_std": jnp.std(weights),
        "mask_min": jnp.min(weights),
        "mask_max": jnp.max(weights),
    }


def _leave_mask(state: TrainState) -> tuple[TrainState, Metrics]:
    """What stands in for the meta step when it is not its turn."""
    return state, {name: jnp.zeros(()) for name in META_METRICS}
