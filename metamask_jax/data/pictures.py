"""Encoded pictures to uint8 arrays, on the host.

Pixels are those of Pillow, to the last bit. What gives the same sooner does the work: simplejpeg decodes, a native
kernel resizes. Each is compared with Pillow before its first use, and left alone where the Pillow of this machine gives
anything else.
"""

import io
from functools import cache
from typing import NamedTuple

import numpy as np

from metamask_jax.errors import DataError, one_line

Box = tuple[float, float, float, float]  # left, upper, right and lower edge in pixels

_MARGIN = 3  # resized pixels beyond a crop that its own can depend on: a bicubic filter ends after two
_TRIES = 10  # a random crop that does not fit is drawn again this often
_JPEG = b"\xff\xd8\xff"


def decode(encoded: bytes, what: str) -> np.ndarray:
    """Returns a picture's pixels in RGB, uint8 [height, width, 3], whatever its mode.

    Args:
      encoded: bytes of a PNG, a JPEG or any other file that Pillow reads.
      what: what to call the picture in an error.
    """
    if encoded.startswith(_JPEG) and _decodes_as_pillow() and (pixels := _decode_jpeg(encoded)) is not None:
        return pixels
    try:
        return _decode_by_pillow(encoded)
    except Exception as e:  # Pillow raises OSError, SyntaxError, ValueError and more, one for each kind of damage
        raise DataError(f"{what} is not a readable picture ({reason(e)})") from e


def reason(error: Exception) -> str:
    """Why Pillow could not read a picture, without the address of what it was given."""
    from PIL import UnidentifiedImageError

    return "its format is not known" if isinstance(error, UnidentifiedImageError) else one_line(error)


def _decode_by_pillow(encoded: bytes) -> np.ndarray:
    from PIL import Image

    with Image.open(io.BytesIO(encoded)) as picture:
        return np.asarray(picture if picture.mode == "RGB" else picture.convert("RGB"))


def _decode_jpeg(encoded: bytes) -> np.ndarray | None:
    """The pixels of a JPEG, or None where Pillow may see others or knows more: damaged files, printers' inks."""
    import simplejpeg

    try:
        _, _, colours, _ = simplejpeg.decode_jpeg_header(encoded)
        return simplejpeg.decode_jpeg(encoded, "RGB", strict=True) if colours in ("Gray", "YCbCr", "RGB") else None
    except ValueError:
        return None


@cache
def _decodes_as_pillow() -> bool:
    """Whether simplejpeg gives Pillow's pixels: each brings a decoder of its own."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(_noise(41, 67)).save(file, "jpeg")
    ours = _decode_jpeg(file.getvalue())
    return ours is not None and np.array_equal(ours, _decode_by_pillow(file.getvalue()))


def resize(pixels: np.ndarray, box: Box, size: tuple[int, int], interpolation: str) -> np.ndarray:
    """Returns a box of a picture resized and anti-aliased, uint8 [height, width, 3].

    Args:
      pixels: uint8 [height of the picture, width of the picture, 3].
      box: within the picture.
      size: width and height of the result.
      interpolation: `bilinear` or `bicubic`.
    """
    from metamask_jax.kernels.switch import has_native

    if has_native() and _resamples_as_pillow():
        from metamask_jax.kernels.native.resample import resample

        return resample(pixels, box, size, interpolation)
    return _resize_by_pillow(pixels, box, size, interpolation)


def _resize_by_pillow(pixels: np.ndarray, box: Box, size: tuple[int, int], interpolation: str) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling[interpolation.upper()], box=box))


@cache
def _resamples_as_pillow() -> bool:
    """Whether the native kernel gives Pillow's pixels: Pillow 13 changed the order in which it resizes tall ones."""
    from metamask_jax.kernels.native.resample import resample

    probes = [(_noise(*size), (1.3, 0.6, size[1] - 2.5, size[0] - 0.2), (11, 11)) for size in ((23, 41), (41, 23))]
    return all(
        np.array_equal(resample(*probe, interpolation), _resize_by_pillow(*probe, interpolation))
        for probe in probes
        for interpolation in ("bilinear", "bicubic")
    )


def _noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def size_of(pixels: np.ndarray) -> tuple[int, int]:
    """Returns a picture's width and height."""
    return pixels.shape[1], pixels.shape[0]


def crop(pixels: np.ndarray, box: Box, image_size: int, interpolation: str = "bicubic") -> np.ndarray:
    """Returns a box of a picture resized to uint8 [image_size, image_size, 3], anti-aliased."""
    return resize(pixels, box, (image_size, image_size), interpolation)


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


def random_view(pixels: np.ndarray, view: RandomView, number: int) -> np.ndarray:
    """Returns a random part of the picture of this number, uint8 [image_size, image_size, 3]."""
    uniform = uniform_draws(view.seed, view.draw, number, views=1)[0]
    box = random_box(size_of(pixels), uniform, area=view.area, aspect=view.aspect)
    return crop(pixels, box, view.image_size, view.interpolation)


def centre_view(pixels: np.ndarray, view: CentreView) -> np.ndarray:
    """Returns the middle of a resized picture, uint8 [image_size, image_size, 3].

    The device's own centre crop (`augment.CenterCrop`) but for the rounding to bytes, without resizing what is far from
    the middle.
    """
    size, (height, width, _) = view.image_size, pixels.shape
    if (width, height) == (size, size):
        return pixels
    spans = []  # of both axes: the part that is resized, in pixels before and after, and where the crop is in it
    for length in (width, height):
        resized = view.shortest * length // min(width, height)
        skip = (resized - size) // 2
        first, last = max(0, skip - _MARGIN), min(resized, skip + size + _MARGIN)
        spans.append((first * length / resized, min(last * length / resized, length), last - first, skip - first))
    (left, right, columns, x), (upper, lower, rows, y) = spans
    return resize(pixels, (left, upper, right, lower), (columns, rows), view.interpolation)[y : y + size, x : x + size]


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
