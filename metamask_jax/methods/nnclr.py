"""NNCLR (Dwibedi et al. 2021): the positive is the projection's nearest neighbour among past ones."""

import itertools

import jax
import jax.numpy as jnp
from jax import lax
from ml_collections import ConfigDict

from metamask_jax.core.arrays import matmul, unit_norm
from metamask_jax.core.losses import info_nce_in_batch
from metamask_jax.core.types import PyTree
from metamask_jax.methods import queue
from metamask_jax.methods.base import Clock, Inputs, Method, Output, Recipe, Variables
from metamask_jax.methods.queue import Queue
from metamask_jax.methods.siamese import Siamese


def nnclr(config: ConfigDict, axis_name: str | None) -> Method:
    """Neighbours of one view against predictions of another; first views enter the support set."""
    heads = Siamese.build(config, axis_name, last_norm=True)

    def init(key: jax.Array, encoder_params: PyTree, dim: int) -> Variables:
        del encoder_params
        support = queue.init(jax.random.fold_in(key, 1), config.method.queue_size, heads.head.features)
        return Variables(*heads.init(key, dim), state={"support": support})

    def loss(variables: Variables, inputs: Inputs) -> Output:
        z, p, batch_stats = heads.apply(variables.params, variables.batch_stats, inputs.h)
        neighbors = nearest(variables.state["support"], z)
        pairs = [
            info_nce_in_batch(neighbors[i], p[j], temperature=config.method.temperature, axis_name=axis_name)
            for i, j in itertools.permutations(range(len(z)), 2)
        ]
        return Output(jnp.mean(jnp.stack(pairs)), batch_stats, memory={"z": z[0]})

    def update(state: PyTree, params: PyTree, memory: PyTree, clock: Clock) -> PyTree:
        del params, clock
        return {"support": queue.push(state["support"], memory["z"])}

    return Method(init, loss, update)


def nearest(support: Queue, z: jax.Array) -> jax.Array:
    """The row of the support set with the greatest cosine to each projection [..., dim]; a constant to derivatives."""
    rows, z = lax.stop_gradient((support.rows, z))
    return rows[jnp.argmax(matmul(unit_norm(z), rows.T), axis=-1)]


NNCLR = Recipe(
    nnclr,
    defaults={"head": (2048, 2048, 256), "predictor": 4096, "temperature": 0.1, "queue_size": 98304},
    min_views=2,
)
