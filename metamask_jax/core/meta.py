"""The bilevel step of MetaMask (paper Algorithm 1), for any model.

Two closures are all it knows: `inner_loss(params, mask)`, which drives a trial gradient step, and
`outer_loss(params, mask)`, which judges the mask at the weights that step arrives at:

    trial(mask)  =  params - learning_rate * grad_params inner_loss(params, mask)                 (Eq. 7)
    mask        <-  step along  d/dmask  outer_loss(trial(mask), mask)                            (Eq. 6)

The mask acts on the outer loss twice: directly, as an argument, and through the trial weights. The second way is a
derivative of a derivative. `exact` differentiates it like anything else; the other estimators leave it out or
approximate it. `params` and `mask` are any pytrees of floating-point arrays.

On several devices pass `axis_name`: the inner gradient is averaged before the trial step (every device must try the
same weights), the meta-gradient after. The losses must be those of the whole batch, as in `metamask_jax.core.losses`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from metamask_jax.core.collectives import mean
from metamask_jax.core.trial import (
    Scope,
    TrialStep,
    make_trial_step,
    pull_back_step,
    require_problem,
    require_scope,
    restrict,
    split,
)
from metamask_jax.core.types import PyTree
from metamask_jax.errors import shown

Loss = Callable[[PyTree, PyTree], jax.Array]
Estimator = Callable[[Loss, Loss, PyTree, PyTree, TrialStep, str | None], "MetaGradient"]


class MetaGradient(NamedTuple):
    """The derivative of the outer loss with respect to the mask, in its two parts.

    Attributes:
      value: the outer loss at the trial weights.
      direct: what the mask does to the outer loss at fixed trial weights; a pytree like the mask.
      second_order: what it does through the trial weights; a pytree like the mask.
    """

    value: jax.Array
    direct: PyTree
    second_order: PyTree

    @property
    def total(self) -> PyTree:
        """The meta-gradient: both parts together."""
        return jax.tree.map(jnp.add, self.direct, self.second_order)


def trial_params(
    inner_loss: Loss,
    params: PyTree,
    mask: PyTree,
    *,
    learning_rate: PyTree = None,
    optimizer: optax.GradientTransformation | None = None,
    opt_state: optax.OptState | None = None,
    axis_name: str | None = None,
) -> PyTree:
    """The weights after one trial step on the inner loss (paper Eq. 7).

    Args:
      inner_loss: `(params, mask) -> scalar`.
      params: the weights before the step.
      mask: the mask, held fixed during the step.
      learning_rate: of a plain gradient step: a number, possibly traced, or a pytree of them whose leaves stand for
        whole subtrees of `params`, such as `{"encoder": 0.1, "head": 0.01}`.
      optimizer: instead of `learning_rate`, an optax optimiser to take the step with, so that its momentum and weight
        decay take part as they do in the authors' program.
      opt_state: that optimiser's present state; it is read, never advanced.
      axis_name: the mapped axis over which the batch is split, if any.

    Returns:
      The trial weights, a pytree like `params`.

    Example:
      >>> loss = lambda params, mask: 0.5 * jnp.sum((params * mask) ** 2)
      >>> trial_params(loss, jnp.array([1.0, 1.0]), jnp.array([1.0, 2.0]), learning_rate=0.1)
      Array([0.9, 0.6], dtype=float32)
    """
    require_problem(inner_loss=inner_loss, params=params, mask=mask)
    step = make_trial_step(learning_rate, optimizer, opt_state)
    return step(mean(jax.grad(inner_loss)(params, mask), axis_name), params)


def meta_gradient(
    inner_loss: Loss,
    outer_loss: Loss,
    params: PyTree,
    mask: PyTree,
    *,
    learning_rate: PyTree = None,
    optimizer: optax.GradientTransformation | None = None,
    opt_state: optax.OptState | None = None,
    estimator: str | Estimator = "exact",
    scope: Scope = None,
    axis_name: str | None = None,
) -> tuple[jax.Array, PyTree]:
    """The outer loss at the trial weights, and its derivative with respect to the mask (paper Eq. 6).

    Args:
      inner_loss: `(params, mask) -> scalar`, on which the trial step is taken.
      outer_loss: `(params, mask) -> scalar`, evaluated at the trial weights.
      params: the weights; they do not change.
      mask: what to differentiate with respect to.
      learning_rate: of the trial step, as in `trial_params`.
      optimizer: instead of `learning_rate`, as in `trial_params`.
      opt_state: goes with `optimizer`.
      estimator: `exact`, `first_order` (without the part through the trial weights), `finite_difference` (that part
        by a central difference, as in the authors' program), or a function like those in `ESTIMATORS`.
      scope: which of `params` the trial step moves: the beginning of their names, such as `"head"`, or a predicate on
        a name such as `"head.fc1.kernel"`; None is all of them.
      axis_name: the mapped axis over which the batch is split, if any.

    Returns:
      The outer loss, and the meta-gradient, a pytree like `mask`.

    Example:
      >>> loss = lambda params, mask: 0.5 * jnp.sum((params * mask) ** 2)
      >>> value, gradient = meta_gradient(loss, loss, jnp.ones(2), jnp.array([1.0, 2.0]), learning_rate=0.1)
      >>> gradient.round(4)  # (1 - 0.1 m**2)**2 * m - 0.2 * m**3 * (1 - 0.1 m**2)
      Array([ 0.63, -0.24], dtype=float32)
    """
    parts = meta_gradient_parts(
        inner_loss,
        outer_loss,
        params,
        mask,
        learning_rate=learning_rate,
        optimizer=optimizer,
        opt_state=opt_state,
        estimator=estimator,
        scope=scope,
        axis_name=axis_name,
    )
    return parts.value, parts.total


def meta_gradient_parts(
    inner_loss: Loss,
    outer_loss: Loss,
    params: PyTree,
    mask: PyTree,
    *,
    learning_rate: PyTree = None,
    optimizer: optax.GradientTransformation | None = None,
    opt_state: optax.OptState | None = None,
    estimator: str | Estimator = "exact",
    scope: Scope = None,
    axis_name: str | None = None,
) -> MetaGradient:
    """As `meta_gradient`, with the direct and the second-order part apart, at no further cost.

    Example:
      >>> loss = lambda params, mask: 0.5 * jnp.sum((params * mask) ** 2)
      >>> parts = meta_gradient_parts(loss, loss, jnp.ones(2), jnp.array([1.0, 2.0]), learning_rate=0.1)
      >>> f"{optax.tree.norm(parts.direct):.4f}, {optax.tree.norm(parts.second_order):.4f}"
      '1.0837, 0.9767'
    """
    if not callable(estimator) and not (isinstance(estimator, str) and estimator in ESTIMATORS):
        allowed = ", ".join(map(repr, ESTIMATORS))
        raise ValueError(f"estimator={shown(estimator)}; expected one of {allowed}, or a function")
    require_problem(inner_loss=inner_loss, outer_loss=outer_loss, params=params, mask=mask)
    require_scope(scope)
    estimate = estimator if callable(estimator) else ESTIMATORS[estimator]
    step = make_trial_step(learning_rate, optimizer, opt_state)
    if scope is None:
        return _checked(estimate(inner_loss, outer_loss, params, mask, step, axis_name))
    moving, join = split(params, scope)
    found = estimate(
        lambda moving, mask: inner_loss(join(moving), mask),
        lambda moving, mask: outer_loss(join(moving), mask),
        moving,
        mask,
        restrict(step, params, scope),
        axis_name,
    )
    return _checked(found)


def _checked(found: MetaGradient) -> MetaGradient:
    """Refuses what an estimator of somebody's own may give."""
    if not isinstance(found, MetaGradient):
        raise TypeError(f"the estimator has given {shown(found)}; expected a MetaGradient")
    return found


def _exact(
    inner_loss: Loss, outer_loss: Loss, params: PyTree, mask: PyTree, step: TrialStep, axis_name: str | None
) -> MetaGradient:
    """Differentiates through the trial step."""
    # jax.grad of outer_loss(trial(mask), mask), written out so that its two terms can be told apart. Means over devices
    # stand where all devices have the same from there on; the pull-backs between them are each device's own.
    gradient, pull_to_mask = jax.vjp(lambda mask: jax.grad(inner_loss)(params, mask), mask)
    at_trial, pull_to_gradient = pull_back_step(step, mean(gradient, axis_name), params)
    value, slopes = jax.value_and_grad(outer_loss, argnums=(0, 1))(at_trial, mask)
    slope, direct = mean(slopes, axis_name)
    (second_order,) = pull_to_mask(pull_to_gradient(slope))
    return MetaGradient(value, direct, mean(second_order, axis_name))


def exact_recomputed(
    inner_loss: Loss, outer_loss: Loss, params: PyTree, mask: PyTree, step: TrialStep, axis_name: str | None
) -> MetaGradient:
    """As `exact`, but the inner loss's activations are not kept while the outer loss is computed.

    They are computed again for the pull-back, which takes one more forward pass, so that a meta step needs little more
    memory than a regular one (docs/performance.md).
    """
    gradient = mean(jax.grad(inner_loss)(params, mask), axis_name)
    at_trial, pull_to_gradient = pull_back_step(step, gradient, params)
    value, slopes = jax.value_and_grad(outer_loss, argnums=(0, 1))(at_trial, mask)
    slope, direct = mean(slopes, axis_name)
    direction = pull_to_gradient(slope)
    # Otherwise a compiler finds the same computation twice, and keeps the first one's results.
    params, direction = lax.platform_dependent(params, direction, cpu=_held_by_value, default=_held)
    # Of this gradient only the pull-back is used.
    _, pull_to_mask = jax.vjp(lambda mask: jax.grad(inner_loss)(params, mask), mask)
    (second_order,) = pull_to_mask(direction)
    return MetaGradient(value, direct, mean(second_order, axis_name))


def _held(params: PyTree, direction: PyTree) -> tuple[PyTree, PyTree]:
    """The same, but nothing can be computed from the params before the direction is known."""
    return lax.optimization_barrier((params, direction))


def _held_by_value(params: PyTree, direction: PyTree) -> tuple[PyTree, PyTree]:
    """As `_held`, for a CPU, where XLA removes barriers before it looks for what it has computed already.

    A direction that is no number makes the params none. The meta-gradient would not have been a number either.
    """
    some = sum((jnp.sum(leaf.ravel()[:1]) for leaf in jax.tree.leaves(direction)), jnp.zeros(()))
    return jax.tree.map(lambda w: jnp.where(jnp.isnan(some), some.astype(w.dtype), w), params), direction


def _first_order(
    inner_loss: Loss, outer_loss: Loss, params: PyTree, mask: PyTree, step: TrialStep, axis_name: str | None
) -> MetaGradient:
    """Takes the trial weights for constants."""
    at_trial = step(mean(jax.grad(inner_loss)(params, mask), axis_name), params)
    value, direct = jax.value_and_grad(outer_loss, argnums=1)(at_trial, mask)
    return MetaGradient(value, mean(direct, axis_name), jax.tree.map(jnp.zeros_like, mask))


def finite_difference(radius: float = 0.01) -> Estimator:
    """The estimator that differences the inner loss's mask gradient along the way in which the outer loss would move.

    Args:
      radius: how far the weights are moved either way, as the norm of all of them; the default is the authors'. Kinks
        of ReLU within it spoil the difference: docs/meta_gradient.md has what was measured.
    """

    def estimate(
        inner_loss: Loss, outer_loss: Loss, params: PyTree, mask: PyTree, step: TrialStep, axis_name: str | None
    ) -> MetaGradient:
        gradient = mean(jax.grad(inner_loss)(params, mask), axis_name)
        at_trial, pull_to_gradient = pull_back_step(step, gradient, params)
        value, (slope, direct) = jax.value_and_grad(outer_loss, argnums=(0, 1))(at_trial, mask)
        # The second-order term is d/dmask <grad_params inner_loss, direction>. For a plain step the direction is
        # -learning_rate * slope, and what follows is the authors' r = 0.01 / ||slope||.
        direction = pull_to_gradient(mean(slope, axis_name))
        length = optax.tree.norm(direction)
        scale = radius / jnp.where(length > 0, length, 1.0)  # no direction, no second-order term

        def mask_gradient(sign: float) -> PyTree:
            moved = jax.tree.map(lambda w, d: (w + sign * scale * d).astype(jnp.result_type(w)), params, direction)
            return mean(jax.grad(inner_loss, argnums=1)(moved, mask), axis_name)

        second_order = jax.tree.map(
            lambda plus, minus: ((plus - minus) / (2 * scale)).astype(plus.dtype),
            mask_gradient(1.0),
            mask_gradient(-1.0),
        )
        return MetaGradient(value, mean(direct, axis_name), second_order)

    return estimate


ESTIMATORS: dict[str, Estimator] = {
    "exact": _exact,
    "first_order": _first_order,
    "finite_difference": finite_difference(),
}
# Those of a configuration: `lookahead` spans two steps of a training, so it is not among those of `meta_gradient`.
TRAINING_ESTIMATORS = (*ESTIMATORS, "lookahead")
