"""Each pixel operation against a slow float64 transcription, and against Pillow where Pillow has it.

Tolerances: 3e-6 of the range [0, 1] for float32 against float64; Pillow rounds to whole grey levels after every
pass, so it is allowed one and a half of them.
"""

import colorsys
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from scipy import ndimage

from metamask_jax.augment import ops
from metamask_jax.augment.presets import LAB_MEAN, LAB_STD

EXACT = 3e-6
GREY_LEVELS = 1.5 / 255
color_jitter = jax.jit(ops.color_jitter)
gaussian_blur = jax.jit(ops.gaussian_blur, static_argnames="size")
adjust_hue = jax.jit(ops.adjust_hue)
rgb_to_lab = jax.jit(ops.rgb_to_lab)

LUMA = np.array([0.299, 0.587, 0.114])


def random_image(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def planes(image):
    return jnp.asarray(image.transpose(2, 0, 1), jnp.float32) / 255


def from_pillow(picture):
    return np.asarray(picture, np.float64).transpose(2, 0, 1) / 255


# Resampling


def cubic(x):
    x = abs(x)
    if x < 1:
        return 1.5 * x**3 - 2.5 * x**2 + 1
    return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0


def slow_resize(line, out, kernel):
    """Resizes `line` [n, ...] along its first axis, one output at a time."""
    scale = len(line) / out
    stretch = max(scale, 1.0)
    rows = []
    for i in range(out):
        weights = np.array([kernel((j + 0.5 - (i + 0.5) * scale) / stretch) for j in range(len(line))])
        rows.append(np.tensordot(weights / weights.sum(), line, axes=1))
    return np.array(rows)


@functools.partial(jax.jit, static_argnames=("out", "interpolation"))
def crop_and_resize(image, box, *, out, interpolation):
    top, left, height, width = box
    rows = ops.resample_taps(top, height, size=image.shape[0], out=out, interpolation=interpolation)
    columns = ops.resample_taps(left, width, size=image.shape[1], out=out, interpolation=interpolation)
    return ops.resample(image, rows, columns)


BOXES = [(0, 0, 23, 31), (3, 5, 7, 9), (2, 1, 20, 5), (22, 30, 1, 1), (10, 0, 12, 31)]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("out", [8, 40])
def test_accelerators_resample_to_the_same_pixels(out, interpolation):
    """By products with matrices; on CPUs by fetching rows. Within 1e-6 of the range of the pixels."""
    lines = jnp.asarray(random_image(23, 31).reshape(23, -1))
    for top, _, height, _ in BOXES:
        taps = ops.resample_taps(top, height, size=23, out=out, interpolation=interpolation)
        multiplied, fetched = ops._multiply_rows(lines, taps), ops._fetch_rows(lines, taps)
        np.testing.assert_allclose(multiplied, fetched, atol=255e-6)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("out", [8, 40])
@pytest.mark.parametrize("box", BOXES)
def test_resample_equals_cropping_then_resizing(box, out, interpolation):
    # Not too near to black and white: Pillow clips a cubic's overshoot after each of its two passes.
    image = random_image(23, 31) // 3 + 85
    top, left, height, width = box
    got = crop_and_resize(image, box, out=out, interpolation=interpolation)

    kernel = {"bilinear": lambda x: max(0.0, 1 - abs(x)), "bicubic": cubic}[interpolation]
    cut = image[top : top + height, left : left + width].astype(np.float64)
    slow = slow_resize(slow_resize(cut, out, kernel).swapaxes(0, 1), out, kernel).transpose(2, 1, 0) / 255
    np.testing.assert_allclose(got, slow, atol=EXACT)

    method = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[interpolation]
    pillow = Image.fromarray(image).crop((left, top, left + width, top + height)).resize((out, out), method)
    np.testing.assert_allclose(got, from_pillow(pillow), atol=GREY_LEVELS)


def test_the_overshoot_of_the_cubic_filter_is_clipped():
    stripes = np.tile(np.uint8([0, 255])[:, None, None], (8, 16, 3))
    got = crop_and_resize(stripes, (0, 0, 16, 16), out=40, interpolation="bicubic")
    assert got.min() == 0.0
    assert got.max() == 1.0


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resampling_a_whole_line_to_its_own_length_changes_nothing(interpolation):
    index, weight = ops.resample_taps(0, 16, size=16, out=16, interpolation=interpolation)
    assert set(np.unique(weight)) == {0.0, 1.0}
    np.testing.assert_array_equal((index * weight).sum(axis=0), np.arange(16))


def test_flip_mirrors_columns():
    image = planes(random_image(5, 7))
    np.testing.assert_array_equal(ops.flip(image, True), np.asarray(image)[:, :, ::-1])
    np.testing.assert_array_equal(ops.flip(image, False), image)


# Colour


def slow_adjust(image, kind, factor):
    """One adjustment of a float64 image [3, height, width], pixel by pixel for the hue."""
    grey = np.tensordot(LUMA, image, axes=1)
    if kind == ops.HUE:
        pixels = []
        for pixel in image.reshape(3, -1).T:
            h, s, v = colorsys.rgb_to_hsv(*pixel)
            pixels.append(colorsys.hsv_to_rgb((h + factor) % 1.0, s, v))
        return np.array(pixels).T.reshape(image.shape)
    other = {ops.BRIGHTNESS: 0.0, ops.CONTRAST: grey.mean(), ops.SATURATION: grey}[kind]
    return np.clip(factor * image + (1 - factor) * other, 0, 1)


def test_color_jitter_applies_the_adjustments_in_every_order():
    # Strong factors, so that the clipping between the steps makes the order matter.
    factors = np.array([1.7, 1.6, 1.8, 0.3], np.float32)
    image = planes(random_image(6, 5))
    orders = np.array(list(itertools.permutations(range(4))))
    got = jax.vmap(color_jitter, in_axes=(None, None, 0))(image, jnp.asarray(factors), jnp.asarray(orders))
    slow = []
    for order in orders:
        expected = np.asarray(image, np.float64)
        for kind in order:
            expected = slow_adjust(expected, kind, float(factors[kind]))
        slow.append(expected)
    np.testing.assert_allclose(got, slow, atol=EXACT)
    assert len(np.unique(np.round(slow, 3), axis=0)) == 24  # the 24 results do differ


@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0, 1.6])
@pytest.mark.parametrize(
    ("kind", "enhancer"),
    [
        (ops.BRIGHTNESS, ImageEnhance.Brightness),
        (ops.CONTRAST, ImageEnhance.Contrast),
        (ops.SATURATION, ImageEnhance.Color),
    ],
)
def test_color_adjustments_agree_with_pillow(kind, enhancer, factor):
    image = random_image(9, 8, seed=1)
    factors = jnp.array([1.0, 1.0, 1.0, 0.0]).at[kind].set(factor)
    got = color_jitter(planes(image), factors, jnp.array([kind, *(k for k in range(4) if k != kind)]))
    pillow = enhancer(Image.fromarray(image)).enhance(factor)
    np.testing.assert_allclose(got, from_pillow(pillow), atol=GREY_LEVELS)


