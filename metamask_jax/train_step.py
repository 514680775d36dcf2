"""One training step of MetaMask (paper Algorithm 1) as a pure function of the state and a batch.

    state, metrics = step(state, images, positions)

The regular step trains encoder and heads with the mask fixed; the meta step then trains the mask at the updated
weights, on the same batch. Everything random follows from (seed, step, position in the global batch).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax import lax
from ml_collections import ConfigDict

from metamask_jax.data.augment import example_keys, make_augmentation
from metamask_jax.losses import redundancy_reduction
from metamask_jax.mask import apply_mask, init_mask, mask_weights
from metamask_jax.meta import MetaGradient, meta_gradient_parts, tree_norm
from metamask_jax.methods import METHODS
from metamask_jax.methods.base import Method, apply_views, init_module
from metamask_jax.models import Encoder, ProjectionHead, make_encoder
from metamask_jax.optim import make_mask_optimizer, make_optimizer, make_schedule

PyTree = Any
Metrics = dict[str, jax.Array]
META_METRICS = ("loss_outer", "meta_direct_norm", "meta_second_order_norm")  # zero where there is no meta step
Step = Callable[["TrainState", jax.Array, jax.Array], tuple["TrainState", Metrics]]


class TrainState(flax.struct.PyTreeNode):
    """Everything a run needs to go on, arrays only.

    Attributes:
      step: steps taken, int32; skipped ones count.
      params: weights of `encoder`, `drr_head` and `method`.
      batch_stats: their BatchNorm statistics, under the same names.
      method_state: targets, queues and banks of the method.
      mask: the dimensional mask's logits [dim].
      opt_state: of the network's optimiser.
      mask_opt_state: of the mask's optimiser.
      skipped: updates skipped so far because something was not finite, int32.
      skipped_in_a_row: of these, the ones directly before this step, int32.
    """

    step: jax.Array
    params: PyTree
    batch_stats: PyTree
    method_state: PyTree
    mask: jax.Array
    opt_state: PyTree
    mask_opt_state: PyTree
    skipped: jax.Array
    skipped_in_a_row: jax.Array


class Model(NamedTuple):
    """The networks of a configuration."""

    encoder: Encoder
    drr_head: ProjectionHead
    method: Method


def build_encoder(config: ConfigDict, *, axis_name: str | None) -> Encoder:
    """Builds the encoder of a configuration; `axis_name` synchronises its BatchNorm."""
    return make_encoder(
        config.encoder.name,
        width=config.encoder.width,
        stem=config.encoder.stem,
        image_size=config.data.image_size,
        dtype=config.train.dtype,
        axis_name=axis_name,
    )


def build_model(config: ConfigDict, *, axis_name: str | None) -> Model:
    """Builds the encoder, the redundancy-reduction head and the method; `axis_name` synchronises BatchNorm."""
    return Model(
        encoder=build_encoder(config, axis_name=axis_name),
        drr_head=ProjectionHead(
            widths=config.loss.drr_head, last_norm=True, dtype=config.train.dtype, axis_name=axis_name
        ),
        method=METHODS[config.method.name](config, axis_name),
    )


def init_state(config: ConfigDict) -> TrainState:
    """The state before the first step, a function of the configuration and its seed alone."""
    model = build_model(config, axis_name=None)
    keys = jax.random.split(jax.random.key(config.train.seed), 3)
    size, dim = config.data.image_size, model.encoder.features
    encoder, encoder_stats = init_module(model.encoder, keys[0], 2, size, size, 3)
    method = model.method.init(keys[1], dim)
    params, batch_stats = (
        {"encoder": encoder, "method": method.params},
        {"encoder": encoder_stats, "method": method.batch_stats},
    )
    if config.loss.drr:
        params["drr_head"], batch_stats["drr_head"] = init_module(model.drr_head, keys[2], 2, dim)
    mask = init_mask(dim, activation=config.mask.activation)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        batch_stats=batch_stats,
        method_state=method.state,
        mask=mask,
        opt_state=make_optimizer(config.optimizer, 0.0).init(params),
        mask_opt_state=make_mask_optimizer(config.mask, 0.0).init(mask),
        skipped=jnp.zeros((), jnp.int32),
        skipped_in_a_row=jnp.zeros((), jnp.int32),
    )


def make_train_step(config: ConfigDict, *, steps_per_epoch: int, total_steps: int, axis_name: str | None) -> Step:
    """Builds the step `(state, images, positions) -> (state, metrics)`.

    Args:
      config: a validated configuration.
      steps_per_epoch: for the schedules.
      total_steps: of the whole run.
      axis_name: the mapped axis over which the batch is split, or None for the whole batch on one device.

    Returns:
      A pure function: `images` is uint8 [batch, height, width, 3], this device's slice of the global batch, and
      `positions` int32 [batch] are its places in it. Metrics are scalars, equal on all devices.
    """
    model = build_model(config, axis_name=axis_name)
    augment = make_augmentation(config.data.augmentation, image_size=config.data.image_size, views=config.data.views)
    schedules = {
        section: make_schedule(
            config[section].schedule,
            learning_rate=config[section].learning_rate,
            steps_per_epoch=steps_per_epoch,
            total_steps=total_steps,
            warmup_epochs=config.optimizer.warmup_epochs if section == "optimizer" else 0.0,
        )
        for section in ("optimizer", "mask")
    }

    def step(state: TrainState, images: jax.Array, positions: jax.Array) -> tuple[TrainState, Metrics]:
        views = augment(images, example_keys(config.train.seed, state.step, positions))
        rates = {section: schedule(state.step) for section, schedule in schedules.items()}
        updated, metrics = regular_step(config, model, state, views, rates["optimizer"], axis_name)
        if config.mask.learn:
            learn = partial(meta_step, config, model, views=views, rates=rates, axis_name=axis_name)
            if config.meta.every > 1:
                learn = partial(lax.cond, state.step % config.meta.every == 0, learn, _leave_mask)
            updated, meta_metrics = learn(updated)
            metrics |= meta_metrics
        metrics |= _mask_metrics(mask_weights(updated.mask, activation=config.mask.activation))
        metrics["learning_rate"] = rates["optimizer"]
        return _guard(state, updated, metrics)

    return step


def regular_step(
    config: ConfigDict,
    model: Model,
    state: TrainState,
    views: jax.Array,
    learning_rate: jax.Array,
    axis_name: str | None,
) -> tuple[TrainState, Metrics]:
    """Trains encoder and heads on both losses, the mask fixed (Eq. 5)."""
    weights = mask_weights(state.mask, activation=config.mask.activation)

    def micro_step(carry: tuple[PyTree, PyTree, PyTree], views: jax.Array) -> tuple[Any, Metrics]:
        gradient, batch_stats, method_state = carry

        def objective(params: PyTree) -> tuple[jax.Array, tuple[Metrics, PyTree, PyTree]]:
            h, encoder_stats = encode(config, model, params, batch_stats, views)
            masked = apply_mask(h, weights)
            output = model.method.loss(params["method"], batch_stats["method"], method_state, masked)
            stats = batch_stats | {"encoder": encoder_stats, "method": output.batch_stats}
            metrics = {"loss_method": output.loss, "feature_std": _feature_std(h, axis_name)}
            total = config.loss.alpha * output.loss
            if config.loss.drr:
                z, stats["drr_head"] = apply_views(model.drr_head, params["drr_head"], stats["drr_head"], masked)
                metrics["loss_drr"] = _drr(config, z, axis_name)
                total += metrics["loss_drr"]
            return total, (metrics | {"loss": total}, stats, output.memory)

        new, (metrics, batch_stats, memory) = jax.grad(objective, has_aux=True)(state.params)
        method_state = model.method.update(method_state, state.params, memory)
        return (jax.tree.map(jnp.add, gradient, new), batch_stats, method_state), metrics

    zeros = jax.tree.map(jnp.zeros_like, state.params)
    (gradient, batch_stats, method_state), metrics = _accumulate(
        config, micro_step, (zeros, state.batch_stats, state.method_state), views
    )
    gradient = jax.tree.map(lambda g: g / config.train.accumulate, gradient)
    if axis_name is not None:
        gradient = lax.pmean(gradient, axis_name)
    updates, opt_state = make_optimizer(config.optimizer, learning_rate).update(gradient, state.opt_state, state.params)
    updated = state.replace(
        params=optax.apply_updates(state.params, updates),
        batch_stats=batch_stats,
        method_state=method_state,
        opt_state=opt_state,
    )
    return updated, metrics | {"gradient_norm": tree_norm(gradient)}


def meta_step(
    config: ConfigDict,
    model: Model,
    state: TrainState,
    views: jax.Array,
    rates: dict[str, jax.Array],
    axis_name: str | None,
) -> tuple[TrainState, Metrics]:
    """Trains the mask through a trial step on the method's loss (Eq. 6-7); the network stays as it is."""

    def micro_step(total: PyTree, views: jax.Array) -> tuple[PyTree, Metrics]:
        def loss(params: PyTree, mask: jax.Array) -> jax.Array:
            # Trial statistics and memories are dropped: only the regular step's reach the state.
            h, _ = encode(config, model, params, state.batch_stats, views)
            weights = mask_weights(mask, activation=config.mask.activation)
            return model.method.loss(
                params["method"], state.batch_stats["method"], state.method_state, apply_mask(h, weights)
            ).loss

        parts = meta_gradient_parts(
            loss,
            loss,
            state.params,
            state.mask,
            estimator=config.meta.estimator,
            axis_name=axis_name,
            **_trial(config, state, rates["optimizer"]),
        )
        return jax.tree.map(jnp.add, total, parts), {}

    none = MetaGradient(jnp.zeros(()), jnp.zeros_like(state.mask), jnp.zeros_like(state.mask))
    parts, _ = _accumulate(config, micro_step, none, views)
    parts = jax.tree.map(lambda part: part / config.train.accumulate, parts)
    updates, opt_state = make_mask_optimizer(config.mask, rates["mask"]).update(
        parts.total, state.mask_opt_state, state.mask
    )
    metrics = {
        "loss_outer": parts.value,
        "meta_direct_norm": tree_norm(parts.direct),
        "meta_second_order_norm": tree_norm(parts.second_order),
    }
    return state.replace(mask=optax.apply_updates(state.mask, updates), mask_opt_state=opt_state), metrics


