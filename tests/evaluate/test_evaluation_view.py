"""What an encoder sees in evaluation: the same of a set of files and of the files' pixels, however large they are."""

import pathlib

import jax
import numpy as np
import pytest
from flax import linen as nn
from PIL import Image

from metamask_jax.augment.presets import IMAGENET_STD
from metamask_jax.config import default_config
from metamask_jax.data import open_source
from metamask_jax.data.pictures import CentreView, centre_view
from metamask_jax.evaluate import extract_source, make_extractor
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
    found = centre_view(picture, view).astype(int)
    assert np.abs(found - whole[top : top + 32, left : left + 32]).max() <= 1
