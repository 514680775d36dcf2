"""Multi-crop (SwAV, Caron et al. 2020): beside the usual views, smaller ones that show a smaller part of the image."""

import dataclasses
from collections.abc import Sequence

import jax

from metamask_jax.augment.pipeline import make_augmentation
from metamask_jax.augment.presets import Augmentation, RandomResizedCrop, ViewSpec

_SMALLEST_AREA = 0.05  # of a small view, as a share of the image's
_STREAM = 0x736D616C  # sets the small views' draws apart from those of the others


def make_multi_crop(
    specs: Sequence[ViewSpec], *, image_size: int, views: int, small_size: int, small_views: int, split: float
) -> tuple[Augmentation, Augmentation]:
    """Builds the augmentations of the usual views and of the small ones.

    Colours are changed alike in both.

    Args:
      specs: one `ViewSpec` per view, repeated in turn; their crops are replaced.
      image_size: side of the usual views in pixels.
      views: number of the usual views.
      small_size: side of the small views.
      small_views: number of the small views.
      split: the usual views show at least this share of the image, the small ones at most.
    """
    small = make_augmentation(
        _cropped(specs, small_size, (_SMALLEST_AREA, split)), image_size=small_size, views=small_views
    )

    def augment_small(images: jax.Array, keys: jax.Array) -> jax.Array:
        return small(images, jax.vmap(jax.random.fold_in, (0, None))(keys, _STREAM))

    usual = _cropped(specs, image_size, (split, 1.0))
    return make_augmentation(usual, image_size=image_size, views=views), augment_small


def _cropped(specs: Sequence[ViewSpec], size: int, scale: tuple[float, float]) -> tuple[ViewSpec, ...]:
    """The same specs, but showing another part of the images at another size."""
    crop = RandomResizedCrop(scale=scale, ratio=(3 / 4, 4 / 3))
    return tuple(dataclasses.replace(spec, crop=crop, blur_size=(size // 10) | 1) for spec in specs)
