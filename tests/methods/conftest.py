"""A step of every method on views without random pixels, compiled once for all the tests that run it."""

import functools

import jax
import pytest

from metamask_jax.augment import CustomViews
from metamask_jax.methods import METHODS
from metamask_jax.training import registry
from tests.tiny import doubled_start, plain_views, register, step_on, tiny_batch, tiny_config

BATCH = tiny_batch()
# Tiny networks, and views without random pixels in either colour space.
REGISTRY = register(registry.REGISTRY).extended(
    augmentations={"plain_lab": lambda image_size: CustomViews(plain_views, color_space="lab")}
)
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


def method_config(name, registry=REGISTRY, **overrides):
    small = {
        "method.name": name,
        "method.predictor": "7",
        "method.queue_size": "40",
        "method.momentum": "0.8",
        "method.bank_size": "40",
        "method.num_classes": "3",
        "loss.drr": "false",  # no part of any method
    } | NEEDS.get(name, {})
    given = {key.replace("__", "."): str(value) for key, value in overrides.items()}
    return tiny_config(PLAIN | small | given, registry)


@functools.cache
def start(name):
    """The configuration of a method and its first state, in float64; a head of one layer is sooner compiled."""
    views = "plain_lab" if METHODS[name].color_space == "lab" else "plain"
    return doubled_start(method_config(name, method__head=(6,), data__augmentation=views), REGISTRY)


@functools.cache
def compiled(name, devices):
    """The configuration, its first state and its step `(state, batch) -> (state, metrics)`, in float64."""
    with jax.enable_x64(True):
        config, state = start(name)
        return config, state, step_on(devices, config, REGISTRY)


every_method = pytest.mark.parametrize("name", METHODS)
