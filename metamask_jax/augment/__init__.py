"""Augmentation on the device: uint8 images in, normalised float32 views out, a pure function of explicit keys.

What torchvision and Pillow do, with the same distributions, but in float32 throughout: nothing is rounded to whole
grey levels between the steps. A view's random draws (`draws`) are apart from its pixel operations (`ops`).

Example:
  >>> import jax, jax.numpy as jnp
  >>> augment = jax.jit(make_augmentation("simclr", image_size=32, views=2))
  >>> images = jnp.zeros((4, 32, 32, 3), jnp.uint8)
  >>> augment(images, example_keys(0, 0, jnp.arange(4))).shape
  (2, 4, 32, 32, 3)
"""

from metamask_jax.augment.draws import Draws, sample_draws
from metamask_jax.augment.multi_crop import make_multi_crop
from metamask_jax.augment.pipeline import example_keys, make_augmentation, render_view
from metamask_jax.augment.presets import (
    PRESETS,
    Augmentation,
    CenterCrop,
    CustomViews,
    Preset,
    RandomResizedCrop,
    ViewSpec,
    color_space,
)

__all__ = [
    "PRESETS",
    "Augmentation",
    "CenterCrop",
    "CustomViews",
    "Draws",
    "Preset",
    "RandomResizedCrop",
    "ViewSpec",
    "color_space",
    "example_keys",
    "make_augmentation",
    "make_multi_crop",
    "render_view",
    "sample_draws",
]