def encode(
    config: ConfigDict, model: Model, params: PyTree, batch_stats: PyTree, views: jax.Array
) -> tuple[jax.Array, PyTree]:
    """Features [views, batch, dim] of augmented views [views, batch, height, width, channels], in training mode."""

    def apply(params: PyTree, views: jax.Array) -> tuple[jax.Array, PyTree]:
        return apply_views(model.encoder, params, batch_stats["encoder"], views)

    return (jax.checkpoint(apply) if config.train.remat else apply)(params["encoder"], views)


def _drr(config: ConfigDict, z: jax.Array, axis_name: str | None) -> jax.Array:
    return redundancy_reduction(
        z,
        off_diagonal_weight=config.loss.off_diagonal_weight,
        centered=config.loss.centered,
        unbiased=config.loss.unbiased,
        chunk_size=config.loss.chunk_size,
        axis_name=axis_name,
    )


def _trial(config: ConfigDict, state: TrainState, learning_rate: jax.Array) -> dict[str, Any]:
    """How the trial step is taken: plainly, or as the network's optimiser would take it."""
    if config.meta.trial == "optimizer":
        return {"optimizer": make_optimizer(config.optimizer, learning_rate), "opt_state": state.opt_state}
    encoder, head = (
        learning_rate if rate is None else rate for rate in (config.meta.learning_rate, config.meta.head_learning_rate)
    )
    return {"learning_rate": {part: encoder if part == "encoder" else head for part in state.params}}


