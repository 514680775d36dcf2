"""The second-order part of a meta-gradient whose trial step is the network's own last step: docs/lookahead.md."""

import jax
import optax

from metamask_jax.core.collectives import mean
from metamask_jax.core.meta import Loss
from metamask_jax.core.trial import make_trial_step, pull_back_step, require_like, require_problem
from metamask_jax.core.types import PyTree


def lookahead_gradient(
    previous_loss: Loss,
    slope: PyTree,
    previous_params: PyTree,
    previous_mask: PyTree,
    *,
    learning_rate: PyTree = None,
    optimizer: optax.GradientTransformation | None = None,
    opt_state: optax.OptState | None = None,
    axis_name: str | None = None,
) -> PyTree:
    """What the mask did to the present loss through the weights that the previous, real step arrived at.

    The second-order part of a meta-gradient whose trial step is the network's own last step and whose outer loss is
    that of the present minibatch, both of which training computes anyway; see docs/lookahead.md. The direct part is
    the present loss's gradient with respect to the mask.

    Args:
      previous_loss: `(params, mask) -> scalar`, which the previous step descended, on its own minibatch.
      slope: gradient of the present loss at the present weights, a pytree like `previous_params`; on several devices
        their mean, as training has it.
      previous_params: the weights before the previous step.
      previous_mask: the mask of that step.
      learning_rate: of that step, as in `trial_params`.
      optimizer: instead of `learning_rate`, as in `trial_params`.
      opt_state: that optimiser's state before the previous step.
      axis_name: the mapped axis over which the batch is split, if any.

    Returns:
      A pytree like the mask.

    Example:
      >>> import jax.numpy as jnp
      >>> from metamask_jax.core.meta import trial_params
      >>> loss = lambda params, mask: 0.5 * jnp.sum((params * mask) ** 2)
      >>> params, mask = jnp.ones(2), jnp.array([1.0, 2.0])
      >>> present = trial_params(loss, params, mask, learning_rate=0.1)
      >>> slope, direct = jax.grad(loss, argnums=(0, 1))(present, mask)
      >>> second_order = lookahead_gradient(loss, slope, params, mask, learning_rate=0.1)
      >>> (direct + second_order).round(4)  # with one minibatch, as `exact`
      Array([ 0.63, -0.24], dtype=float32)
    """
    require_problem(previous_loss=previous_loss, previous_params=previous_params, previous_mask=previous_mask)
    require_like("slope", slope, "previous_params", previous_params)
    step = make_trial_step(learning_rate, optimizer, opt_state)

    gradient, pull_to_mask = jax.vjp(lambda mask: jax.grad(previous_loss)(previous_params, mask), previous_mask)
    # Only pull-backs are used: under jit, the gradient of a step that is linear in it is not computed again.
    _, pull_to_gradient = pull_back_step(step, mean(gradient, axis_name), previous_params)
    (second_order,) = pull_to_mask(pull_to_gradient(slope))
    return mean(second_order, axis_name)
