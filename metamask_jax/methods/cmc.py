"""CMC (Tian et al. 2019): tell which colours belong to a picture's lightness, and the other way round."""

import jax
import jax.numpy as jnp
from jax import lax
from ml_collections import ConfigDict

from metamask_jax.core.arrays import batch_mean, unit_norm
from metamask_jax.core.losses import memory_logits, noise_contrastive
from metamask_jax.core.types import PyTree
from metamask_jax.errors import ConfigError
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
from metamask_jax.models import ProjectionHead, make_split_encoder

_HALVES = ("lightness", "color")  # of the features, in this order; so are all arrays [2, ...] here


def cmc(config: ConfigDict, axis_name: str | None) -> Method:
    """One head for each half of the features; memories of both halves' projections of every training image.

    A projection of one half is contrasted with memories of the other, the image's own and others drawn anew in each
    step, the same for the whole batch: a product of matrices takes the place of the reference program's draws for
    every single image. The normalisation constants are estimated from the first batch and stay as they are.

    CMC's two views are the halves of one augmented image. With MetaMask there must be two such images, because
    redundancy reduction compares whole representations [lightness, color]; then CMC's loss is the mean over them, and
    their mean enters the memories.
    """
    # CMC's own heads end without BatchNorm; ours ends with one, after two short runs that compared the two.
    head = ProjectionHead(widths=config.method.head, last_norm=True, dtype=config.train.dtype, axis_name=axis_name)
    size, settings = config.data.size, config.method
    if size is None:
        raise ConfigError("config.data.size=None; expected the number of training images: 'cmc' remembers each of them")

    def init(key: jax.Array, encoder_params: PyTree, dim: int) -> Variables:
        del encoder_params
        keys = jax.random.split(key, 4)
        heads = [init_module(head, half_key, 2, dim // 2) for half_key in keys[:2]]
        params, batch_stats = (dict(zip(_HALVES, part, strict=True)) for part in zip(*heads, strict=True))
        state = {
            "memories": unit_norm(jax.random.normal(keys[2], (2, size, head.features))),
            "normalizers": jnp.zeros(2),  # until the first batch
            "key": jax.random.key_data(keys[3]),
        }
        return Variables(params, batch_stats, state)

    def loss(variables: Variables, inputs: Inputs) -> Output:
        params, batch_stats, state = variables
        z, batch_stats = _project(head, params, batch_stats, inputs.h)
        drawn = _draw(state["key"], inputs.clock.step, size=size, count=min(settings.negatives, size))
        others = state["memories"][::-1]
        logits = jnp.stack(
            [
                memory_logits(z[i], others[i, inputs.indices], others[i, drawn], temperature=settings.temperature)
                for i in range(2)
            ]
        )
        estimates = size * jnp.mean(jnp.exp(logits), axis=(1, 3))
        normalizers = lax.stop_gradient(_normalizers(state["normalizers"], estimates, axis_name))
        losses = [
            noise_contrastive(logits[i], normalizer=normalizers[i], population=size, axis_name=axis_name)
            for i in range(2)
        ]
        memory = {
            "z": jnp.mean(unit_norm(z), axis=1).swapaxes(0, 1),
            "estimates": estimates.T,
            "indices": inputs.indices,
        }
        return Output(losses[0] + losses[1], batch_stats, memory)

    def update(state: PyTree, params: PyTree, memory: PyTree, clock: Clock) -> PyTree:
        del params, clock
        memories, places = state["memories"], memory["indices"]
        z = memory["z"].swapaxes(0, 1).astype(memories.dtype)
        moved = settings.momentum * memories[:, places] + (1.0 - settings.momentum) * z
        return state | {
            "memories": memories.at[:, places].set(unit_norm(moved)),
            "normalizers": _normalizers(state["normalizers"], memory["estimates"].T, None),
        }

    return Method(init, loss, update)


def _project(head: ProjectionHead, params: PyTree, batch_stats: PyTree, h: jax.Array) -> tuple[jax.Array, PyTree]:
    """Projections [2, views, batch, dim] of the halves of features [views, batch, dim], and the statistics after."""
    projected = [
        apply_views(head, params[half], batch_stats[half], features)
        for half, features in zip(_HALVES, jnp.split(h, 2, axis=-1), strict=True)
    ]
    z, stats = zip(*projected, strict=True)
    return jnp.stack(z), dict(zip(_HALVES, stats, strict=True))


def _draw(key: jax.Array, step: jax.Array, *, size: int, count: int) -> jax.Array:
    """The images int32 [count] whose memories all of a step's images are contrasted with; a function of the step."""
    key = jax.random.fold_in(jax.random.wrap_key_data(key), step)
    return jax.random.randint(key, (count,), 0, size, jnp.int32)


def _normalizers(fixed: jax.Array, estimates: jax.Array, axis_name: str | None) -> jax.Array:
    """The constants [2] as they are, or while they are zero as the batch's estimates [2, batch] have them."""
    return jnp.where(fixed > 0, fixed, batch_mean(estimates, axis_name, axis=1))


CMC = Recipe(
    cmc,
    defaults={"head": (128,), "temperature": 0.07, "momentum": 0.5, "negatives": 4096},
    min_views=1,
    encoder=make_split_encoder,
    color_space="lab",
)
