import ctypes
import io
import mmap

import numpy as np
import pytest
from PIL import Image

from metamask_jax.data import pictures
from metamask_jax.errors import DataError
from metamask_jax.kernels.switch import has_native

AREA, ASPECT = (0.2, 0.9), (3 / 4, 4 / 3)


def draw_boxes(size, count=4000):
    boxes = [
        pictures.random_box(size, pictures.uniform_draws(0, 0, i, 1)[0], area=AREA, aspect=ASPECT) for i in range(count)
    ]
    return np.array(boxes)


def slow_random_box(size, uniform):
    """One draw after another, as the procedure is usually written."""
    width, height = size
    for u_area, u_aspect, u_left, u_upper in uniform:
        area = width * height * (AREA[0] + (AREA[1] - AREA[0]) * u_area)
        aspect = np.exp(np.log(ASPECT[0]) + (np.log(ASPECT[1]) - np.log(ASPECT[0])) * u_aspect)
        w, h = np.sqrt(area * aspect), np.sqrt(area / aspect)
        if w <= width and h <= height:
            left, upper = u_left * (width - w), u_upper * (height - h)
            return left, upper, left + w, upper + h
    side = min(size)
    return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2


@pytest.mark.parametrize("size", [(100, 100), (300, 90), (50, 400)])
def test_random_boxes_equal_the_slow_procedure(size):
    for i in range(300):
        uniform = pictures.uniform_draws(1, 2, i, 1)[0]
        box = pictures.random_box(size, uniform, area=AREA, aspect=ASPECT)
        np.testing.assert_allclose(box, slow_random_box(size, uniform), rtol=1e-12, atol=1e-10)


def test_random_boxes_lie_within_the_picture_and_have_the_right_distribution():
    left, upper, right, lower = draw_boxes((1000, 1000)).T
    assert min(left.min(), upper.min()) >= 0
    assert max(right.max(), lower.max()) <= 1000
    area, aspect = (right - left) * (lower - upper) / 1e6, (right - left) / (lower - upper)
    assert area.min() >= 0.2
    assert area.max() <= 0.9
    # Below 0.75 every aspect fits, so that no draw is repeated and the area is uniform.
    below = area[area < 0.75]
    assert abs(below.mean() - 0.475) < 4 * 0.55 / np.sqrt(12 * len(below))
    assert abs(np.log(aspect).mean()) < 4 * np.log(16 / 9) / np.sqrt(12 * len(aspect))
    place = left / (1000 - (right - left))
    assert abs(place.mean() - 0.5) < 4 / np.sqrt(12 * len(place))


def test_a_picture_no_box_fits_gives_its_centred_square():
    box = pictures.random_box((1000, 10), pictures.uniform_draws(0, 0, 0, 1)[0], area=AREA, aspect=ASPECT)
    assert box == (495.0, 0.0, 505.0, 10.0)


def test_a_crop_is_the_box_it_says():
    pixels = np.zeros((30, 40, 3), np.uint8)
    pixels[10:20, 5:15] = 200
    crop = pictures.crop(pixels, (5, 10, 15, 20), 10)
    assert (crop == 200).all()


def test_draws_differ_by_seed_step_position_and_view():
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    draws = np.concatenate([pictures.uniform_draws(*key, 2) for key in keys])
    assert len(np.unique(draws)) == draws.size
    assert draws.min() >= 0
    assert draws.max() < 1


def jpeg(pixels, mode="RGB", **options):
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "jpeg", **options)
    return file.getvalue()


def by_pillow(encoded):
    return np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))


