"""What an augmentation is made of: the hyper-parameters of a view, and the published recipes by name."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax

from metamask_jax.augment.ops import FILTERS

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Middle and half of the range that the sRGB cube spans in Lab, as CMC normalises: every channel in [-1, 1].
LAB_MEAN, LAB_STD = (50.0, 6.025, -6.6895), (50.0, 92.208, 101.1675)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomResizedCrop:
    """A random part of the image, resized.

    Attributes:
      scale: range of the part's area, as a fraction of the image's; uniform.
      ratio: range of its width / height; log-uniform.
    """

    scale: tuple[float, float]
    ratio: tuple[float, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CenterCrop:
    """The middle of the image after resizing its shortest side; an image of the right size is left as it is.

    Attributes:
      shortest: length of the shortest side after resizing; at least the size of the crop.
    """

    shortest: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViewSpec:
    """Hyper-parameters of one view's pipeline, in the order of application; a probability of 0 leaves a step out.

    Attributes:
      crop: which part of the image is seen.
      interpolation: 'bilinear' or 'bicubic', both antialiased.
      flip_p: probability of mirroring left to right.
      jitter: strength of brightness, contrast, saturation and hue: factors are uniform in [max(0, 1 - s), 1 + s],
        the hue's shift in [-s, s] of a circle.
      jitter_p: probability of the colour jitter.
      grey_p: probability of greyscale.
      blur_p: probability of a Gaussian blur.
      blur_sigma: range of its standard deviation in pixels; uniform.
      blur_size: odd number of its taps.
      solarize_p: probability of inverting the bright values.
      solarize_threshold: the value in [0, 1] from which on they are inverted.
      color_space: 'rgb' or 'lab', what the output's channels are.
      mean: per channel, subtracted at the end.
      std: per channel, divided by at the end.
    """

    crop: RandomResizedCrop | CenterCrop
    interpolation: str
    flip_p: float
    jitter: tuple[float, float, float, float]
    jitter_p: float
    grey_p: float
    blur_p: float
    blur_sigma: tuple[float, float]
    blur_size: int
    solarize_p: float
    solarize_threshold: float
    color_space: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


Augmentation = Callable[[jax.Array, jax.Array], jax.Array]  # (images, keys) to views, as of `make_augmentation`


class CustomViews(NamedTuple):
    """An augmentation of one's own, for a registry.

    Attributes:
      full: images uint8 `[batch, height, width, 3]` and keys `[batch]` to views `[views, batch, ...]`.
      small: the same for small views (multi-crop), if the method has a use for them.
      color_space: 'rgb' or 'lab', what the views' channels are.
    """

    full: Augmentation
    small: Augmentation | None = None
    color_space: str = "rgb"


Preset = Callable[[int], tuple[ViewSpec, ...] | CustomViews]  # a function of the image size


def color_space(views: Sequence[ViewSpec] | CustomViews) -> str:
    """What the channels of an augmentation's views are: 'rgb' or 'lab'."""
    return views.color_space if isinstance(views, CustomViews) else views[0].color_space


def check_spec(spec: ViewSpec, *, image_size: int) -> None:
    """Raises a ValueError if a value of the spec is out of range for this image size."""
    for name in ("flip_p", "jitter_p", "grey_p", "blur_p", "solarize_p"):
        p = vars(spec)[name]
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"{name}={p}; expected a probability in [0, 1]")
    if spec.interpolation not in FILTERS:
        raise ValueError(f"interpolation={spec.interpolation!r}; expected one of {', '.join(map(repr, FILTERS))}")
    if spec.color_space not in ("rgb", "lab"):
        raise ValueError(f"color_space={spec.color_space!r}; expected 'rgb' or 'lab'")
    # The mirrored border of the blur is half its taps wide and must fit into the image.
    if spec.blur_p > 0.0 and (spec.blur_size % 2 == 0 or spec.blur_size // 2 >= image_size):
        raise ValueError(f"blur_size={spec.blur_size}; expected an odd number below {2 * image_size}")
    if isinstance(spec.crop, CenterCrop) and spec.crop.shortest < image_size:
        raise ValueError(f"crop.shortest={spec.crop.shortest}; expected at least image_size={image_size}")


def _plain(image_size: int) -> ViewSpec:
    """Crop 0.08-1 and flip: what every recipe starts from."""
    return ViewSpec(
        crop=RandomResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)),
        interpolation="bilinear",
        flip_p=0.5,
        jitter=(0.0, 0.0, 0.0, 0.0),
        jitter_p=0.0,
        grey_p=0.0,
        blur_p=0.0,
        blur_sigma=(0.1, 2.0),
        blur_size=(image_size // 10) | 1,  # a tenth of the image: 7, 9 and 23 taps at 64, 96 and 224 pixels
        solarize_p=0.0,
        solarize_threshold=0.5,
        color_space="rgb",
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )


