"""Encoded pictures to uint8 arrays, on the host."""

import io
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from metamask_jax.errors import DataError, one_line

if TYPE_CHECKING:  # Pillow is imported where a picture is decoded: a cached set needs none
    from PIL import Image

Box = tuple[float, float, float, float]  # left, upper, right and lower edge in pixels

_MARGIN = 3  # resized pixels beyond a crop that its own can depend on: a bicubic filter ends after two
_TRIES = 10  # a random crop that does not fit is drawn again this often


def decode(encoded: bytes, what: str) -> "Image.Image":
    """Returns a picture in RGB, whatever its mode.

    Args:
      encoded: bytes of a PNG, a JPEG or any other file that Pillow reads.
      what: what to call the picture in an error.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(encoded)) as picture:
            return picture.convert("RGB")
    except Exception as e:  # Pillow raises OSError, SyntaxError, ValueError and more, one for each kind of damage
        raise DataError(f"{what} is not a readable picture ({reason(e)})") from e


def reason(error: Exception) -> str:
    """Why Pillow could not read a picture, without the address of what it was given."""
    from PIL import UnidentifiedImageError

    return "its format is not known" if isinstance(error, UnidentifiedImageError) else one_line(error)


def crop(picture: "Image.Image", box: Box, image_size: int, interpolation: str = "bicubic") -> np.ndarray:
    """Returns a box of a picture resized to uint8 [image_size, image_size, 3], anti-aliased."""
    from PIL import Image

    return np.asarray(picture.resize((image_size, image_size), Image.Resampling[interpolation.upper()], box=box))


class CentreView(NamedTuple):
    """The middle of a picture after resizing its shortest side; a picture of the right size is left as it is.

    Attributes:
      image_size: height and width of what comes out.
      shortest: length of the shortest side after resizing.
      interpolation: `bilinear` or `bicubic`, antialiased.
    """

    image_size: int
    shortest: int
    interpolation: str


class RandomView(NamedTuple):
    """A random part of a picture, resized: a function of the seed, the draw and the picture's number alone.

    Attributes:
      image_size: height and width of what comes out.
      area: least and greatest share of the picture's area.
      aspect: least and greatest width / height.
      interpolation: `bilinear` or `bicubic`, antialiased.
      seed: of the draws.
      draw: which of them, such as the epoch.
    """

    image_size: int
    area: tuple[float, float]
    aspect: tuple[float, float]
    interpolation: str
    seed: int
    draw: int


def random_view(picture: "Image.Image", view: RandomView, number: int) -> np.ndarray:
    """Returns a random part of the picture of this number, uint8 [image_size, image_size, 3]."""
    uniform = uniform_draws(view.seed, view.draw, number, views=1)[0]
    box = random_box(picture.size, uniform, area=view.area, aspect=view.aspect)
    return crop(picture, box, view.image_size, view.interpolation)


def centre_view(picture: "Image.Image", view: CentreView) -> np.ndarray:
    """Returns the middle of a resized picture, uint8 [image_size, image_size, 3].

    The device's own centre crop (`augment.CenterCrop`) but for the rounding to bytes, without resizing what is far from
    the middle.
    """
    from PIL import Image

    size, least = view.image_size, min(picture.size)
    if picture.size == (size, size):
        return np.asarray(picture)
    spans = []  # of both axes: the part that is resized, in pixels before and after, and where the crop is in it
    for length in picture.size:
        resized = view.shortest * length // least
        skip = (resized - size) // 2
        first, last = max(0, skip - _MARGIN), min(resized, skip + size + _MARGIN)
        spans.append((first * length / resized, min(last * length / resized, length), last - first, skip - first))
    (left, right, width, x), (upper, lower, height, y) = spans
    method = Image.Resampling[view.interpolation.upper()]
    resized_part = picture.resize((width, height), method, box=(left, upper, right, lower))
    return np.asarray(resized_part)[y : y + size, x : x + size]


def centre_box(size: tuple[int, int], share: float) -> Box:
    """Returns the centred square of a picture of a width and height, its side a share of the shorter.

    Example:
      >>> centre_box((40, 20), share=0.5)
      (15.0, 5.0, 25.0, 15.0)
    """
    width, height = size
    side = min(size) * share
    left, upper = (width - side) / 2, (height - side) / 2
    return left, upper, left + side, upper + side


def random_box(
    size: tuple[int, int], uniform: np.ndarray, *, area: tuple[float, float], aspect: tuple[float, float]
) -> Box:
    """Returns a box with a random share of the picture's area and a random aspect ratio, at a random place.

    Args:
      size: width and height of the picture.
      uniform: numbers in [0, 1), [_TRIES, 4]; the first row whose box fits is used.
      area: least and greatest share of the area.
      aspect: least and greatest width / height, drawn evenly on a logarithmic scale.

    Returns:
      The box, or if none of the draws fits the largest centred square.
    """
    width, height = size
    shares = area[0] + (area[1] - area[0]) * uniform[:, 0]
    ratios = aspect[0] * (aspect[1] / aspect[0]) ** uniform[:, 1]
    widths, heights = np.sqrt(width * height * shares * ratios), np.sqrt(width * height * shares / ratios)
    fits = np.flatnonzero((widths <= width) & (heights <= height))
    if not len(fits):
        return centre_box(size, share=1.0)
    w, h, (u, v) = widths[fits[0]], heights[fits[0]], uniform[fits[0], 2:]
    left, upper = float(u * (width - w)), float(v * (height - h))
    # Rounding must not push the far edge out of the picture: Pillow refuses such a box.
    return left, upper, min(left + float(w), float(width)), min(upper + float(h), float(height))


def uniform_draws(seed: int, step: int, position: int, views: int) -> np.ndarray:
    """Returns the numbers behind the crops of one example, float64 [views, _TRIES, 4] in [0, 1)."""
    bits = np.random.Philox(np.random.SeedSequence((seed, step, position))).random_raw(views * _TRIES * 4)
    return ((bits >> np.uint64(11)) * 2.0**-53).reshape(views, _TRIES, 4)
