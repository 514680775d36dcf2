"""What is minimised: the losses of a configuration on a batch, as functions of the weights and the mask."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from ml_collections import ConfigDict

from metamask_jax.core.mask import apply_mask, mask_weights
from metamask_jax.core.types import PyTree
from metamask_jax.methods import Clock, Inputs, Output, Variables
from metamask_jax.methods.barlow_twins import redundancy_loss
from metamask_jax.methods.base import apply_views
from metamask_jax.training.state import Model, TrainState

Metrics = dict[str, jax.Array]

_DROPOUT_STREAM = 0x64726F70  # sets these draws apart from the augmentation's, which start from the same keys


class Context(NamedTuple):
    """What does not change within a step.

    Attributes:
      config: a validated configuration.
      model: its networks.
      clock: how far the training is.
      axis_name: the mapped axis over which the batch is split, or None for the whole batch on one device.
    """

    config: ConfigDict
    model: Model
    clock: Clock
    axis_name: str | None


class Sample(NamedTuple):
    """An augmented batch.

    Attributes:
      views: [views, batch, height, width, channels].
      small: smaller crops [small views, batch, height, width, channels], possibly none.
      keys: one an image, [batch], for whatever else is random.
      labels: int32 [batch].
      indices: int32 [batch].
    """

    views: jax.Array
    small: jax.Array
    keys: jax.Array
    labels: jax.Array
    indices: jax.Array


class Encoded(NamedTuple):
    """What the encoder makes of the full-size views of a batch.

    Attributes:
      h: features [views, batch, dim].
      masked: the same after dropout, times the mask: what the losses see.
      batch_stats: the encoder's BatchNorm statistics after this batch.
    """

    h: jax.Array
    masked: jax.Array
    batch_stats: PyTree


def method_loss(
    context: Context, state: TrainState, params: PyTree, mask: jax.Array, sample: Sample
) -> tuple[Output, Encoded]:
    """The method's loss at given weights and mask, which may be trial ones; everything else is the state's."""
    config = context.config
    weights = mask_weights(mask, activation=config.mask.activation)
    stats, views = state.batch_stats["encoder"], len(sample.views)
    h, stats = _encode(context, params["encoder"], stats, sample.views)
    if len(sample.small):
        small, stats = _encode(context, params["encoder"], stats, sample.small)
        h = jnp.concatenate([h, small])
    masked = apply_mask(_dropout(config, h, sample.keys), weights)

    def encode(encoder_params: PyTree) -> jax.Array:
        others, _ = _encode(context, encoder_params, state.batch_stats["encoder"], sample.views)
        return lax.stop_gradient(apply_mask(others, weights))

    output = context.model.method.loss(
        Variables(params["method"], state.batch_stats["method"], state.method_state),
        Inputs(
            masked[:views],
            encode,
            sample.labels,
            sample.indices,
            context.clock,
            masked[views:] if len(sample.small) else None,
        ),
    )
    return output, Encoded(h[:views], masked[:views], stats)


def total_loss(
    context: Context, state: TrainState, params: PyTree, mask: jax.Array, sample: Sample
) -> tuple[jax.Array, tuple[Metrics, PyTree, PyTree]]:
    """Both losses at given weights and mask (Eq. 5); everything else is the state's.

    Returns:
      Their sum, and with it metrics, all BatchNorm statistics after this batch, and the method's memory of it.
    """
    config, model = context.config, context.model
    output, encoded = method_loss(context, state, params, mask, sample)
    stats = state.batch_stats | {"encoder": encoded.batch_stats, "method": output.batch_stats}
    metrics = {"loss_method": output.loss, "feature_std": _feature_std(encoded.h, context.axis_name)}
    total = config.loss.alpha * output.loss
    if config.loss.drr:
        z, stats["drr_head"] = apply_views(model.drr_head, params["drr_head"], stats["drr_head"], encoded.masked)
        metrics["loss_drr"] = redundancy_loss(config, context.axis_name)(z)
        total += metrics["loss_drr"]
    return total, (metrics | {"loss": total}, stats, output.memory)


def _encode(context: Context, params: PyTree, batch_stats: PyTree, views: jax.Array) -> tuple[jax.Array, PyTree]:
    """Features [views, batch, dim] of augmented views [views, batch, height, width, channels], in training mode."""
    return apply_views(context.model.encoder, params, batch_stats, views)


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
    moments = jnp.stack([jnp.mean(h, axis=(0, 1)), jnp.mean(h**2, axis=(0, 1))])
    if axis_name is not None:
        moments = lax.pmean(moments, axis_name)
    variance = jnp.maximum(moments[1] - moments[0] ** 2, 0.0)
    return jnp.sqrt(jnp.sum(variance))