def smooth_noise(height, width):
    coarse = np.random.default_rng(1).integers(0, 256, (height // 4, width // 4, 3), np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize(
    "options",
    [{}, {"progressive": True}, {"subsampling": 0}, {"subsampling": 1}, {"quality": 12}, {"restart_marker_blocks": 2}],
)
def test_jpegs_have_the_pixels_of_pillow(mode, options):
    encoded = jpeg(smooth_noise(61, 83), mode, **options)
    np.testing.assert_array_equal(pictures.decode(encoded, "picture 0"), by_pillow(encoded))


def test_a_slightly_damaged_jpeg_is_what_pillow_makes_of_it():
    whole = jpeg(smooth_noise(64, 80), quality=95)
    middle = len(whole) // 2
    damaged = whole[:middle] + bytes(20) + whole[middle + 20 :]
    found = pictures.decode(damaged, "picture 0")
    np.testing.assert_array_equal(found, by_pillow(damaged))
    assert (found != by_pillow(whole)).any()


def test_a_jpeg_that_ends_early_is_refused_by_its_name():
    whole = jpeg(smooth_noise(64, 80))
    with pytest.raises(DataError, match=r"picture 7 is not a readable picture \(.*truncated"):
        pictures.decode(whole[: len(whole) // 2], "picture 7")


@pytest.fixture
def compared_anew():
    """Whether what replaces Pillow agrees with it is asked once per process, but for these tests."""
    for asked in (pictures._decodes_as_pillow, pictures._resamples_as_pillow):
        asked.cache_clear()
    yield
    for asked in (pictures._decodes_as_pillow, pictures._resamples_as_pillow):
        asked.cache_clear()


def test_a_decoder_with_other_pixels_is_left_alone(monkeypatch, compared_anew):
    import simplejpeg

    def another(encoded, *args, **settings):
        return 255 - by_pillow(encoded)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", another)
    encoded = jpeg(smooth_noise(16, 16))
    np.testing.assert_array_equal(pictures.decode(encoded, "picture 0"), by_pillow(encoded))


def random_resizing(i):
    """A picture, a box and a size: tall, wide, tiny and large, enlarged and reduced, of noise or of black and white."""
    draw = np.random.default_rng(i)
    height, width = draw.integers(1, (12, 100, 500)[i % 3], 2)
    pixels = draw.integers(0, 256, (height, width, 3), np.uint8)
    if i % 4 == 0:
        pixels = np.where(pixels > 127, 255, 0).astype(np.uint8)
    (left, right), (upper, lower) = (np.sort(draw.uniform(0, length, 2)) for length in (width, height))
    box = (0, 0, width, height) if i % 5 == 0 else (left, upper, right + (width - right) / 9, lower)
    return pixels, box, tuple(draw.integers(1, (30, 260)[i % 2], 2).tolist())


needs_kernel = pytest.mark.skipif(not has_native(), reason="the native kernels do not run here")


@needs_kernel
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resized_pictures_have_the_pixels_of_pillow(interpolation):
    assert pictures._resamples_as_pillow()
    for i in range(150):
        pixels, box, size = random_resizing(i)
        expected = Image.fromarray(pixels).resize(size, Image.Resampling[interpolation.upper()], box=box)
        np.testing.assert_array_equal(pictures.resize(pixels, box, size, interpolation), np.asarray(expected), str(i))


@needs_kernel
def test_a_kernel_with_other_pixels_than_pillow_is_left_alone(monkeypatch, compared_anew):
    monkeypatch.setattr(pictures, "_resize_by_pillow", lambda pixels, box, size, _: np.zeros((*size, 3), np.uint8))
    assert not pictures.resize(smooth_noise(16, 16), (0, 0, 9, 9), (8, 8), "bicubic").any()


@needs_kernel
def test_nothing_is_read_beyond_the_end_of_a_picture():
    """The pictures end where a page begins that cannot be read: reading on would end the process."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 40 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + 39 * page), page, 0) == 0  # PROT_NONE
    for height, width in ((3, 2), (1, 1), (40, 7), (7, 40), (90, 22), (100, 300), (150, 100)):
        end = np.frombuffer(memory, np.uint8, 3 * height * width, 39 * page - 3 * height * width)
        pixels = end.reshape(height, width, 3)
        pixels[:] = smooth_noise(160, 320)[:height, :width]
        for size in ((5, 5), (50, 3), (3, 50), (64, 64)):
            found = pictures.resize(pixels, (0, 0, width, height), size, "bicubic")
            np.testing.assert_array_equal(found, pictures.resize(pixels.copy(), (0, 0, width, height), size, "bicubic"))


@needs_kernel
@pytest.mark.parametrize(
    ("pixels", "box", "size", "message"),
    [
        (np.zeros((12, 20, 3), np.uint8), (0, 0, 20.5, 12), (8, 8), "expected a box within 20 x 12 pixels"),
        (np.zeros((12, 20, 3), np.uint8), (0, 0, np.nan, 12), (8, 8), "expected a box within 20 x 12 pixels"),
        (np.zeros((12, 20, 3), np.uint8), (0, 0, 20, 12), (8, 0), r"size=\(8, 0\); expected .* at least 1 x 1"),
        (np.zeros((12, 20, 4), np.uint8), (0, 0, 20, 12), (8, 8), "channels=4"),
        (np.zeros((12, 20, 3), np.float32), (0, 0, 20, 12), (8, 8), "float32"),
    ],
)
def test_what_the_kernel_cannot_resize_is_refused(pixels, box, size, message):
    with pytest.raises(ValueError, match=message):
        pictures.resize(pixels, box, size, "bicubic")


def test_without_native_kernels_pillow_resizes(monkeypatch):
    monkeypatch.setenv("METAMASK_KERNELS", "xla")
    monkeypatch.setattr(pictures, "_resamples_as_pillow", lambda: pytest.fail("the kernel was asked for"))
    pixels, box = smooth_noise(32, 48), (3.5, 2, 40, 30.25)
    expected = np.asarray(Image.fromarray(pixels).resize((20, 20), Image.Resampling.BICUBIC, box=box))
    np.testing.assert_array_equal(pictures.crop(pixels, box, 20), expected)
