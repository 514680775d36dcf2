import hashlib

import numpy as np
import pytest

from metamask_jax.data import open_source
from metamask_jax.data.builders import shapes
from metamask_jax.errors import DataError
from tests.data.conftest import SHAPES


def rendered(count, *, image_size=32, strength=1.0, stream=0):
    chunks = list(shapes.render(count, image_size=image_size, strength=strength, stream=stream))
    factors = {name: np.concatenate([f[name] for _, f in chunks]) for name in chunks[0][1]}
    return np.concatenate([images for images, _ in chunks]), factors


def test_pixels_are_the_same_everywhere_for_one_version():
    # Recorded once: if a pixel changes, so must the builder's version.
    for stream, recorded in ((0, "b0856cae23e53bef"), (1, "c637743bdfac1199")):
        images, _ = rendered(300, stream=stream)
        assert hashlib.sha256(images.tobytes()).hexdigest()[:16] == recorded


def test_the_table_of_cosines_cannot_depend_on_the_platform():
    # A platform's cosine errs by less than 1e-15; no entry may lie that near to where its rounding would turn.
    exact = np.cos(np.arange(4096) * (2 * np.pi / 4096)) * 2**24
    distance_to_turn = np.abs(np.abs(exact - np.floor(exact)) - 0.5)
    assert distance_to_turn.min() > 1e-6


def test_a_larger_set_begins_with_the_smaller_one():
    np.testing.assert_array_equal(rendered(251)[0], rendered(600)[0][:251])


def test_splits_share_no_picture():
    train, test = rendered(250)[0], rendered(250, stream=1)[0]
    assert len({image.tobytes() for image in np.concatenate([train, test])}) == 500


def test_classes_are_balanced_and_every_confounder_is_independent_of_the_class():
    _, factors = rendered(4000)
    labels = factors["label"]
    assert np.bincount(labels).tolist() == [400] * 10
    for name in (*shapes.CONTINUOUS, "texture"):
        means = np.array([factors[name][labels == k].mean() for k in range(10)])
        standard_error = factors[name].std() / 20
        assert np.abs(means - factors[name].mean()).max() < 5 * standard_error, name


def test_without_confounders_ground_and_shape_are_plain_grey():
    images, _ = rendered(100, strength=0.0)
    assert (images == images[..., :1]).all()
    corners = images[:, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert (corners == corners[:, :1]).all()


@pytest.mark.parametrize("image_size", [16, 32, 64])
def test_a_shape_covers_the_same_share_of_any_picture_and_stays_inside(image_size):
    images, factors = rendered(200, image_size=image_size, strength=0.0)
    ground = np.floor(factors["luminance_ground"] * 255 + 0.5)[:, None, None]
    covered = np.abs(images[..., 0].astype(float) - ground) > 20
    border = np.ones((image_size, image_size), bool)
    border[1:-1, 1:-1] = False
    assert covered[:, border].mean() < 0.02
    share = covered.mean(axis=(1, 2)) / factors["scale"] ** 2
    for label in range(10):
        assert 0.15 < share[factors["label"] == label].mean() < 0.65


def test_factors_are_stored_with_each_picture_and_belong_to_it(data_dir):
    source = open_source("confounded_shapes", split="train", data_dir=data_dir, strength=0.0, **SHAPES)
    assert set(source.factors) == {*shapes.CONTINUOUS, "texture"}
    assert source.class_names == shapes.SHAPES
    assert source.images.shape == (60, 32, 32, 3)
    ground = source.factors["luminance_ground"]
    np.testing.assert_array_equal(source.images[:, 0, 0, 0], np.floor(ground.astype(float) * 255 + 0.5))


def test_stored_pictures_are_the_rendered_ones(data_dir):
    source = open_source("confounded_shapes", split="test", data_dir=data_dir, **SHAPES)
    images, factors = rendered(20, stream=1)
    label_of = {image.tobytes(): label for image, label in zip(images, factors["label"], strict=True)}
    assert [label_of[image.tobytes()] for image in source.images] == source.labels.tolist()


def test_tfds_knows_the_builder_by_name(data_dir):
    import tensorflow_datasets as tfds

    import metamask_jax.data.builders.confounded_shapes  # noqa: F401

    builder = tfds.builder("confounded_shapes", data_dir=data_dir)
    assert builder.info.features["label"].names == list(shapes.SHAPES)


@pytest.mark.parametrize(
    ("option", "message"),
    [({"strength": 1.5}, "strength=1.5"), ({"image_size": 8}, "image_size=8"), ({"train_size": 0}, "train_size=0")],
)
def test_an_impossible_option_is_refused(data_dir, option, message):
    with pytest.raises(DataError, match=message):
        open_source("confounded_shapes", split="train", data_dir=data_dir, **option)
