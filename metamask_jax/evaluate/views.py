"""What an encoder is shown in evaluation, and which part of that is done on the host.

Pictures of many sizes are resized and cropped on the host, where each has its own size; everything else, and all of
pictures of one size, is done on the device.
"""

import dataclasses

from ml_collections import ConfigDict

from metamask_jax.augment import PRESETS, Augmentation, CenterCrop, RandomResizedCrop, ViewSpec, color_space
from metamask_jax.data.pictures import CentreView, RandomView
from metamask_jax.data.sources import Source
from metamask_jax.data.streams import StreamSource
from metamask_jax.training.registry import Registry, resolve_registry


def eval_view(config: ConfigDict, registry: Registry | None = None) -> ViewSpec:
    """How an encoder of this configuration sees pictures: resized, cropped in the middle, normalised.

    An encoder trained on Lab channels is shown Lab channels. This is the one definition for features, probes and
    exported files.
    """
    registry = resolve_registry(registry, config)
    size = config.data.image_size
    trained_on = color_space(registry.augmentations[config.data.augmentation](size))
    return PRESETS["eval_lab" if trained_on == "lab" else "eval"](size)[0]


def random_view(config: ConfigDict, registry: Registry | None = None, *, smallest: float) -> ViewSpec:
    """The view of evaluation, but with a random crop of at least a part `smallest` of the area, and a random flip."""
    crop = RandomResizedCrop(scale=(smallest, 1.0), ratio=(3 / 4, 4 / 3))
    return dataclasses.replace(eval_view(config, registry), crop=crop, flip_p=0.5)


def seen_on_host(
    source: Source, view: ViewSpec | Augmentation, *, image_size: int, seed: int = 0, draw: int = 0
) -> Source:
    """A source of pictures of many sizes that gives them cropped as the view says; any other source as it is.

    Args:
      source: the pictures.
      view: what the encoder is shown; a function of images and keys gets the pictures as the source gives them.
      image_size: height and width of what comes out.
      seed: of random crops, which are a function of the seed, the draw and the picture alone.
      draw: which random crops.
    """
    if not (isinstance(source, StreamSource) and isinstance(view, ViewSpec)):
        return source
    if isinstance(view.crop, CenterCrop):
        middle = CentreView(image_size, view.crop.shortest, view.interpolation)
        return dataclasses.replace(source, view=middle)
    crop = view.crop
    part = RandomView(image_size, crop.scale, crop.ratio, view.interpolation, seed, draw)
    return dataclasses.replace(source, view=part)


def left_to_device(view: ViewSpec, *, image_size: int) -> ViewSpec:
    """What of a view is still to be done to pictures that `seen_on_host` has cropped."""
    return dataclasses.replace(view, crop=CenterCrop(shortest=image_size))  # what has the right size is left as it is
