"""The interface of a self-supervised method: three pure functions, and defaults for what they are built from."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from ml_collections import ConfigDict

from metamask_jax.core.losses import redundancy_reduction
from metamask_jax.core.types import PyTree
from metamask_jax.models import Encoder, make_encoder
from metamask_jax.models.layers import BATCH_NORM_MOMENTUM


class Variables(NamedTuple):
    """What a method owns.

    Attributes:
      params: weights of its heads, trained with the encoder; a dict.
      batch_stats: their BatchNorm statistics.
      state: anything that is not trained by gradients: targets, queues, banks. Equal on all devices.
    """

    params: PyTree
    batch_stats: PyTree
    state: PyTree


class Clock(NamedTuple):
    """How far the training is.

    Attributes:
      step: steps taken before this one, int32.
      epoch: the same in epochs, float32.
      progress: the same as a share of the whole run, float32 in [0, 1).
    """

    step: jax.Array
    epoch: jax.Array
    progress: jax.Array


class Inputs(NamedTuple):
    """What a method sees of a batch.

    Attributes:
      h: masked features [views, batch, dim] of this device's slice.
      encode: gives masked features [views, batch, dim] of the same views under other encoder weights, such as an
        average of past ones. They are constants to every derivative, that for the mask included.
      labels: int32 [batch], -1 where there is none.
      indices: int32 [batch], places of the images in the training set.
      clock: how far the training is.
      small: masked features [small views, batch, dim] of small crops, or None if there are none.
    """

    h: jax.Array
    encode: Callable[[PyTree], jax.Array]
    labels: jax.Array
    indices: jax.Array
    clock: Clock
    small: jax.Array | None = None


class Output(NamedTuple):
    """What a method computes from one batch.

    Attributes:
      loss: scalar, of the whole batch of all devices.
      batch_stats: its heads' BatchNorm statistics after this batch.
      memory: what `Method.update` will need, such as projections to put into a queue: arrays [batch, ...] of this
        device's slice.
    """

    loss: jax.Array
    batch_stats: PyTree
    memory: PyTree


class Method(NamedTuple):
    """A self-supervised method on (masked) features.

    Attributes:
      init: `(key, encoder_params, dim) -> Variables` for features of length `dim`.
      loss: `(variables, inputs) -> Output`. It must leave no trace: trial steps call it and throw the statistics and
        the memory away.
      update: `(state, params, memory, clock) -> state`, once after each step. `params` are the updated weights, of
        the encoder under "encoder" and the method's own under "method"; `memory` is that of the regular step, of the
        whole batch of all devices in order.
      constant_rate: which of the method's params keep the initial learning rate, whatever the schedule.
    """

    init: Callable[[jax.Array, PyTree, int], Variables]
    loss: Callable[[Variables, Inputs], Output]
    update: Callable[[PyTree, PyTree, PyTree, Clock], PyTree]
    constant_rate: tuple[str, ...] = ()


class Recipe(NamedTuple):
    """How a method is made.

    Attributes:
      build: `(config, axis_name) -> Method` from the whole validated configuration.
      defaults: values of the keys of `config.method` that are left open (None), from the method's own paper.
      min_views: views of an image it needs.
      multi_crop: whether it has a use for small crops beside the views.
      encoder: builds the encoder, with the arguments of `models.make_encoder`.
      color_space: what the channels of its views must be, 'rgb' or 'lab', or None if it does not matter.
      check: raises a ConfigError for a completed configuration that does not suit it.
    """

    build: Callable[[ConfigDict, str | None], Method]
    defaults: Mapping[str, Any]
    min_views: int
    multi_crop: bool = False
    encoder: Callable[..., Encoder] = make_encoder
    color_space: str | None = None
    check: Callable[[ConfigDict], None] = lambda config: None


def redundancy_loss(config: ConfigDict, axis_name: str | None) -> Callable[[jax.Array], jax.Array]:
    """The redundancy-reduction loss of projections [views, batch, dim], as `config.loss` has it."""
    return partial(
        redundancy_reduction,
        off_diagonal_weight=config.loss.off_diagonal_weight,
        centered=config.loss.centered,
        unbiased=config.loss.unbiased,
        chunk_size=config.loss.chunk_size,
        axis_name=axis_name,
    )


def keep_state(state: PyTree, params: PyTree, memory: PyTree, clock: Clock) -> PyTree:
    """The update of a method whose state never changes."""
    del params, memory, clock
    return state


def init_module(module: nn.Module, key: jax.Array, *shape: int) -> tuple[PyTree, PyTree]:
    """Parameters and BatchNorm statistics of a module for inputs of a shape, both possibly empty."""
    # What runs once need not be fast, and the compiler of CPUs would take seconds to make it so.
    alone = not isinstance(key, jax.core.Tracer) and jax.default_backend() == "cpu"
    options: Any = {"xla_backend_optimization_level": 0} if alone else None
    init = jax.jit(module.init, static_argnames="train", compiler_options=options)
    variables = init(key, jnp.zeros(shape), train=True)
    return variables["params"], variables.get("batch_stats", {})


def apply_views(module: nn.Module, params: PyTree, batch_stats: PyTree, views: jax.Array) -> tuple[jax.Array, PyTree]:
    """Applies a module in training mode to each view [views, batch, ...] on its own.

    BatchNorm (`models.layers.BatchNorm`, whose momentum this relies on) normalises every view by its own statistics,
    and its running averages see the views one after another, as in the methods' reference programs. To convolutions and
    dense layers all views are one batch.

    Returns:
      Outputs [views, batch, dim], and the statistics after the last view.
    """
    variables = {"params": params, "batch_stats": batch_stats}
    outputs, updated = jax.vmap(lambda view: module.apply(variables, view, train=True, mutable=["batch_stats"]))(views)
    if not batch_stats:
        return outputs, {}

    def after_all(start: jax.Array, after_one: jax.Array) -> jax.Array:
        """From averages after each view alone, m start + (1 - m) view, that after one view upon another."""
        running = start
        for after in after_one:
            running = after + BATCH_NORM_MOMENTUM * (running - start)
        return running

    return outputs, jax.tree.map(after_all, batch_stats, updated["batch_stats"])
