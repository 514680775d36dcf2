from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from metamask_jax.augment.presets import IMAGENET_MEAN, IMAGENET_STD
from metamask_jax.config import default_config
from metamask_jax.data.in_memory import ArraySource
from metamask_jax.evaluate import extract_source, make_extractor
from metamask_jax.export.encoder import Preprocessing
from metamask_jax.models import Encoder, make_encoder


def config(name: str, dtype: str = "float32", batch_size: int = 256) -> ConfigDict:
    result = default_config()
    result.encoder.update(name=name, width=0.125)
    result.train.dtype = dtype
    result.eval.batch_size = batch_size
    return result


def variables(name: str) -> tuple[Encoder, dict, dict]:
    """An encoder with random weights and BatchNorm statistics; nothing has to be compiled for them."""
    encoder = make_encoder(name, width=0.125, stem="cifar", image_size=32, dtype="float32", axis_name=None)
    shapes = jax.eval_shape(partial(encoder.init, train=True), jax.random.key(0), jnp.zeros((2, 32, 32, 3)))
    random = np.random.default_rng(0)

    def fill(path: tuple, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        values = random.normal(size=leaf.shape).astype(np.float32)
        name = path[-1].key
        return np.abs(values) + 0.5 if name in ("scale", "var") else values / max(1, np.prod(leaf.shape[:-1])) ** 0.5

    filled = jax.tree_util.tree_map_with_path(fill, shapes)
    return encoder, {"encoder": filled["params"]}, {"encoder": filled["batch_stats"]}


def pictures(size: int, side: int = 32) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (size, side, side, 3), dtype=np.uint8)


def test_features_are_the_encoder_in_inference_mode_on_normalised_images() -> None:
    encoder, params, stats = variables("conv")
    images = pictures(10)
    inputs = ((images / 255.0 - IMAGENET_MEAN) / IMAGENET_STD).astype(np.float32)
    apply = jax.jit(partial(encoder.apply, train=False))
    expected = apply({"params": params["encoder"], "batch_stats": stats["encoder"]}, inputs)
    found = make_extractor(config("conv"))(params, stats, images)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "dtype"), [("conv", "float32"), ("resnet18", "bfloat16")])
def test_features_are_bit_identical_whatever_the_batch_size_and_devices(name: str, dtype: str) -> None:
    _, params, stats = variables(name)
    images = pictures(150)
    expected = make_extractor(config(name, dtype, 256), devices=jax.devices()[:1])(params, stats, images)
    assert np.isfinite(expected).all()
    assert len(np.unique(expected, axis=0)) == 150
    for devices, batch_size in ((1, 1), (4, 300)):
        extract = make_extractor(config(name, dtype, batch_size), devices=jax.devices()[:devices])
        np.testing.assert_array_equal(extract(params, stats, images), expected)


def test_features_of_an_image_do_not_depend_on_the_others() -> None:
    _, params, stats = variables("conv")
    extract = make_extractor(config("conv"))
    images = pictures(70)
    np.testing.assert_array_equal(extract(params, stats, images[60:]), extract(params, stats, images)[60:])


def test_images_of_another_size_are_resized() -> None:
    _, params, stats = variables("conv")
    extract = make_extractor(config("conv"))
    plain = np.random.default_rng(0).integers(0, 256, (3, 1, 1, 3), dtype=np.uint8)  # what no resizing can change
    h = [extract(params, stats, np.broadcast_to(plain, (3, side, side, 3))) for side in (32, 48)]
    np.testing.assert_allclose(h[1], h[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("augmentation", ["cmc", "shapes_lab"])
def test_encoders_of_lab_channels_are_evaluated_and_exported_on_lab_channels(augmentation: str) -> None:
    _, params, stats = variables("conv")
    rgb, lab = config("conv"), config("conv")
    lab.data.augmentation = augmentation
    assert (Preprocessing.of(rgb).channels, Preprocessing.of(lab).channels) == (("R", "G", "B"), ("L", "a", "b"))
    images = pictures(3)
    found = make_extractor(lab)(params, stats, images)
    encoder = make_encoder("conv", width=0.125, stem="cifar", image_size=32, dtype="float32", axis_name=None)
    apply = jax.jit(partial(encoder.apply, train=False))
    expected, other = (
        apply({"params": params["encoder"], "batch_stats": stats["encoder"]}, Preprocessing.of(seen)(images))
        for seen in (lab, rgb)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(found, other, rtol=1e-2)


def test_evaluation_may_compute_in_another_precision_than_training() -> None:
    _, params, stats = variables("conv")
    images = pictures(40)
    rounded = config("conv")
    rounded.eval.dtype = "bfloat16"
    found, exact, trained_so = (
        make_extractor(c)(params, stats, images) for c in (rounded, config("conv"), config("conv", "bfloat16"))
    )
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, trained_so)
    assert 0 < np.abs(found - exact).max() < 0.1 * np.abs(exact).max()


@pytest.mark.parametrize("size", [0, 1, 2, 7, 9])
def test_processes_share_the_rows(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.arange(size, dtype=np.int32)
    source = ArraySource(name="noise", images=pictures(size), labels=labels, num_classes=0, class_names=(), factors={})
    _, params, stats = variables("conv")
    extract = make_extractor(config("conv"))
    expected = extract(params, stats, source.images)
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    found = []
    for index in range(3):
        monkeypatch.setattr(jax, "process_index", lambda index=index: index)
        found.append(extract_source(extract, params, stats, source))
    h, labels = map(np.concatenate, zip(*found, strict=True))
    np.testing.assert_array_equal(h, expected)
    np.testing.assert_array_equal(labels, source.labels)
    assert max(len(h) for h, _ in found) <= -(-size // 3)


def test_no_images_give_no_features() -> None:
    encoder, params, stats = variables("conv")
    assert make_extractor(config("conv"))(params, stats, pictures(0)).shape == (0, encoder.features)


def test_images_that_are_no_bytes_are_refused() -> None:
    _, params, stats = variables("conv")
    with pytest.raises(ValueError, match=r"images float64 \(1, 32, 32, 3\); expected uint8"):
        make_extractor(config("conv"))(params, stats, np.zeros((1, 32, 32, 3)))
