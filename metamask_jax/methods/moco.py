"""MoCo (He et al. 2020): contrast with the keys of a moving average of oneself, against a queue of past keys."""

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from metamask_jax.core.losses import info_nce
from metamask_jax.core.types import PyTree
from metamask_jax.methods import queue
from metamask_jax.methods.base import (
    Clock,
    Inputs,
    Method,
    Output,
    Recipe,
    Variables,
    apply_views,
    init_module,
)
from metamask_jax.models import ProjectionHead


def moco(config: ConfigDict, axis_name: str | None) -> Method:
    """The first view gives the query, the others its keys.

    BatchNorm over all devices takes the place of the paper's shuffling of images among them: no device's statistics
    tell which keys belong to its queries.
    """
    head = ProjectionHead(widths=config.method.head, last_norm=False, dtype=config.train.dtype, axis_name=axis_name)

    def init(key: jax.Array, encoder_params: PyTree, dim: int) -> Variables:
        params, batch_stats = init_module(head, key, 2, dim)
        keys = queue.init(jax.random.fold_in(key, 1), config.method.queue_size, head.features)
        return Variables(params, batch_stats, state={"encoder": encoder_params, "head": params, "queue": keys})

    def loss(variables: Variables, inputs: Inputs) -> Output:
        params, batch_stats, state = variables
        queries, updated_stats = apply_views(head, params, batch_stats, inputs.h)
        keys, _ = apply_views(head, state["head"], batch_stats, inputs.encode(state["encoder"]))
        keys = keys[1:]
        value = info_nce(
            jnp.broadcast_to(queries[0], keys.shape),
            keys,
            state["queue"].rows,
            temperature=config.method.temperature,
            axis_name=axis_name,
        )
        return Output(value, updated_stats, memory={"keys": keys.swapaxes(0, 1)})

    def update(state: PyTree, params: PyTree, memory: PyTree, clock: Clock) -> PyTree:
        del clock
        target = {"encoder": state["encoder"], "head": state["head"]}
        online = {"encoder": params["encoder"], "head": params["method"]}
        keys = queue.push(state["queue"], memory["keys"].reshape(-1, head.features))
        target = optax.incremental_update(online, target, step_size=1.0 - config.method.momentum)
        return target | {"queue": keys}

    return Method(init, loss, update)


# The first version's; MoCo v2 has the head (2048, 128) and temperature 0.2.
MOCO = Recipe(moco, defaults={"head": (128,), "temperature": 0.07, "queue_size": 65536, "momentum": 0.999}, min_views=2)
