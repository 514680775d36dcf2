"""One training step of MetaMask by configuration, as a pure function of the state and a batch.

    state, metrics = step(state, batch)

The step augments the batch, and hands it with two losses to the learner (`core.learner`), which is the algorithm: the
regular step, the meta step, then the method's update of its targets and queues. Everything random follows from (seed,
step, position in the global batch).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from ml_collections import ConfigDict

from metamask_jax.core.arrays import require_number
from metamask_jax.core.collectives import gather, mean, require_axis
from metamask_jax.core.learner import META_METRICS, Learner, metamask
from metamask_jax.core.longer_trials import LONGER_TRIALS
from metamask_jax.core.losses import linear_head, soft_nearest_neighbor
from metamask_jax.core.mask import apply_mask, mask_weights
from metamask_jax.core.meta import Estimator, exact_recomputed
from metamask_jax.core.state import Judged, MetaMaskState, Pair, Report
from metamask_jax.core.types import Metrics, PyTree
from metamask_jax.data.loader import Batch
from metamask_jax.methods import Inputs, Output, Variables
from metamask_jax.methods.base import apply_views, redundancy_loss
from metamask_jax.training.optimizers import make_mask_optimizer, make_optimizer, make_schedule
from metamask_jax.training.registry import Registry, resolve_registry
from metamask_jax.training.sampling import Sample, make_sampler
from metamask_jax.training.state import Model, TrainState, build_model, has_judge, looks_ahead

__all__ = ["META_METRICS", "Objective", "Sample", "Step", "make_train_step"]

Step = Callable[[TrainState, Batch | Pair | Judged], tuple[TrainState, Metrics]]
_DROPOUT_STREAM = 0x64726F70  # sets these draws apart from the augmentation's, which start from the same keys


def make_train_step(
    config: ConfigDict,
    *,
    steps_per_epoch: int,
    total_steps: int,
    axis_name: str | None = None,
    registry: Registry | None = None,
) -> Step:
    """Builds the step `(state, batch) -> (state, metrics)`.

    Args:
      config: a validated configuration.
      steps_per_epoch: for the schedules.
      total_steps: of the whole run.
      axis_name: the mapped axis over which the batch is split, or None for the whole batch on one device.
      registry: what the configuration's names stand for; None is ours and `config.plugins`.

    Returns:
      A pure function; `batch` is this device's slice of the global batch, for the lookahead estimator a `Pair` of its
      slices of the batch before and this one, for `meta.outer` "next" and "labels" a `Judged` pair of slices. Metrics
      are scalars, equal on all devices.
    """
    registry = resolve_registry(registry, config)
    require_axis(axis_name)
    for name, count in (("steps_per_epoch", steps_per_epoch), ("total_steps", total_steps)):
        require_number(name, count, lambda count: count >= 1 and count % 1 == 0, "a whole number >= 1")
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
    model = build_model(config, axis_name=axis_name, registry=registry)
    learner = _make_learner(config, model, schedules, axis_name=axis_name, registry=registry)
    sample = make_sampler(config, steps_per_epoch=steps_per_epoch, total_steps=total_steps, registry=registry)

    def step(state: TrainState, batch: Batch | Pair | Judged) -> tuple[TrainState, Metrics]:
        expected = Pair if looks_ahead(config) else Judged if has_judge(config) else Batch
        if not isinstance(batch, expected):
            settings = f"{config.meta.estimator=}, {config.meta.outer=}, {config.mask.learn=}"
            raise TypeError(f"batch is a {type(batch).__name__}; expected a {expected.__name__} for {settings}")
        samples: Sample | Pair
        if isinstance(batch, Pair):
            samples = Pair(sample(state.previous, batch.previous), sample(state, batch.present))
        else:
            samples = sample(state, batch)
        with jax.default_matmul_precision(config.train.precision):
            learned, metrics = learner.update(_to_learner(state), samples)
        rate = schedules["optimizer"](state.step)
        return _from_learner(learned, state.seed), metrics | {"learning_rate": rate}

    return step


def _make_learner(
    config: ConfigDict,
    model: Model,
    schedules: dict[str, Callable[[Any], jax.Array]],
    *,
    axis_name: str | None,
    registry: Registry,
) -> Learner:
    """Algorithm 1 with the losses, optimisers and switches of a configuration."""
    objective = Objective(config, model, axis_name)

    def optimizer(step: jax.Array) -> Any:
        rate, constant = schedules["optimizer"](step), model.method.constant_rate
        return make_optimizer(config.optimizer, rate, constant_rate=constant, optimizers=registry.optimizers)

    def trial_rates(step: jax.Array) -> dict[str, Any]:
        given = (config.meta.learning_rate, config.meta.head_learning_rate)
        encoder, head = (schedules["optimizer"](step) if rate is None else rate for rate in given)
        parts = ("encoder", "method", "drr_head") if config.loss.drr else ("encoder", "method")
        return {part: encoder if part == "encoder" else head for part in parts}

    def update_method(state: MetaMaskState, memory: PyTree) -> PyTree:
        memory, clocks = memory
        memory = jax.tree.map(partial(_whole_batch, axis_name=axis_name), memory)
        clock = jax.tree.map(lambda leaf: leaf[0], clocks)
        updated = model.method.update(state.model_state["method_state"], state.params, memory, clock)
        return state.model_state | {"method_state": updated}

    return metamask(
        objective.total_loss,
        objective.method_loss,
        outer_loss=None if config.meta.outer == "batch" else objective.outer_loss,
        optimizer=optimizer,
        mask_optimizer=lambda step: make_mask_optimizer(config.mask, schedules["mask"](step)),
        estimator=_estimator(config) if config.mask.learn else None,
        trial="optimizer" if config.meta.trial == "optimizer" else trial_rates,
        scope=None if config.meta.scope == "all" else _after_encoder,
        every=config.meta.every,
        accumulate=config.train.accumulate,
        after_step=update_method,
        activation=config.mask.activation,
        axis_name=axis_name,
    )


def _estimator(config: ConfigDict) -> str | Estimator:
    counts = {"unrolled": config.meta.unroll, "neumann": config.meta.neumann_terms}
    name = config.meta.estimator
    if name == "exact_recomputed":
        return exact_recomputed
    return LONGER_TRIALS[name](counts[name]) if name in counts else name


def _after_encoder(name: str) -> bool:
    """Whether a weight belongs to the heads."""
    return not name.startswith("encoder.")


class Objective(NamedTuple):
    """The losses of a configuration, in the form that the learner takes.

    Attributes:
      config: a validated configuration.
      model: its networks.
      axis_name: the mapped axis over which the batch is split, or None for the whole batch on one device.
    """

    config: ConfigDict
    model: Model
    axis_name: str | None

    def method_loss(
        self, params: PyTree, mask: jax.Array, model_state: PyTree, sample: Sample
    ) -> tuple[jax.Array, PyTree]:
        """The method's loss on masked features, and the model state after this batch."""
        output, _, stats = self._method(params, mask, model_state, sample)
        return output.loss, model_state | {"batch_stats": stats}

    def outer_loss(
        self, params: PyTree, mask: jax.Array, model_state: PyTree, sample: Sample
    ) -> tuple[jax.Array, PyTree]:
        """What judges the mask: the method's loss on other images or views, or how well labels can be read off."""
        meta = self.config.meta
        if meta.outer != "labels":
            return self.method_loss(params, mask, model_state, sample.judge)
        judge, encoder_stats = sample.judge, model_state["batch_stats"]["encoder"]
        h, _ = apply_views(self.model.encoder, params["encoder"], encoder_stats, judge.views)
        weights = mask_weights(mask, activation=self.config.mask.activation)
        h, labels = apply_mask(h, weights).reshape(-1, h.shape[-1]), jnp.tile(judge.labels, len(h))
        if meta.outer_loss == "linear":
            value = linear_head(h, labels, axis_name=self.axis_name)
        else:
            value = soft_nearest_neighbor(h, labels, temperature=meta.outer_temperature, axis_name=self.axis_name)
        return value, model_state

    def total_loss(
        self, params: PyTree, mask: jax.Array, model_state: PyTree, sample: Sample
    ) -> tuple[jax.Array, PyTree, Report]:
        """Redundancy reduction plus the weighted loss of the method (Eq. 5); its report has the method's memory."""
        loss = self.config.loss
        output, (h, masked), stats = self._method(params, mask, model_state, sample)
        metrics = {"loss_method": output.loss, "feature_std": _feature_std(h, self.axis_name)}
        total = loss.alpha * output.loss
        if loss.drr:
            z, stats["drr_head"] = apply_views(self.model.drr_head, params["drr_head"], stats["drr_head"], masked)
            metrics["loss_drr"] = redundancy_loss(self.config, self.axis_name)(z)
            total += metrics["loss_drr"]
        report = Report(metrics, memory=(output.memory, sample.clock))
        return total, model_state | {"batch_stats": stats}, report

    def _method(
        self, params: PyTree, mask: jax.Array, model_state: PyTree, sample: Sample
    ) -> tuple[Output, tuple[jax.Array, jax.Array], dict[str, PyTree]]:
        """The method's output, features [views, batch, dim] without and with the mask, and all statistics."""
        weights = mask_weights(mask, activation=self.config.mask.activation)
        before, views = model_state["batch_stats"], len(sample.views)
        encode = partial(apply_views, self.model.encoder)
        h, stats = encode(params["encoder"], before["encoder"], sample.views)
        if len(sample.small):
            small, stats = encode(params["encoder"], stats, sample.small)
            h = jnp.concatenate([h, small])
        masked = apply_mask(_dropout(self.config, h, sample.keys), weights)

        def encode_as(encoder_params: PyTree) -> jax.Array:
            others, _ = encode(encoder_params, before["encoder"], sample.views)
            return lax.stop_gradient(apply_mask(others, weights))

        small_views = masked[views:] if len(sample.small) else None
        inputs = Inputs(masked[:views], encode_as, sample.labels, sample.indices, sample.clock, small_views)
        variables = Variables(params["method"], before["method"], model_state["method_state"])
        output = self.model.method.loss(variables, inputs)
        return output, (h[:views], masked[:views]), before | {"encoder": stats, "method": output.batch_stats}


