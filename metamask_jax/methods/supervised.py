"""Supervised training, the upper bound of the tables: a linear classifier on every view."""

import jax
from ml_collections import ConfigDict

from metamask_jax.core.losses import cross_entropy
from metamask_jax.core.types import PyTree
from metamask_jax.errors import ConfigError
from metamask_jax.methods.base import (
    Inputs,
    Method,
    Output,
    Recipe,
    Variables,
    apply_views,
    init_module,
    keep_state,
)
from metamask_jax.models import ProjectionHead

_CLASSES = {
    "confounded_shapes": 10,
    "confounded_cifar10": 10,
    "cifar10": 10,
    "cifar100": 100,
    "stl10": 10,
    "tiny_imagenet": 200,
    "imagenet2012": 1000,
}


def supervised(config: ConfigDict, axis_name: str | None) -> Method:
    """Cross-entropy; images without a label do not count."""
    classes = config.method.num_classes or _CLASSES[config.data.name]
    head = ProjectionHead(widths=(classes,), last_norm=False, dtype=config.train.dtype, axis_name=axis_name)

    def init(key: jax.Array, encoder_params: PyTree, dim: int) -> Variables:
        del encoder_params
        return Variables(*init_module(head, key, 2, dim), state={})

    def loss(variables: Variables, inputs: Inputs) -> Output:
        logits, batch_stats = apply_views(head, variables.params, variables.batch_stats, inputs.h)
        return Output(cross_entropy(logits, inputs.labels, axis_name=axis_name), batch_stats, memory={})

    return Method(init, loss, keep_state)


def check_classes(config: ConfigDict) -> None:
    """Refuses a dataset of which nobody says how many classes it has."""
    if config.method.num_classes is None and config.data.name not in _CLASSES:
        raise ConfigError(
            f"config.method.num_classes=None; expected the number of classes of config.data.name={config.data.name!r}"
        )


SUPERVISED = Recipe(supervised, defaults={}, min_views=1, check=check_classes)
