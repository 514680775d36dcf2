"""MetaMask's Algorithm 1 for anybody's model: two pure functions, `init` and `update`, in the manner of optax.

    learner = metamask(total_loss, method_loss, optimizer=optax.adamw(1e-3), mask_optimizer=optax.sgd(0.1))
    state = learner.init(params, mask, model_state)
    state, metrics = jax.jit(learner.update)(state, batch)

One update is a regular step of the weights on `total_loss`, the mask fixed (Eq. 5), then a step of the mask along the
derivative of the outer loss at trial weights, through the trial step on `method_loss` (Eq. 6-7; `core.meta`). A loss is

    (params, mask, model_state, batch) -> (scalar, model_state)

and knows nothing of this file. `params` and `mask` are pytrees of floating-point arrays, `model_state` (BatchNorm
statistics, targets, keys) and `batch` (views, labels, keys) any pytrees of arrays.

On several devices run `update` under `jax.pmap`, or `jax.shard_map` with `check_vma=False`, and pass `axis_name`: every
device gets its share of the batch. Losses are those of the whole batch, as in `metamask_jax.core.losses`, or means over
the device's share; model states must come out equal on all devices (BatchNorm with an axis name).
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax import lax

from metamask_jax.core.arguments import check_arguments, check_batch
from metamask_jax.core.collectives import mean
from metamask_jax.core.guard import agreed, guard, mask_metrics
from metamask_jax.core.lookahead import lookahead_gradient
from metamask_jax.core.meta import Estimator, MetaGradient, meta_gradient_parts
from metamask_jax.core.state import Gradient, Loss, MetaMaskState, evaluate_loss
from metamask_jax.core.trial import Scope, require_floating
from metamask_jax.core.types import Metrics, PyTree

Optimizer: TypeAlias = optax.GradientTransformation | Callable[[jax.Array], optax.GradientTransformation]
META_METRICS = ("loss_outer", "meta_direct_norm", "meta_second_order_norm")  # zero where there is no meta step


class Learner(NamedTuple):
    """A pair of pure functions.

    Attributes:
      init: `(params, mask, model_state=()) -> state`.
      update: `(state, batch) -> (state, metrics)`.
    """

    init: Callable[..., MetaMaskState]
    update: Callable[[MetaMaskState, PyTree], tuple[MetaMaskState, Metrics]]


def metamask(
    total_loss: Loss,
    method_loss: Loss,
    *,
    optimizer: Optimizer,
    mask_optimizer: Optimizer,
    outer_loss: Loss | None = None,
    estimator: str | Estimator | None = "exact",
    trial: Any = "optimizer",
    scope: Scope = None,
    every: int = 1,
    accumulate: int = 1,
    after_step: Callable[[MetaMaskState, PyTree], PyTree] | None = None,
    activation: str = "sigmoid",
    axis_name: str | None = None,
) -> Learner:
    """Builds a learner: Algorithm 1 of the paper around losses of your own.

    Args:
      total_loss: what the weights descend, such as redundancy reduction plus a contrastive loss. Its model state is the
        one that survives. A third item, a `Report`, may carry further metrics and a memory of the batch.
      method_loss: what the trial step descends; only its value is used.
      optimizer: of the weights, any optax transformation with its schedule; or a function of the step that gives one,
        for schedules that go on where updates are skipped.
      mask_optimizer: of the mask, likewise.
      outer_loss: what judges the mask at the trial weights; None is `method_loss`, as in the paper. To judge by another
        batch, make it a part of the batch.
      estimator: `exact`, `first_order`, `finite_difference` or a function like `core.meta.ESTIMATORS`; `lookahead`,
        whose trial step is the regular step before and whose outer loss is the present total loss, so that it takes a
        `Pair` of batches; None leaves the mask as it is.
      trial: how the trial step is taken: by the weights' "optimizer", or plainly at a learning rate, or one for each
        part of the weights as in `meta_gradient`, or a function of the step that gives such rates.
      scope: which of the weights the trial step moves, as in `meta_gradient`. The trial then starts at the weights
        before the regular step, so that what it does not move (the encoder) is computed once for both.
      every: regular steps per step of the mask.
      accumulate: micro-batches per step. If more than one, every leaf of the batch has a leading axis of that length;
        gradients are averaged, and each micro-batch has a trial step of its own.
      after_step: `(state, memory) -> model_state`, once per step, at the new weights and with the memory of the total
        loss, [micro-batches, ...] each: for targets and queues.
      activation: how the losses turn the mask into weights, for the metrics about it: `sigmoid` or `identity`.
      axis_name: the mapped axis over which the batch is split, if any.

    Returns:
      A `Learner`. Its metrics are `loss`, `gradient_norm`, `loss_outer`, `meta_direct_norm`, `meta_second_order_norm`,
      `mask_mean`, `mask_std`, `mask_min`, `mask_max`, `skipped`, `skipped_in_a_row` and those of the total loss. If one
      of them is not finite, the whole update is skipped and counted.

    Example:
      >>> from metamask_jax.core.losses import nt_xent
      >>> def loss(params, mask, model_state, views):
      ...     return nt_xent(jnp.tanh(views @ params) * jax.nn.sigmoid(mask), temperature=0.5), model_state
      >>> learner = metamask(loss, loss, optimizer=optax.sgd(0.1), mask_optimizer=optax.sgd(1.0))
      >>> keys = jax.random.split(jax.random.key(0))
      >>> state = learner.init(0.3 * jax.random.normal(keys[0], (8, 4)), jnp.zeros(4))
      >>> views = jax.random.normal(keys[1], (2, 16, 8))
      >>> update = jax.jit(learner.update)
      >>> state, first = update(state, views)
      >>> for _ in range(20):
      ...     state, metrics = update(state, views)
      >>> bool(metrics["loss"] < first["loss"]), int(state.step)
      (True, 21)
    """
    algorithm = _Algorithm(
        total_loss=total_loss,
        method_loss=method_loss,
        outer_loss=outer_loss,
        optimizer=optimizer,
        mask_optimizer=mask_optimizer,
        estimator=estimator,
        trial=trial,
        scope=scope,
        every=every,
        accumulate=accumulate,
        after_step=after_step,
        activation=activation,
        axis_name=axis_name,
    )
    check_arguments(**vars(algorithm))
    return Learner(algorithm.init, algorithm.update)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Algorithm:
    """The arguments of `metamask`, and the steps of the algorithm in the order in which they are taken."""

    total_loss: Loss
    method_loss: Loss
    outer_loss: Loss | None
    optimizer: Optimizer
    mask_optimizer: Optimizer
    estimator: str | Estimator | None
    trial: Any
    scope: Scope
    every: int
    accumulate: int
    after_step: Callable[[MetaMaskState, PyTree], PyTree] | None
    activation: str
    axis_name: str | None

    def init(self, params: PyTree, mask: PyTree, model_state: PyTree = ()) -> MetaMaskState:
        require_floating("params", params)
        require_floating("mask", mask)
        zero = jnp.zeros((), jnp.int32)
        opt_state, mask_opt_state = _at(self.optimizer, zero).init(params), _at(self.mask_optimizer, zero).init(mask)
        state = MetaMaskState(zero, params, mask, model_state, opt_state, mask_opt_state, zero, zero)
        # Copies throughout: a caller may donate the state, and a buffer can be given away once only.
        state = jax.tree.map(jnp.copy, state)
        return state._replace(previous=jax.tree.map(jnp.copy, state)) if self.estimator == "lookahead" else state

    def update(self, state: MetaMaskState, batch: PyTree) -> tuple[MetaMaskState, Metrics]:
        check_batch(batch, estimator=self.estimator, axis_name=self.axis_name)
        present = batch.present if self.estimator == "lookahead" else batch
        updated, metrics, memory, gradient = self._regular_step(state, present)
        if self.estimator == "lookahead":
            updated, meta_metrics = self._lookahead_step(state, updated, batch.previous, metrics["loss"], gradient)
            metrics |= meta_metrics
        elif self.estimator is not None:
            learn = partial(self._meta_step, state, batch=batch)
            if self.every > 1:
                learn = partial(lax.cond, state.step % self.every == 0, learn, _leave_mask)
            updated, meta_metrics = learn(updated)
            metrics |= meta_metrics
        # Last, because the meta step must not meet this batch's own projections in a queue of past ones.
        if self.after_step is not None:
            updated = updated._replace(model_state=self.after_step(updated, memory))
        metrics |= mask_metrics(updated.mask, self.activation)
        return guard(state, updated, agreed(metrics, self.axis_name))

    def _regular_step(self, state: MetaMaskState, batch: PyTree) -> tuple[MetaMaskState, Metrics, PyTree, Gradient]:
        """Trains the weights on the total loss, the mask fixed (Eq. 5).

        Returns:
          The updated state, metrics, the loss's memory, and the gradient of the total loss before the step. Its mask
          part is formed on the way to the weights; where it is not used, it is not computed.
        """

        def micro_step(carry: tuple[Gradient, PyTree], batch: PyTree) -> tuple[Any, tuple[Metrics, PyTree]]:
            gradient, model_state = carry
            objective = partial(evaluate_loss, self.total_loss, model_state=model_state, batch=batch)
            new, (value, model_state, report) = jax.grad(objective, (0, 1), has_aux=True)(state.params, state.mask)
            metrics = {"loss": value, **report.metrics}
            return (jax.tree.map(jnp.add, gradient, Gradient(*new)), model_state), (metrics, report.memory)

        zeros = jax.tree.map(jnp.zeros_like, Gradient(state.params, state.mask))
        (gradient, model_state), (metrics, memory) = self._accumulate(micro_step, (zeros, state.model_state), batch)
        gradient = jax.tree.map(lambda g: g / self.accumulate, gradient)
        gradient = gradient._replace(params=mean(gradient.params, self.axis_name))
        optimizer = _at(self.optimizer, state.step)
        updates, opt_state = optimizer.update(gradient.params, state.opt_state, state.params)
        updated = state._replace(
            params=optax.apply_updates(state.params, updates), model_state=model_state, opt_state=opt_state
        )
        metrics = jax.tree.map(jnp.mean, metrics) | {"gradient_norm": optax.tree.norm(gradient.params)}
        return updated, metrics, memory, gradient

    def _meta_step(self, state: MetaMaskState, updated: MetaMaskState, batch: PyTree) -> tuple[MetaMaskState, Metrics]:
        """Trains the mask through a trial step on the method's loss (Eq. 6-7); the weights stay as they are."""
        start = updated if self.scope is None else state

        def micro_step(total: MetaGradient, batch: PyTree) -> tuple[MetaGradient, tuple[()]]:
            # Trial model states are dropped: only the regular step's survives.
            inner, outer = (
                lambda params, mask, loss=loss: evaluate_loss(loss, params, mask, start.model_state, batch)[0]
                for loss in (self.method_loss, self.outer_loss or self.method_loss)
            )
            assert self.estimator is not None
            parts = meta_gradient_parts(
                inner,
                outer,
                start.params,
                start.mask,
                estimator=self.estimator,
                scope=self.scope,
                axis_name=self.axis_name,
                **self._trial_step(start),
            )
            return jax.tree.map(jnp.add, total, parts), ()

        zeros = jax.tree.map(jnp.zeros_like, start.mask)
        parts, _ = self._accumulate(micro_step, MetaGradient(jnp.zeros(()), zeros, zeros), batch)
        return self._move_mask(updated, jax.tree.map(lambda part: part / self.accumulate, parts))

    def _lookahead_step(
        self, state: MetaMaskState, updated: MetaMaskState, batch: PyTree, loss: jax.Array, gradient: Gradient
    ) -> tuple[MetaMaskState, Metrics]:
        """Trains the mask by what it does to the present loss, directly and through the previous regular step.

        Args:
          state: before this step, with the state before the previous one.
          updated: after this regular step.
          batch: of the previous step.
          loss: the total loss of this step.
          gradient: its gradient.
        """
        before = state.previous
        second_order = lookahead_gradient(
            lambda params, mask: evaluate_loss(self.total_loss, params, mask, before.model_state, batch)[0],
            gradient.params,
            before.params,
            before.mask,
            optimizer=_at(self.optimizer, before.step),
            opt_state=before.opt_state,
            axis_name=self.axis_name,
        )
        parts = MetaGradient(loss, mean(gradient.mask, self.axis_name), second_order)
        # Not in the first step, and not after one that was skipped: the batch before is not that of `previous`.
        # Chosen afterwards, because on a CPU the branch of a `cond` runs on fewer cores.
        valid = before.step + 1 == state.step
        learned, metrics = jax.tree.map(
            partial(jnp.where, valid), self._move_mask(updated, parts), _leave_mask(updated)
        )
        return learned._replace(previous=state._replace(previous=())), metrics

    def _move_mask(self, state: MetaMaskState, parts: MetaGradient) -> tuple[MetaMaskState, Metrics]:
        """The mask's optimiser's step along a meta-gradient, and the metrics of it."""
        updates, opt_state = _at(self.mask_optimizer, state.step).update(parts.total, state.mask_opt_state, state.mask)
        norms = parts.value, optax.tree.norm(parts.direct), optax.tree.norm(parts.second_order)
        moved = state._replace(mask=optax.apply_updates(state.mask, updates), mask_opt_state=opt_state)
        return moved, dict(zip(META_METRICS, norms, strict=True))

    def _trial_step(self, state: MetaMaskState) -> dict[str, Any]:
        """How the trial step is taken: as the optimiser would take it, or plainly."""
        if isinstance(self.trial, str):
            return {"optimizer": _at(self.optimizer, state.step), "opt_state": state.opt_state}
        return {"learning_rate": self.trial(state.step) if callable(self.trial) else self.trial}

    def _accumulate(self, micro_step: Any, carry: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
        """Folds `micro_step` over the micro-batches; what else it gives is stacked, [accumulate, ...]."""
        if self.accumulate > 1:
            return lax.scan(micro_step, carry, batch)
        carry, output = micro_step(carry, batch)  # a loop of one would be compiled differently
        return carry, jax.tree.map(lambda leaf: leaf[None], output)


def _at(optimizer: Optimizer, step: jax.Array) -> optax.GradientTransformation:
    """The optimiser of a step."""
    return optimizer if isinstance(optimizer, optax.GradientTransformation) else optimizer(step)


def _leave_mask(state: MetaMaskState) -> tuple[MetaMaskState, Metrics]:
    """What stands in for the meta step when it is not its turn."""
    return state, {name: jnp.zeros(()) for name in META_METRICS}
