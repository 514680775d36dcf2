"""Estimators of the meta-gradient that look further than one trial step: several steps, or all the way to rest.

Both are functions of the form of `core.meta.ESTIMATORS`, for `estimator=` of `meta_gradient` and `metamask`.
"""

import jax
import jax.numpy as jnp

from metamask_jax.core.arrays import require_whole
from metamask_jax.core.collectives import mean
from metamask_jax.core.meta import Estimator, Loss, MetaGradient
from metamask_jax.core.trial import TrialStep, pull_back_step
from metamask_jax.core.types import PyTree


def unrolled(steps: int) -> Estimator:
    """Differentiates through several trial steps, exactly; one step is `exact`.

    Each step is taken on the same inner loss and, if by an optimiser, with its present state. Activations of a step are
    computed again in the backward pass, so memory hardly grows with the number of steps.

    Args:
      steps: how many.

    Example:
      >>> import jax.numpy as jnp
      >>> from metamask_jax.core.meta import meta_gradient
      >>> loss = lambda params, mask: 0.5 * jnp.sum((params * mask) ** 2)
      >>> arguments = loss, loss, jnp.ones(2), jnp.array([1.0, 2.0])
      >>> value, _ = meta_gradient(*arguments, learning_rate=0.1, estimator=unrolled(3))
      >>> f"{value:.4f}"  # 0.5 * sum(m**2 * (1 - 0.1 * m**2)**6)
      '0.3590'
    """
    require_whole("steps", steps, expected="a whole number >= 1")

    def estimate(
        inner_loss: Loss, outer_loss: Loss, params: PyTree, mask: PyTree, step: TrialStep, axis_name: str | None
    ) -> MetaGradient:
        @jax.checkpoint
        def advance(params: PyTree, mask: PyTree) -> PyTree:
            return step(mean(jax.grad(inner_loss)(params, mask), axis_name), params)

        def trial(mask: PyTree) -> PyTree:
            arrived = params
            for _ in range(steps):
                arrived = advance(arrived, mask)
            return arrived

        at_trial, pull_back = jax.vjp(trial, mask)
        value, (slope, direct) = jax.value_and_grad(outer_loss, argnums=(0, 1))(at_trial, mask)
        # Each device pulls its own slope back through weights that all of them share.
        (second_order,) = pull_back(mean(slope, axis_name))
        return MetaGradient(value, mean(direct, axis_name), mean(second_order, axis_name))

    return estimate


def neumann(terms: int) -> Estimator:
    """Approximates the derivative through training to rest, by a Neumann series; one term is `exact`.

    At weights where the inner loss is at rest, they follow the mask by -H^-1 d/dmask grad, with the Hessian H of the
    inner loss. The series r (1 + (1 - r H) + (1 - r H)^2 + ...) of that inverse, r the rate of the trial step, is cut
    after some terms: what as many steps that all start from the present weights would do. It converges if r is below
    2 over the largest eigenvalue of H, which an indefinite Hessian does not allow: watch its norm.

    Args:
      terms: of the series.
    """
    require_whole("terms", terms, expected="a whole number >= 1")

    def estimate(
        inner_loss: Loss, outer_loss: Loss, params: PyTree, mask: PyTree, step: TrialStep, axis_name: str | None
    ) -> MetaGradient:
        def inner_gradient(params: PyTree, mask: PyTree) -> PyTree:
            return mean(jax.grad(inner_loss)(params, mask), axis_name)

        gradient, pull_to_mask = jax.vjp(lambda mask: inner_gradient(params, mask), mask)
        at_trial, pull_to_gradient = pull_back_step(step, gradient, params)
        value, (slope, direct) = jax.value_and_grad(outer_loss, argnums=(0, 1))(at_trial, mask)
        total = term = pull_to_gradient(mean(slope, axis_name))
        for _ in range(terms - 1):
            _, curved = jax.jvp(lambda params: inner_gradient(params, mask), (params,), (term,))
            term = jax.tree.map(jnp.add, term, pull_to_gradient(curved))
            total = jax.tree.map(jnp.add, total, term)
        (second_order,) = pull_to_mask(total)
        return MetaGradient(value, mean(direct, axis_name), mean(second_order, axis_name))

    return estimate


LONGER_TRIALS = {"unrolled": unrolled, "neumann": neumann}  # by the names that a configuration calls them
