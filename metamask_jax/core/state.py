"""What a learner carries from step to step, and what goes in and out of its losses."""

from typing import Any, NamedTuple

import jax

from metamask_jax.core.types import Metrics, PyTree


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
