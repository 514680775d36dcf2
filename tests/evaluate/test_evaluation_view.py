"""What an encoder sees in evaluation: the same of a set of files and of the files' pixels, however large they are."""

import dataclasses
import pathlib
from functools import partial

import jax
import numpy as np
import pytest
from flax import linen as nn
from PIL import Image

from metamask_jax.augment.presets import IMAGENET_MEAN, IMAGENET_STD, CenterCrop
from metamask_jax.config import default_config
from metamask_jax.data import open_source
from metamask_jax.data.pictures import CentreView, RandomView, centre_view
from metamask_jax.data.streams import StreamSource
from metamask_jax.evaluate import extract_source, make_extractor
from metamask_jax.evaluate.finetune import _gather
from metamask_jax.evaluate.views import left_to_device, random_view, seen_on_host
from metamask_jax.export.encoder import Preprocessing
from metamask_jax.training.registry import REGISTRY

SIZES = [(300, 200), (160, 240), (224, 224), (256, 256), (500, 375), (90, 100), (1400, 230), (231, 517), (33, 700)]


class Pixels(nn.Module):
    """Features that are what the encoder is shown."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        del train
        return x.reshape(len(x), -1)


def pixels(*, image_size: int, **settings: object) -> Pixels:
    del settings
    return Pixels(3 * image_size**2)


def paint(size: tuple[int, int], seed: int) -> Image.Image:
    """A picture with something at every scale."""
    random = np.random.default_rng(seed)
    picture = Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    noise = random.normal(scale=20, size=(size[1], size[0], 3))
    return Image.fromarray(np.clip(np.asarray(picture) + noise, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("image_size", [24, 224])
def test_a_folder_of_jpegs_is_seen_as_the_exported_preprocessing_says(image_size: int, tmp_path: pathlib.Path) -> None:
    sizes = SIZES[:6] if image_size == 24 else SIZES
    for i, size in enumerate(sizes):
        (tmp_path / "pictures" / f"{i}").mkdir(parents=True)
        paint(size, i).save(tmp_path / "pictures" / f"{i}" / "1.jpg", quality=90)
    registry = REGISTRY.extended(encoders={"pixels": pixels})
    config = default_config()
    config.encoder.name = "pixels"
    config.data.image_size, config.eval.batch_size = image_size, 1
    # The options are those of training; a square of another size and share is not what evaluation sees.
    options = {"path": str(tmp_path / "pictures"), "image_size": image_size + 8, "centre": 0.5}
    source = open_source("image_folder", split="pretrain", data_dir=str(tmp_path / "data"), **options)
    extract = make_extractor(config, devices=jax.devices()[:1], registry=registry)
    seen, labels = extract_source(extract, {"encoder": {}}, {"encoder": {}}, source)

    preprocessing = Preprocessing.of(config, registry)
    assert preprocessing.shortest == (256 if image_size == 224 else 24)
    assert sorted(labels) == list(range(len(sizes)))  # the folder is the class, whatever the order
    for i, found in zip(labels, seen, strict=True):
        with Image.open(tmp_path / "pictures" / f"{i}" / "1.jpg") as file:
            expected = preprocessing(np.asarray(file)[None])[0]
        levels = 255 * np.array(IMAGENET_STD) * (found.reshape(expected.shape) - expected)
        assert np.abs(levels).max() <= 1.01, sizes[i]  # two roundings to bytes, one for each axis
        assert np.abs(levels).mean() <= 0.5


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(60, 40), (40, 300), (17, 23)])
def test_the_middle_is_that_of_the_whole_picture_resized(size: tuple[int, int], interpolation: str) -> None:
    picture, view = paint(size, 0), CentreView(32, 40, interpolation)
    width, height = (40 * length // min(size) for length in size)
    whole = np.asarray(picture.resize((width, height), Image.Resampling[interpolation.upper()]))
    top, left = (height - 32) // 2, (width - 32) // 2
    found = centre_view(np.asarray(picture), view).astype(int)
    assert np.abs(found - whole[top : top + 32, left : left + 32]).max() <= 1


def where(size: tuple[int, int]) -> Image.Image:
    """A picture whose red tells how far to the right a pixel is and whose green how far down, from 0 to 255."""
    across, down = (np.linspace(0, 255, length) for length in size)
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = across[None, :], down[:, None]
    return Image.fromarray(pixels)


@pytest.fixture
def wide(tmp_path: pathlib.Path) -> StreamSource:
    """Forty pictures four times as wide as high: their centred square shows x from 0.375 to 0.625."""
    (tmp_path / "pictures").mkdir()
    for i in range(40):
        where((160 + i % 2, 40)).save(tmp_path / "pictures" / f"{i:02}.png")
    options = {"path": str(tmp_path / "pictures"), "image_size": 16}
    source = open_source("image_folder", split="pretrain", data_dir=str(tmp_path / "data"), **options)
    assert isinstance(source, StreamSource)
    return source


def test_random_views_of_streamed_pictures_show_any_part_of_them(wide: StreamSource) -> None:
    """And none of it twice resized: what linear_augmented and fine-tuning learn from."""
    registry = REGISTRY.extended(encoders={"pixels": pixels})
    config = default_config()
    config.encoder.name = "pixels"
    config.data.image_size = 16
    view = random_view(config, registry, smallest=0.08)
    extract = make_extractor(config, view=view, seed=3, registry=registry)

    def seen(draw: int, rows: np.ndarray | None = None) -> np.ndarray:
        h, _ = extract_source(extract, {"encoder": {}}, {"encoder": {}}, wide, rows=rows, draw=draw)
        return (h.reshape(-1, 16, 16, 3) * IMAGENET_STD + IMAGENET_MEAN)[..., :2]  # x and y in [0, 1]

    found = seen(0)
    np.testing.assert_array_equal(seen(0), found)
    assert not np.allclose(seen(1), found, atol=0.05)
    left, right = found[..., 0].min((1, 2)), found[..., 0].max((1, 2))
    assert left.min() < 0.1
    assert right.max() > 0.9
    upper, lower = found[..., 1].min((1, 2)), found[..., 1].max((1, 2))
    shares = (right - left) * (lower - upper) * (16 / 15) ** 2  # from the middle of the first to that of the last pixel
    assert 0.04 < shares.min() < shares.max() <= 0.45  # a higher one does not fit at a ratio of at most 4 / 3
    flipped = found[:, 8, 0, 0] > found[:, 8, -1, 0]
    assert 5 < flipped.sum() < 35
    # A crop belongs to its picture, whoever reads it with what others.
    some = np.array([5, 30])
    for i, part in zip(some, seen(0, some), strict=True):
        np.testing.assert_allclose(np.sort(part[8, :, 0]), np.sort(found[i, 8, :, 0]), atol=1e-6)


def test_fine_tuning_reads_random_parts_of_streamed_pictures(wide: StreamSource) -> None:
    view = random_view(default_config(), smallest=0.1)
    shown = partial(seen_on_host, wide, view, image_size=16, seed=0)
    batches = np.arange(20).reshape(2, 10)
    rows, images = _gather(1, shown=shown, batches=batches)
    np.testing.assert_array_equal(rows, batches[1])
    expected = dataclasses.replace(wide, view=RandomView(16, (0.1, 1.0), (3 / 4, 4 / 3), "bilinear", 0, 1))
    np.testing.assert_array_equal(images, expected.gather(batches[1])[0])
    assert images[..., 0].min() < 0.3 * 255  # left of the centred square
    assert left_to_device(view, image_size=16).crop == CenterCrop(shortest=16)
