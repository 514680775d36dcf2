"""Pixel operations of the augmentations: an image and drawn parameters in, an image out.

Images here are planar, float32 `[3, height, width]` in [0, 1]: with whole rows contiguous the compiler vectorises
every operation. Nothing branches on a drawn parameter, so that all of it maps over a batch at full speed; instead each
operation has a neutral parameter (a factor of 1, a shift of 0, ...) that makes it the identity.
"""

import functools
import math
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)

# sRGB primaries to XYZ, divided by the D65 white point, so that white is (1, 1, 1).
_RGB_TO_XYZ = np.array(
    [[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]]
) / np.array([[0.95047], [1.0], [1.08883]])
_ROOT_TO_LAB = np.array([[0.0, 116.0, 0.0], [500.0, -500.0, 0.0], [0.0, 200.0, -200.0]])


def _triangle(x: jax.Array) -> jax.Array:
    return jnp.maximum(1.0 - jnp.abs(x), 0.0)


def _cubic(x: jax.Array) -> jax.Array:
    """Keys' cubic convolution kernel with a = -1/2."""
    x = jnp.abs(x)
    near = (1.5 * x - 2.5) * x * x + 1.0
    far = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return jnp.where(x < 1.0, near, jnp.where(x < 2.0, far, 0.0))


FILTERS = {"bilinear": (_triangle, 1), "bicubic": (_cubic, 2)}
"""Resampling filters by name, each with the distance at which it ends."""


class Taps(NamedTuple):
    """How each of the pixels of a resized line is mixed from pixels of the original.

    Attributes:
      indices: int32 `[taps, out]`.
      weights: float32 `[taps, out]`; sum to 1 over the taps.
    """

    indices: jax.Array
    weights: jax.Array


def resample_taps(start: jax.Array | int, extent: jax.Array | int, *, size: int, out: int, interpolation: str) -> Taps:
    """Cuts pixels `start : start + extent` out of a line and resizes them.

    One axis of a separable, antialiased resize as Pillow defines it: the filter widens when shrinking, and pixels
    outside the cut never contribute.

    Args:
      start: first pixel of the cut.
      extent: length of the cut in pixels.
      size: length of the line.
      out: length of the result.
      interpolation: a key of `FILTERS`.
    """
    kernel, support = FILTERS[interpolation]
    count = math.ceil(2 * support * max(size / out, 1))  # as many as the widest filter can reach
    scale = jnp.asarray(extent, jnp.float32) / out
    stretch = jnp.maximum(scale, 1.0)
    centers = start + (jnp.arange(out, dtype=jnp.float32) + 0.5) * scale
    pixels = jnp.ceil(centers - support * stretch - 0.5) + jnp.arange(count)[:, None]
    weights = kernel((pixels + 0.5 - centers) / stretch)
    weights = jnp.where((pixels >= start) & (pixels < start + extent), weights, 0.0)
    indices = jnp.clip(pixels, 0, size - 1).astype(jnp.int32)
    return Taps(indices, weights / weights.sum(axis=0))


def _fetch_rows(lines: jax.Array, taps: Taps) -> jax.Array:
    """Resizes `[size, n]` to float32 `[out, n]`, tap by tap.

    On a CPU, fetching whole rows is faster than a product with the almost empty matrix of weights.
    """

    def add(total: jax.Array, tap: Taps) -> tuple[jax.Array, None]:
        rows = lines.at[tap.indices].get(mode="promise_in_bounds")
        return total + tap.weights[:, None] * rows, None

    # A loop, so that no compiler computes the lines anew for every tap.
    total = jnp.zeros((taps.weights.shape[1], lines.shape[1]), jnp.float32)
    return jax.lax.scan(add, total, taps)[0]


def _multiply_rows(lines: jax.Array, taps: Taps) -> jax.Array:
    """The same by the matrix of weights `[out, size]`: accelerators multiply fast, and fetch slowly."""
    chosen = taps.indices[:, :, None] == jnp.arange(lines.shape[0])
    matrix = jnp.sum(jnp.where(chosen, taps.weights[:, :, None], 0.0), axis=0)
    # Anything less would round the pixels to bfloat16.
    return jnp.matmul(matrix, lines.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)


def _mix_rows(lines: jax.Array, taps: Taps) -> jax.Array:
    return jax.lax.platform_dependent(lines, taps, cpu=_fetch_rows, default=_multiply_rows)


def resample(image: jax.Array, rows: Taps, columns: Taps) -> jax.Array:
    """Resizes along both axes.

    Args:
      image: uint8 `[height, width, 3]`.
      rows: the result's rows, from `resample_taps`.
      columns: the result's columns.

    Returns:
      Planar image `[3, out, out]`; the overshoot of a cubic filter is clipped.
    """
    height, width, channels = image.shape
    lines = _mix_rows(jnp.asarray(image).reshape(height, width * channels), rows)
    out = lines.shape[0]
    # Columns become rows, so that these too are fetched whole.
    lines = lines.reshape(out, width, channels).transpose(1, 2, 0).reshape(width, channels * out)
    lines = _mix_rows(lines, columns)
    planes = lines.reshape(-1, channels, out).transpose(1, 2, 0)
    return jnp.clip(planes / 255.0, 0.0, 1.0)


def to_planes(image: jax.Array) -> jax.Array:
    """Turns uint8 `[height, width, 3]` into a planar image."""
    return image.transpose(2, 0, 1).astype(jnp.float32) / 255.0


def flip(image: jax.Array, apply: jax.Array) -> jax.Array:
    """Mirrors left to right where `apply` is true."""
    return jnp.where(apply, image[:, :, ::-1], image)