@pytest.mark.parametrize("shift", [-0.5, -0.13, 0.0, 0.21, 0.5])
def test_hue_turns_every_corner_edge_and_grey_of_the_color_cube(shift):
    levels = np.array([0.0, 0.25, 0.5, 1.0])
    cube = np.stack(np.meshgrid(levels, levels, levels, indexing="ij")).reshape(3, 8, 8)
    got = adjust_hue(jnp.asarray(cube, jnp.float32), jnp.float32(shift))
    np.testing.assert_allclose(got, slow_adjust(cube, ops.HUE, shift), atol=EXACT)


def test_greyscale_agrees_with_pillow():
    image = random_image(9, 8)
    grey = ops.adjust_saturation(planes(image), 0.0)
    pillow = np.asarray(ImageOps.grayscale(Image.fromarray(image)), np.float64) / 255
    for channel in grey:
        np.testing.assert_allclose(channel, pillow, atol=GREY_LEVELS)


def test_solarize_agrees_with_pillow():
    image = random_image(9, 8)
    pillow = ImageOps.solarize(Image.fromarray(image), threshold=128)
    np.testing.assert_allclose(ops.solarize(planes(image), 128 / 255), from_pillow(pillow), atol=EXACT)


@pytest.mark.parametrize(("sigma", "size"), [(0.1, 3), (0.8, 5), (2.0, 9), (2.0, 23)])
def test_blur_convolves_with_a_cut_off_gaussian_and_mirrored_border(sigma, size):
    image = random_image(16, 13)
    taps = np.array([math.exp(-0.5 * (k / sigma) ** 2) for k in range(-(size // 2), size // 2 + 1)])
    taps /= taps.sum()
    slow = np.asarray(planes(image), np.float64)
    for axis in (1, 2):
        slow = ndimage.correlate1d(slow, taps, axis=axis, mode="mirror")
    np.testing.assert_allclose(gaussian_blur(planes(image), jnp.float32(sigma), size=size), slow, atol=EXACT)


def slow_lab(red, green, blue):
    """CIE 1976 L*a*b* of an sRGB colour, D65."""
    r, g, b = ((c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4) for c in (red, green, blue))
    xyz = (
        (0.412453 * r + 0.357580 * g + 0.180423 * b) / 0.95047,
        0.212671 * r + 0.715160 * g + 0.072169 * b,
        (0.019334 * r + 0.119193 * g + 0.950227 * b) / 1.08883,
    )
    x, y, z = ((t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116) for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_lab_equals_its_definition():
    image = random_image(16, 16)
    image[0, :8] = np.arange(24).reshape(8, 3)  # the linear piece near black
    got = np.asarray(rgb_to_lab(planes(image)))
    slow = np.array([slow_lab(*pixel) for pixel in image.reshape(-1, 3) / 255]).T.reshape(got.shape)
    np.testing.assert_allclose(got, slow, atol=2e-4)  # of a range of 200
    assert (image[0, 0] < 10).all()


def test_lab_of_named_colors():
    """Published values for sRGB white, red, green and blue."""
    colors = jnp.array([[1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]], jnp.float32).T[:, None]
    known = [[100, 0, 0], [53.24, 80.09, 67.20], [87.73, -86.18, 83.18], [32.30, 79.19, -107.86]]
    np.testing.assert_allclose(rgb_to_lab(colors)[:, 0].T, known, atol=0.02)


def test_lab_normalisation_maps_the_color_cube_onto_plus_minus_one():
    levels = np.linspace(0, 1, 16)
    cube = jnp.asarray(np.stack(np.meshgrid(levels, levels, levels)).reshape(3, 64, 64), jnp.float32)
    normal = (rgb_to_lab(cube).reshape(3, -1).T - np.array(LAB_MEAN)) / np.array(LAB_STD)
    np.testing.assert_allclose(normal.min(axis=0), -1, atol=1e-3)
    np.testing.assert_allclose(normal.max(axis=0), 1, atol=1e-3)


def test_neutral_parameters_change_nothing():
    image = planes(random_image(12, 12))
    np.testing.assert_array_equal(ops.adjust_saturation(image, 1.0), image)
    np.testing.assert_array_equal(gaussian_blur(image, 1e-3, size=5), image)
    np.testing.assert_array_equal(ops.solarize(image, 2.0), image)
    neutral = color_jitter(image, jnp.array([1.0, 1.0, 1.0, 0.0]), jnp.arange(4))
    np.testing.assert_allclose(neutral, image, atol=3e-7)
