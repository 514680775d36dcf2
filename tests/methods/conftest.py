"""A step of every method on views without random pixels, compiled once for all the tests that run it."""

import functools

import jax
import jax.numpy as jnp
import pytest

from metamask_jax.methods import METHODS
from metamask_jax.training import step as module
from tests.tiny import doubled_start, step_on, tiny_batch, tiny_config

BATCH = tiny_batch()
# A plain step of the mask, at rate one, shows the meta-gradient itself.
PLAIN = {
    "meta.trial": "gradient",
    "meta.learning_rate": "0.25",
    "meta.head_learning_rate": "0.25",
    "mask.momentum": "0",
    "mask.weight_decay": "0",
    "mask.schedule": "constant",
}
NEEDS = {
    "cmc": {"data.augmentation": "cmc", "data.size": "24"},  # its colour space, and a memory of each image
    # Prototypes that learn at once, and a bank that is full after a step.
    "swav": {
        "method.freeze_epochs": "0",
        "method.prototypes": "10",
        "method.bank_start": "0",
        "method.bank_size": "16",
    },
}


def plain_views(images, keys):
    """In float64: float32 images would differ in the last digit between two compiled programs."""
    x = images.astype(jnp.float64) / 255
    return jnp.stack([x, 1.2 * jnp.roll(x, 5, axis=2) ** 2])


def method_config(name, **overrides):
    small = {
        "method.name": name,
        "method.predictor": "7",
        "method.queue_size": "40",
        "method.momentum": "0.8",
        "method.bank_size": "40",
        "method.num_classes": "3",
        "loss.drr": "false",  # no part of any method
    } | NEEDS.get(name, {})
    return tiny_config(PLAIN | small | {key.replace("__", "."): str(value) for key, value in overrides.items()})


@functools.cache
def start(name):
    """The configuration of a method and its first state, in float64; a head of one layer is sooner compiled."""
    return doubled_start(method_config(name, method__head=(6,)))


@functools.cache
def compiled(name, devices):
    """The configuration, its first state and its step `(state, batch) -> (state, metrics)`, in float64."""
    with jax.enable_x64(True), pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "make_augmentation", lambda *args, **kwargs: plain_views)
        config, state = start(name)
        return config, state, step_on(devices, config)


every_method = pytest.mark.parametrize("name", METHODS)
