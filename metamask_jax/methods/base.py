"""The interface of a self-supervised method: three pure functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

PyTree = Any


class Variables(NamedTuple):
    """What a method owns.

    Attributes:
      params: weights of its heads, trained with the encoder.
      batch_stats: their BatchNorm statistics.
      state: anything that is not trained by gradients: targets, queues, banks.
    """

    params: PyTree
    batch_stats: PyTree
    state: PyTree


class Output(NamedTuple):
    """What a method computes from one batch.

    Attributes:
      loss: scalar, of the whole batch of all devices.
      batch_stats: its heads' BatchNorm statistics after this batch.
      memory: what `Method.update` will need, such as projections to put into a queue.
    """

    loss: jax.Array
    batch_stats: PyTree
    memory: PyTree


class Method(NamedTuple):
    """A self-supervised method on (masked) features.

    Attributes:
      init: `(key, dim) -> Variables` for features of length `dim`.
      loss: `(params, batch_stats, state, h) -> Output` for masked features `h` [views, batch, dim]. It must leave no
        trace: trial steps call it and throw the statistics and the memory away.
      update: `(state, params, memory) -> state`, once after each regular step.
    """

    init: Callable[[jax.Array, int], Variables]
    loss: Callable[[PyTree, PyTree, PyTree, jax.Array], Output]
    update: Callable[[PyTree, PyTree, PyTree], PyTree]


def init_module(module: nn.Module, key: jax.Array, *shape: int) -> tuple[PyTree, PyTree]:
    """Parameters and BatchNorm statistics of a module for inputs of a shape, both possibly empty."""
    variables = jax.jit(module.init, static_argnames="train")(key, jnp.zeros(shape), train=True)
    return variables["params"], variables.get("batch_stats", {})


def apply_views(module: nn.Module, params: PyTree, batch_stats: PyTree, views: jax.Array) -> tuple[jax.Array, PyTree]:
    """Applies a module in training mode to each view [views, batch, ...] on its own.

    BatchNorm normalises every view by its own statistics, and its running averages see the views one after another,
    as in the methods' reference programs.

    Returns:
      Outputs [views, batch, dim], and the statistics after the last view.
    """
    outputs = []
    for view in views:
        output, updated = module.apply(
            {"params": params, "batch_stats": batch_stats}, view, train=True, mutable=["batch_stats"]
        )
        batch_stats = updated.get("batch_stats", {})
        outputs.append(output)
    return jnp.stack(outputs), batch_stats