def _whole_batch(memory: jax.Array, axis_name: str | None) -> jax.Array:
    """Brings micro-batches [accumulate, batch, ...] of all devices into the order of the global batch."""
    memory = gather(memory, axis_name, axis=1)
    return jnp.moveaxis(memory, 0, 1).reshape(-1, *memory.shape[2:])


def _dropout(config: ConfigDict, h: jax.Array, keys: jax.Array) -> jax.Array:
    """Sets a share of the features [views, batch, dim] to zero, in each view its own or in all the same ones."""
    rate = config.method.dropout
    if rate == 0:
        return h

    def kept(view: jax.Array, key: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.fold_in(key, _DROPOUT_STREAM), view)
        return jax.random.bernoulli(key, 1.0 - rate, h.shape[-1:])

    views = jnp.arange(len(h)) * (0 if config.method.dropout_shared else 1)
    keep = jax.vmap(jax.vmap(kept, (None, 0)), (0, None))(views, keys)
    return jnp.where(keep, h / (1.0 - rate), 0.0)


def _feature_std(h: jax.Array, axis_name: str | None) -> jax.Array:
    """Spread of the unit-length features [views, batch, dim]: near one if they fill the sphere, zero if collapsed."""
    h = lax.stop_gradient(h)
    h = h * lax.rsqrt(jnp.maximum(jnp.sum(h**2, axis=-1, keepdims=True), jnp.finfo(h.dtype).tiny))
    first, second = mean(jnp.stack([jnp.mean(h, axis=(0, 1)), jnp.mean(h**2, axis=(0, 1))]), axis_name)
    return jnp.sqrt(jnp.sum(jnp.maximum(second - first**2, 0.0)))


def _to_learner(state: TrainState) -> MetaMaskState:
    return MetaMaskState(
        step=state.step,
        params=state.params,
        mask=state.mask,
        model_state={"batch_stats": state.batch_stats, "method_state": state.method_state},
        opt_state=state.opt_state,
        mask_opt_state=state.mask_opt_state,
        skipped=state.skipped,
        skipped_in_a_row=state.skipped_in_a_row,
        previous=_to_learner(state.previous) if state.previous else (),
    )


def _from_learner(state: MetaMaskState, seed: jax.Array) -> TrainState:
    values = state._asdict()
    return TrainState(
        seed=seed,
        **values.pop("model_state"),
        **values | {"previous": _from_learner(state.previous, seed) if state.previous else ()},
    )
