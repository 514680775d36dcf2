import hashlib
import io

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from metamask_jax.data import open_source
from metamask_jax.data.builders import base, confounders
from metamask_jax.errors import DataError

SIZES = {"train": 30, "test": 12}
CLASSES = ("airplane", "automobile", "bird")


def plain(split, i):
    """Picture `i` of a split of the small CIFAR-10: a grey level for each class, a little off for each picture."""
    return np.full((32, 32, 3), 60 * (i % 3) + i + (split == "test"), np.uint8)


class SmallCifar10(base.RecordBuilder, skip_registration=True):
    """A set of the name and the features of CIFAR-10."""

    name = "cifar10"
    VERSION = tfds.core.Version("3.0.2")

    def _info(self):
        features = {
            "id": tfds.features.Text(),
            "image": tfds.features.Image(shape=(32, 32, 3), encoding_format="png"),
            "label": tfds.features.ClassLabel(names=CLASSES),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), supervised_keys=("image", "label")
        )

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in SIZES}

    def _generate_examples(self, split):
        for i in range(SIZES[split]):
            png = io.BytesIO()
            Image.fromarray(plain(split, i)).save(png, "png")
            png.seek(0)
            yield i, {"id": str(i), "image": png, "label": i % 3}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("cifar"))
    SmallCifar10(data_dir=folder).download_and_prepare()
    return folder


def test_without_confounders_the_pictures_are_those_of_cifar10_with_their_labels(data_dir):
    for split, size in SIZES.items():
        source = open_source("confounded_cifar10", split=split, data_dir=data_dir, strength=0.0)
        assert len(source) == size
        assert source.class_names == CLASSES
        label_of = {plain(split, i).tobytes(): i % 3 for i in range(size)}
        assert [label_of[image.tobytes()] for image in source.images] == source.labels.tolist()


def test_factors_are_stored_with_each_picture_and_belong_to_it(data_dir):
    source = open_source("confounded_cifar10", split="train", data_dir=data_dir)
    assert set(source.factors) == {*confounders.CONTINUOUS, "texture"}
    # Each picture, of one grey level, is brighter towards the light whose angle is stored with it.
    images, turns = source.images.astype(float).mean(axis=-1), 2 * np.pi * source.factors["light_angle"]
    across = np.linspace(-1, 1, 32)
    slopes = [(images * across).mean(axis=(1, 2)), -(images * across[:, None]).mean(axis=(1, 2))]
    strong = source.factors["light_strength"] > 0.3
    assert strong.sum() > 5
    assert np.all((slopes[0] * np.cos(turns) + slopes[1] * np.sin(turns))[strong] > 0)


def veiled(count, *, strength=1.0, stream=0):
    pictures = (np.full((32, 32, 3), 128, np.uint8) for _ in range(count))
    chunks = list(confounders.confound(pictures, count, strength=strength, stream=stream))
    return np.concatenate([images for images, _ in chunks]), {
        name: np.concatenate([factors[name] for _, factors in chunks]) for name in chunks[0][1]
    }


def test_pixels_are_the_same_everywhere_for_one_version():
    # Recorded once: if a pixel changes, so must the builder's version.
    digests = [hashlib.sha256(veiled(300, stream=stream)[0].tobytes()).hexdigest()[:16] for stream in (0, 1)]
    assert digests == ["76460ae754f81206", "ac8c2bfd547a0de9"]


def test_a_veil_says_nothing_about_the_class_and_no_two_are_the_same():
    images, factors = veiled(2000)
    assert len({image.tobytes() for image in images}) == 2000
    labels = np.arange(2000) % 10
    for name, values in factors.items():
        means = np.array([values[labels == k].mean() for k in range(10)])
        assert np.abs(means - values.mean()).max() < 5 * values.std() / np.sqrt(200), name


def test_without_cifar10_or_with_an_impossible_strength_it_is_refused(tmp_path, data_dir):
    with pytest.raises(DataError, match=r"strength=2.*0 to 1"):
        open_source("confounded_cifar10", split="train", data_dir=data_dir, strength=2.0)
    with pytest.raises(DataError, match="'cifar10' is not prepared in"):
        open_source("confounded_cifar10", split="train", data_dir=str(tmp_path))
