"""What is trained: the networks of a configuration, and the state of a run."""

from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from metamask_jax.core.mask import init_mask
from metamask_jax.core.types import PyTree
from metamask_jax.errors import shown
from metamask_jax.methods import Method
from metamask_jax.methods.base import init_module
from metamask_jax.models import Encoder, ProjectionHead, WidenedEncoder
from metamask_jax.training.optimizers import make_mask_optimizer, make_optimizer
from metamask_jax.training.registry import Registry, resolve_registry


class TrainState(flax.struct.PyTreeNode):
    """Everything a run needs to go on, arrays only.

    Attributes:
      step: steps taken, int32; skipped ones count.
      seed: of everything random, int32; an array, so that runs that differ in it share one compiled program.
      params: weights of `encoder`, `drr_head` and `method`.
      batch_stats: their BatchNorm statistics, under the same names.
      method_state: targets, queues and banks of the method.
      mask: the dimensional mask's logits [dim].
      opt_state: of the network's optimiser.
      mask_opt_state: of the mask's optimiser.
      skipped: updates skipped so far because something was not finite, int32.
      skipped_in_a_row: of these, the ones directly before this step, int32.
      previous: for the lookahead estimator the state before the last step that was not skipped, itself without a
        previous one; a stand-in before the first step. Empty for the others.
    """

    step: jax.Array
    seed: jax.Array
    params: PyTree
    batch_stats: PyTree
    method_state: PyTree
    mask: jax.Array
    opt_state: PyTree
    mask_opt_state: PyTree
    skipped: jax.Array
    skipped_in_a_row: jax.Array
    previous: PyTree = ()


class Weights(NamedTuple):
    """The part of a `TrainState` that training starts from, and that can be taken over from another run."""

    params: PyTree
    batch_stats: PyTree
    method_state: PyTree
    mask: jax.Array


class Model(NamedTuple):
    """The networks of a configuration."""

    encoder: Encoder
    drr_head: ProjectionHead
    method: Method


def looks_ahead(config: ConfigDict) -> bool:
    """Whether the mask is learned by the lookahead estimator, for which a step needs to know the one before."""
    return config.mask.learn and config.meta.estimator == "lookahead"


def has_judge(config: ConfigDict) -> bool:
    """Whether the mask is judged by images of another batch, which a step then needs as well."""
    return config.mask.learn and config.meta.outer in ("next", "labels")


def build_encoder(config: ConfigDict, *, axis_name: str | None, registry: Registry | None = None) -> Encoder:
    """Builds the encoder of a configuration; `axis_name` synchronises its BatchNorm."""
    registry = resolve_registry(registry, config)
    encoder = registry.methods[config.method.name].encoder(
        config.encoder.name,
        width=config.encoder.width,
        stem=config.encoder.stem,
        image_size=config.data.image_size,
        dtype=config.train.dtype,
        axis_name=axis_name,
        remat=config.train.remat,
        init=config.encoder.init,
        encoders=registry.encoders,
    )
    if config.encoder.features is None:
        return encoder
    return WidenedEncoder(encoder, config.encoder.features, config.train.dtype, axis_name)


def build_model(config: ConfigDict, *, axis_name: str | None, registry: Registry | None = None) -> Model:
    """Builds the encoder, the redundancy-reduction head and the method; `axis_name` synchronises BatchNorm."""
    registry = resolve_registry(registry, config)
    return Model(
        encoder=build_encoder(config, axis_name=axis_name, registry=registry),
        drr_head=ProjectionHead(
            widths=config.loss.drr_head, last_norm=True, dtype=config.train.dtype, axis_name=axis_name
        ),
        method=registry.methods[config.method.name].build(config, axis_name),
    )


def init_weights(
    config: ConfigDict, *, registry: Registry | None = None, encoder: tuple[PyTree, PyTree] | None = None
) -> Weights:
    """What a run begins with, a function of the validated configuration and its seed.

    Args:
      config: a validated configuration.
      registry: what its names stand for; None is ours and `config.plugins`.
      encoder: parameters and BatchNorm statistics to begin with instead of random ones; targets start as their copies.
    """
    model = build_model(config, axis_name=None, registry=registry)
    keys = jax.random.split(jax.random.key(config.train.seed), 3)
    size, dim = config.data.image_size, model.encoder.features
    own, own_stats = encoder or init_module(model.encoder, keys[0], 2, size, size, 3)
    method = model.method.init(keys[1], own, dim)
    params, batch_stats = (
        {"encoder": own, "method": method.params},
        {"encoder": own_stats, "method": method.batch_stats},
    )
    if config.loss.drr:
        params["drr_head"], batch_stats["drr_head"] = init_module(model.drr_head, keys[2], 2, dim)
    return Weights(params, batch_stats, method.state, init_mask(dim, activation=config.mask.activation))


def init_state(config: ConfigDict, *, registry: Registry | None = None, weights: Weights | None = None) -> TrainState:
    """The state before the first step.

    Args:
      config: a validated configuration.
      registry: what its names stand for; None is ours and `config.plugins`.
      weights: what to begin with; None for `init_weights`, a function of the configuration and its seed alone.
    """
    registry = resolve_registry(registry, config)
    if weights is None:
        weights = init_weights(config, registry=registry)
    if not isinstance(weights, Weights):
        raise TypeError(f"weights={shown(weights)}; expected Weights such as init_weights gives, or None")
    method = registry.methods[config.method.name].build(config, None)
    state = TrainState(
        step=jnp.zeros((), jnp.int32),
        seed=jnp.asarray(config.train.seed, jnp.int32),
        params=weights.params,
        batch_stats=weights.batch_stats,
        # A target starts as a copy: buffers are donated, each once.
        method_state=jax.tree.map(jnp.copy, weights.method_state),
        mask=weights.mask,
        opt_state=make_optimizer(
            config.optimizer, 0.0, constant_rate=method.constant_rate, optimizers=registry.optimizers
        ).init(weights.params),
        mask_opt_state=make_mask_optimizer(config.mask, 0.0).init(weights.mask),
        skipped=jnp.zeros((), jnp.int32),
        skipped_in_a_row=jnp.zeros((), jnp.int32),
    )
    return state.replace(previous=jax.tree.map(jnp.copy, state)) if looks_ahead(config) else state
