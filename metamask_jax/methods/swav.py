"""SwAV (Caron et al. 2020): predict the other views' assignment to learned prototypes."""

import jax
import jax.numpy as jnp
from jax import lax
from ml_collections import ConfigDict

from metamask_jax.core.arrays import unit_norm
from metamask_jax.core.losses import swapped_prediction
from metamask_jax.core.types import PyTree
from metamask_jax.errors import ConfigError
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
from metamask_jax.models import ENCODERS, ProjectionHead, make_encoder, smallest_image


def swav(config: ConfigDict, axis_name: str | None) -> Method:
    """A projection head, prototypes, and past projections of each view that share the prototypes if wanted.

    Past projections are collected from epoch `bank_start` on, and used once there are `bank_size` of them. Before
    epoch `freeze_epochs` the prototypes get no gradient; weight decay may still shrink them, but only their directions
    count. Small views predict the codes of the full ones; redundancy reduction never sees them.
    """
    head = ProjectionHead(widths=config.method.head, last_norm=False, dtype=config.train.dtype, axis_name=axis_name)
    settings, views = config.method, config.data.views

    def init(key: jax.Array, encoder_params: PyTree, dim: int) -> Variables:
        del encoder_params
        params, batch_stats = init_module(head, key, 2, dim)
        prototypes = unit_norm(jax.random.normal(jax.random.fold_in(key, 1), (settings.prototypes, head.features)))
        state: PyTree = {}
        if settings.bank_size:
            empty = queue.init(key, settings.bank_size, head.features)
            banks = jax.tree.map(lambda leaf: jnp.stack([leaf] * views), empty)
            state = {"banks": banks, "collected": jnp.zeros((), jnp.int32)}
        return Variables({"head": params, "prototypes": prototypes}, batch_stats, state)

    def loss(variables: Variables, inputs: Inputs) -> Output:
        params, batch_stats, state = variables
        h = inputs.h if inputs.small is None else jnp.concatenate([inputs.h, inputs.small])
        z, batch_stats = apply_views(head, params["head"], batch_stats, h)
        prototypes = params["prototypes"]
        prototypes = jnp.where(inputs.clock.epoch < settings.freeze_epochs, lax.stop_gradient(prototypes), prototypes)
        value = swapped_prediction(
            z[:views],
            prototypes,
            temperature=settings.temperature,
            epsilon=settings.epsilon,
            iterations=settings.iterations,
            small=None if inputs.small is None else z[views:],
            past=state["banks"].rows if state else None,
            past_counts=state["collected"] >= settings.bank_size if state else False,
            axis_name=axis_name,
        )
        return Output(value, batch_stats, {"z": z[:views].swapaxes(0, 1)} if state else {})

    def update(state: PyTree, params: PyTree, memory: PyTree, clock: Clock) -> PyTree:
        del params
        if not state:
            return state
        z = memory["z"].swapaxes(0, 1)
        collected = jnp.minimum(state["collected"] + z.shape[1], settings.bank_size)
        updated = {"banks": jax.vmap(queue.push)(state["banks"], z), "collected": collected}
        return jax.tree.map(lambda new, old: jnp.where(clock.epoch >= settings.bank_start, new, old), updated, state)

    return Method(init, loss, update)


def check_small_views(config: ConfigDict) -> None:
    """Refuses small views that the encoder or the images cannot give."""
    data, encoder = config.data, config.encoder
    if not data.small_views:
        return
    if data.options.get("views"):
        raise ConfigError(
            f"config.data.small_views={data.small_views}; expected 0 with config.data.options.views, whose images "
            "are cropped before they can be cropped smaller"
        )
    smallest = 1
    if encoder.name in ENCODERS:  # one of a caller's own speaks up itself, when it is given views too small for it
        module = make_encoder(
            encoder.name,
            width=encoder.width,
            stem=encoder.stem,
            image_size=data.image_size,
            dtype=config.train.dtype,
            axis_name=None,
        )
        smallest = smallest_image(module)
    if not smallest <= data.small_size <= data.image_size:
        raise ConfigError(
            f"config.data.small_size={data.small_size}; expected {smallest} to {data.image_size} for "
            f"config.encoder.name={encoder.name!r}"
        )


# The paper has 3000 prototypes for ImageNet's thousand classes.
SWAV = Recipe(
    swav,
    defaults={
        "head": (2048, 128),
        "prototypes": 512,
        "freeze_epochs": 1.0,
        "temperature": 0.1,
        "epsilon": 0.05,
        "iterations": 3,
        "bank_size": 0,
        "bank_start": 15.0,
    },
    min_views=2,
    multi_crop=True,
    check=check_small_views,
)
