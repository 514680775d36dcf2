"""What a learner carries from step to step, and what goes in and out of its losses."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from metamask_jax.core.types import Metrics, PyTree

Loss = Callable[[PyTree, PyTree, PyTree, PyTree], tuple[Any, ...]]


class MetaMaskState(NamedTuple):
    """Everything `update` needs to go on, arrays only.

    Attributes:
      step: steps taken, int32; skipped ones count.
      params: the weights.
      mask: the mask's logits.
      model_state: what the losses keep beside the weights.
      opt_state: of the weights' optimiser.
      mask_opt_state: of the mask's optimiser.
      skipped: updates skipped so far because something was not finite, int32.
      skipped_in_a_row: of these, the ones directly before this step, int32.
      previous: for the lookahead estimator the state before the last step that was not skipped, itself without a
        previous one; a stand-in before the first step. Empty for the others.
    """

    step: jax.Array
    params: PyTree
    mask: PyTree
    model_state: PyTree
    opt_state: PyTree
    mask_opt_state: PyTree
    skipped: jax.Array
    skipped_in_a_row: jax.Array
    previous: Any = ()


class Report(NamedTuple):
    """What a total loss may return as a third item.

    Attributes:
      metrics: scalars to be reported.
      memory: any pytree of arrays, for `after_step`.
    """

    metrics: Metrics
    memory: PyTree = ()


class Pair(NamedTuple):
    """The batches of two steps that follow each other: what an update by the lookahead estimator takes.

    Attributes:
      previous: that of the step before.
      present: that of this step.
    """

    previous: Any
    present: Any


class Judged(NamedTuple):
    """A batch, and the one that judges the mask, for outer losses on other images.

    Attributes:
      batch: what the regular and the trial step learn from.
      judge: what the outer loss sees.
    """

    batch: Any
    judge: Any


class Gradient(NamedTuple):
    """Of the total loss.

    Attributes:
      params: of the whole batch of all devices.
      mask: of this device's share of it.
    """

    params: PyTree
    mask: PyTree


def evaluate_loss(
    loss: Loss, params: PyTree, mask: PyTree, model_state: PyTree, batch: PyTree
) -> tuple[jax.Array, tuple[jax.Array, PyTree, Report]]:
    """A loss's value, and as what `jax.grad` calls its auxiliary output the value, the model state and the report."""
    try:
        output = loss(params, mask, model_state, batch)
    except Exception as error:
        if type(error).__name__ == "TraceContextError":  # flax.nnx's, which is not imported for this
            error.add_note(
                "in a loss, rebuild the network with flax.nnx.merge(graphdef, params, model_state, copy=True)"
            )
        raise
    if not isinstance(output, tuple) or len(output) not in (2, 3):
        raise TypeError(
            f"a loss returned {type(output).__name__}; expected (scalar, model_state) or (scalar, model_state, Report)"
        )
    value, model_state, *report = output
    return value, (value, model_state, report[0] if report else Report({}))