def _blurs(image_size: int) -> bool:
    """SimCLR does not blur CIFAR; at its size no preset here does."""
    return image_size > 32


def _simclr(image_size: int) -> tuple[ViewSpec, ...]:
    strength = 1.0 if image_size > 32 else 0.5
    return (
        dataclasses.replace(
            _plain(image_size),
            jitter=(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength),
            jitter_p=0.8,
            grey_p=0.2,
            blur_p=0.5 if _blurs(image_size) else 0.0,
        ),
    )


def _byol(image_size: int) -> tuple[ViewSpec, ...]:
    first = dataclasses.replace(
        _plain(image_size),
        interpolation="bicubic",
        jitter=(0.4, 0.4, 0.2, 0.1),
        jitter_p=0.8,
        grey_p=0.2,
        blur_p=1.0 if _blurs(image_size) else 0.0,
    )
    return first, dataclasses.replace(first, blur_p=0.1 if _blurs(image_size) else 0.0, solarize_p=0.2)


def _cmc(image_size: int) -> tuple[ViewSpec, ...]:
    crop = RandomResizedCrop(scale=(0.2, 1.0), ratio=(3 / 4, 4 / 3))
    return (dataclasses.replace(_plain(image_size), crop=crop, color_space="lab", mean=LAB_MEAN, std=LAB_STD),)


def _shapes(image_size: int) -> tuple[ViewSpec, ...]:
    # Small crops would lose the one shape of a picture, and what tells the classes apart is not its colour.
    return (
        dataclasses.replace(
            _plain(image_size),
            crop=RandomResizedCrop(scale=(0.25, 1.0), ratio=(3 / 4, 4 / 3)),
            jitter=(0.4, 0.4, 0.4, 0.5),
            jitter_p=1.0,
            grey_p=0.3,
        ),
    )


def _shapes_lab(image_size: int) -> tuple[ViewSpec, ...]:
    # Grey pictures would leave nothing in the two channels of colour.
    (shapes,) = _shapes(image_size)
    return (dataclasses.replace(shapes, grey_p=0.0, color_space="lab", mean=LAB_MEAN, std=LAB_STD),)


def _eval(image_size: int) -> tuple[ViewSpec, ...]:
    # ImageNet's 256 for 224; smaller pictures are too small to throw a border away.
    shortest = round(image_size * 256 / 224) if image_size >= 224 else image_size
    return (dataclasses.replace(_plain(image_size), crop=CenterCrop(shortest=shortest), flip_p=0.0),)


def _eval_lab(image_size: int) -> tuple[ViewSpec, ...]:
    return tuple(dataclasses.replace(spec, color_space="lab", mean=LAB_MEAN, std=LAB_STD) for spec in _eval(image_size))


PRESETS: dict[str, Callable[[int], tuple[ViewSpec, ...]]] = {
    "simclr": _simclr,
    "barlow": _byol,  # Barlow Twins took BYOL's asymmetric pair unchanged
    "byol": _byol,
    "cmc": _cmc,
    "shapes": _shapes,  # ours, for confounded_shapes
    "shapes_lab": _shapes_lab,
    "eval": _eval,
    "eval_lab": _eval_lab,
}
"""Recipes by name: a function of the image size to one `ViewSpec` per view, repeated in turn when there are more views.

| preset   | 32 pixels                                          | more                                             |
|----------|----------------------------------------------------|--------------------------------------------------|
| `simclr` | jitter (0.4, 0.4, 0.4, 0.1) p 0.8, grey 0.2        | jitter (0.8, 0.8, 0.8, 0.2), blur 0.5            |
| `byol`   | jitter (0.4, 0.4, 0.2, 0.1) p 0.8, grey 0.2;       | blur 1.0 in the first and 0.1 in the second view |
| `barlow` | bicubic; solarize 0.2 in the second view           |                                                  |
| `cmc`    | crop 0.2-1, flip, Lab; no jitter: colour is a view | the same                                         |
| `shapes` | crop 0.25-1, jitter (0.4, 0.4, 0.4, 0.5) p 1, grey | the same                                         |
|          | 0.3: any hue, for sets where colour is no class;   |                                                  |
|          | `shapes_lab` without grey, in Lab                  |                                                  |
| `eval`   | nothing random: resize the shortest side, centre   | from 224 pixels on, resize to 8/7 of the size    |
|          | crop; `eval_lab` for encoders trained with `cmc`   |                                                  |
"""