def greyscale(image: jax.Array) -> jax.Array:
    """Luma `[height, width]` of a planar image."""
    red, green, blue = image
    return 0.299 * red + 0.587 * green + 0.114 * blue  # ITU-R BT.601, as Pillow and torchvision


def _blend(image: jax.Array, other: jax.Array, factor: jax.Array) -> jax.Array:
    """`image` at factor 1, `other` at factor 0, and beyond: the one formula of three of the colour adjustments."""
    return jnp.clip(factor * image + (1.0 - factor) * other, 0.0, 1.0)


def adjust_saturation(image: jax.Array, factor: jax.Array) -> jax.Array:
    """Blends with the image's own greyscale; factor 0 is greyscale, 1 the identity."""
    return _blend(image, greyscale(image), factor)


def adjust_hue(image: jax.Array, shift: jax.Array) -> jax.Array:
    """Turns the hue of HSV by `shift` of a full circle."""
    red, green, blue = image
    value = jnp.maximum(jnp.maximum(red, green), blue)
    chroma = value - jnp.minimum(jnp.minimum(red, green), blue)
    inverse = 1.0 / jnp.where(chroma > 0.0, chroma, 1.0)
    sextant = jnp.where(
        value == red,
        (green - blue) * inverse,
        jnp.where(value == green, (blue - red) * inverse + 2.0, (red - green) * inverse + 4.0),
    )
    # Red, green and blue are full within one sextant of their own hue (0, 2, 4), and gone beyond two.
    distance = sextant + 6.0 * shift - jnp.array([0.0, 2.0, 4.0], image.dtype)[:, None, None]
    distance = jnp.abs(distance - 6.0 * jnp.round(distance / 6.0))
    return value - chroma * jnp.clip(distance - 1.0, 0.0, 1.0)


def color_jitter(image: jax.Array, factors: jax.Array, order: jax.Array) -> jax.Array:
    """Brightness, contrast, saturation and hue adjusted in a given order, clipped after each.

    Brightness, contrast and saturation are one blend, with black, the mean grey or the pixel's grey; only hue is of
    another kind. So the order needs no branches: three slots for the blends before the hue and three for those
    after, of which the unused ones blend with factor 1.

    Args:
      image: planar image `[3, height, width]`.
      factors: `[4]`, indexed by BRIGHTNESS, CONTRAST, SATURATION (neutral 1) and HUE (neutral 0).
      order: `[4]`, a permutation of the four.
    """
    slots, hue_slot = jnp.arange(4), jnp.argmax(order == HUE)
    before = jnp.where(slots < hue_slot, factors[order], 1.0)
    after = jnp.where(slots > hue_slot, factors[order], 1.0)

    def blend(image: jax.Array, slot: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        kind, factor = slot
        grey = greyscale(image)
        other = jnp.where(kind == SATURATION, grey, jnp.where(kind == CONTRAST, grey.mean(), 0.0))
        return _blend(image, other, factor), None

    image, _ = jax.lax.scan(blend, image, (order[:3], before[:3]))
    image = adjust_hue(image, factors[HUE])
    image, _ = jax.lax.scan(blend, image, (order[1:], after[1:]))
    return image


def gaussian_blur(image: jax.Array, sigma: jax.Array, *, size: int) -> jax.Array:
    """Convolves with a Gaussian of `size` (odd) taps, mirroring at the border without repeating the border pixel.

    A sigma so small that the neighbours' weights underflow is exactly the identity.
    """
    radius = size // 2
    taps = jnp.exp(-0.5 * (jnp.arange(-radius, radius + 1, dtype=image.dtype) / sigma) ** 2)
    taps = taps / taps.sum()
    for axis in (1, 2):
        width = [(radius, radius) if a == axis else (0, 0) for a in range(3)]
        # The barrier keeps the compiler from doing the padding anew for every tap.
        padded = jax.lax.optimization_barrier(jnp.pad(image, width, mode="reflect"))
        length = image.shape[axis]
        shifted = (jax.lax.slice_in_dim(padded, i, i + length, axis=axis) for i in range(size))
        image = functools.reduce(operator.add, (tap * part for tap, part in zip(taps, shifted, strict=True)))
    return image


def solarize(image: jax.Array, threshold: jax.Array) -> jax.Array:
    """Inverts the values from `threshold` on; a threshold above 1 is the identity."""
    return jnp.where(image < threshold, image, 1.0 - image)


def rgb_to_lab(image: jax.Array) -> jax.Array:
    """Converts sRGB to CIE L*a*b* (D65): L in [0, 100], a and b within about [-108, 99]."""
    # The floors keep the branches not taken finite.
    linear = jnp.where(image > 0.04045, _power((jnp.maximum(image, 0.04) + 0.055) / 1.055, 2.4), image / 12.92)
    xyz = _mix(_RGB_TO_XYZ, linear)
    root = jnp.where(xyz > 0.008856, _power(jnp.maximum(xyz, 0.008), 1 / 3), 7.787 * xyz + 16.0 / 116.0)
    return _mix(_ROOT_TO_LAB, root) - jnp.array([16.0, 0.0, 0.0], image.dtype)[:, None, None]


def _power(base: jax.Array, exponent: float) -> jax.Array:
    # Unlike `**` and `cbrt`, exp and log are vectorised on CPUs.
    return jnp.exp(exponent * jnp.log(base))


def _mix(matrix: np.ndarray, image: jax.Array) -> jax.Array:
    """Multiplies every pixel by a `[3, 3]` matrix."""
    columns = jnp.asarray(matrix, image.dtype)[:, :, None, None]
    return columns[:, 0] * image[0] + columns[:, 1] * image[1] + columns[:, 2] * image[2]
