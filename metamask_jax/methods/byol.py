"""BYOL (Grill et al. 2020): predict the projections of a slowly moving average of oneself."""

import math

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from metamask_jax.core.losses import negative_cosine
from metamask_jax.core.types import PyTree
from metamask_jax.methods.base import Clock, Inputs, Method, Output, Recipe, Variables, apply_views
from metamask_jax.methods.siamese import Siamese


def byol(config: ConfigDict, axis_name: str | None) -> Method:
    """The target is encoder and head under averaged weights, in training mode: BatchNorm uses its batch statistics."""
    heads = Siamese.build(config, axis_name, last_norm=config.method.head_norm)

    def init(key: jax.Array, encoder_params: PyTree, dim: int) -> Variables:
        params, batch_stats = heads.init(key, dim)
        return Variables(params, batch_stats, state={"encoder": encoder_params, "head": params["head"]})

    def loss(variables: Variables, inputs: Inputs) -> Output:
        params, batch_stats, target = variables
        _, p, updated_stats = heads.apply(params, batch_stats, inputs.h)
        targets, _ = apply_views(heads.head, target["head"], batch_stats["head"], inputs.encode(target["encoder"]))
        # The squared distance of unit vectors, 2 - 2 cos, summed over the two directions.
        value = 4.0 + 4.0 * negative_cosine(p, targets, axis_name=axis_name)
        return Output(value, updated_stats, memory={})

    def update(state: PyTree, params: PyTree, memory: PyTree, clock: Clock) -> PyTree:
        del memory
        online = {"encoder": params["encoder"], "head": params["method"]["head"]}
        momentum = cosine_momentum(config.method.momentum, clock.progress)
        return optax.incremental_update(online, state, step_size=1.0 - momentum)

    return Method(init, loss, update)


def cosine_momentum(start: float, progress: float | jax.Array) -> jax.Array:
    """BYOL's schedule: from `start` at the beginning of a run to one at its end.

    Example:
      >>> [round(float(cosine_momentum(0.9, progress)), 3) for progress in (0.0, 0.5, 1.0)]
      [0.9, 0.95, 1.0]
    """
    return 1.0 - (1.0 - start) * (jnp.cos(math.pi * progress) + 1.0) / 2.0


BYOL = Recipe(
    byol,
    # The paper's momentum is 0.996 for 1000 epochs of ImageNet and 0.99 for 300 and fewer.
    defaults={"head": (4096, 256), "head_norm": False, "predictor": 4096, "momentum": 0.99},
    min_views=2,
)
