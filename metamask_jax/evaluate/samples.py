"""What the network gets to see: examples of a training step beside their augmented views."""

import dataclasses
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from metamask_jax.augment import CustomViews, ViewSpec, example_keys, make_augmentation
from metamask_jax.data.loader import batches
from metamask_jax.data.sources import Source, open_configured
from metamask_jax.training.registry import Registry, resolve_registry


class Samples(NamedTuple):
    """Pictures and their views.

    Attributes:
      originals: uint8 [examples, height, width, 3].
      views: uint8 [views, examples, image_size, image_size, 3], in colours before normalisation and conversion to Lab.
    """

    originals: np.ndarray
    views: np.ndarray


def draw_samples(
    config: ConfigDict, *, step: int, examples: int, source: Source | None = None, registry: Registry | None = None
) -> Samples:
    """The first examples of a training step and the very views that it draws of them.

    Args:
      config: a validated configuration.
      step: of the training.
      examples: how many.
      source: the training pictures; None to open those of the configuration.
      registry: what the configuration's names stand for; None is ours and `config.plugins`.
    """
    data, seed = config.data, config.train.seed
    source = source or open_configured(data, split="pretrain")
    batch_size = max(examples, min(config.train.batch_size, len(source)))
    batch = next(batches(source, seed=seed, start_step=step, batch_size=batch_size, num_steps=1))
    specs = resolve_registry(registry, config).augmentations[data.augmentation](data.image_size)
    keys = example_keys(seed, step, batch.positions[:examples])
    if isinstance(specs, CustomViews):
        views = _to_unit_range(np.asarray(specs.full(jnp.asarray(batch.images[:examples]), keys)))
    else:
        views = np.asarray(_pixels(tuple(specs), data.image_size, data.views)(batch.images[:examples], keys))
    originals, _ = source.gather(np.asarray(batch.indices[:examples]))
    return Samples(originals, np.round(views * 255).astype(np.uint8))


@lru_cache(maxsize=8)  # of a process that draws the samples of many runs, each program is compiled once
def _pixels(specs: tuple[ViewSpec, ...], image_size: int, views: int) -> Callable[..., jax.Array]:
    """The augmentation without what makes its result no picture."""
    plain = [dataclasses.replace(spec, color_space="rgb", mean=(0.0,) * 3, std=(1.0,) * 3) for spec in specs]
    return jax.jit(make_augmentation(plain, image_size=image_size, views=views))


def _to_unit_range(views: np.ndarray) -> np.ndarray:
    """Views of somebody's own function, whose scale is not known, in [0, 1]."""
    low, high = float(views.min()), float(views.max())
    return (views - low) / max(high - low, 1e-12)