def _accumulate(config: ConfigDict, micro_step: Any, carry: PyTree, views: jax.Array) -> tuple[PyTree, Metrics]:
    """Folds `micro_step` over the micro-batches and averages its metrics.

    Micro-batch i takes the positions with remainder i, so that it holds the same images however many devices share
    the batch.
    """
    count = config.train.accumulate
    if count == 1:
        return micro_step(carry, views)
    split = views.reshape(views.shape[0], -1, count, *views.shape[2:])
    carry, metrics = lax.scan(micro_step, carry, jnp.moveaxis(split, 2, 0))
    return carry, jax.tree.map(jnp.mean, metrics)


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


def _feature_std(h: jax.Array, axis_name: str | None) -> jax.Array:
    """Spread of the unit-length features [views, batch, dim]: near one if they fill the sphere, zero if collapsed."""
    h = lax.stop_gradient(h)
    h = h * lax.rsqrt(jnp.maximum(jnp.sum(h**2, axis=-1, keepdims=True), jnp.finfo(h.dtype).tiny))
    moments = jnp.stack([jnp.mean(h, axis=(0, 1)), jnp.mean(h**2, axis=(0, 1))])
    if axis_name is not None:
        moments = lax.pmean(moments, axis_name)
    variance = jnp.maximum(moments[1] - moments[0] ** 2, 0.0)
    return jnp.sqrt(jnp.sum(variance))


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
