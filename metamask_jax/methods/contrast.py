"""What SimCLR, DCL and HCL share: a projection head and, if wanted, a memory bank of past projections."""

from collections.abc import Callable

import jax
from ml_collections import ConfigDict

from metamask_jax.core.types import PyTree
from metamask_jax.methods import queue
from metamask_jax.methods.base import Clock, Inputs, Method, Output, Variables, apply_views, init_module
from metamask_jax.models import ProjectionHead

ContrastiveLoss = Callable[[jax.Array, jax.Array | None], jax.Array]


def contrastive(config: ConfigDict, axis_name: str | None, contrast: ContrastiveLoss) -> Method:
    """Builds a method from `contrast(z, bank)`, the loss of projections [views, batch, dim] and further negatives.

    The bank holds the last `config.method.bank_size` projections, all views of an image one after the other; it starts
    with random directions.
    """
    head = ProjectionHead(widths=config.method.head, last_norm=True, dtype=config.train.dtype, axis_name=axis_name)

    def init(key: jax.Array, encoder_params: PyTree, dim: int) -> Variables:
        del encoder_params
        size = config.method.bank_size
        state = {"bank": queue.init(jax.random.fold_in(key, 1), size, head.features)} if size else {}
        return Variables(*init_module(head, key, 2, dim), state)

    def loss(variables: Variables, inputs: Inputs) -> Output:
        params, batch_stats, state = variables
        z, batch_stats = apply_views(head, params, batch_stats, inputs.h)
        bank = state["bank"].rows if state else None
        return Output(contrast(z, bank), batch_stats, {"z": z.swapaxes(0, 1)} if state else {})

    def update(state: PyTree, params: PyTree, memory: PyTree, clock: Clock) -> PyTree:
        del params, clock
        return {"bank": queue.push(state["bank"], memory["z"].reshape(-1, head.features))} if state else state

    return Method(init, loss, update)
