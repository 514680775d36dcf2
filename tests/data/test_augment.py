"""Views of a batch: the same whatever the layout, a function of seed, step and position, and clear refusals."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from metamask_jax.augment import (
    PRESETS,
    CenterCrop,
    example_keys,
    make_augmentation,
    ops,
    render_view,
    sample_draws,
)

SIZE, BATCH = 32, 8
IMAGES = np.random.default_rng(0).integers(0, 256, (BATCH, SIZE, SIZE, 3), dtype=np.uint8)
# Every step in one view, and pixels in [0, 1] come out.
FULL = dataclasses.replace(PRESETS["byol"](SIZE)[1], blur_p=0.5, solarize_p=0.5, mean=(0.0,) * 3, std=(1.0,) * 3)
PLAIN = dataclasses.replace(FULL, jitter_p=0.0, grey_p=0.0, blur_p=0.0, solarize_p=0.0)


@functools.cache
def compiled(preset, image_size=SIZE, views=2):
    """The views of (images, step, positions)."""
    augment = make_augmentation(preset, image_size=image_size, views=views)
    return jax.jit(lambda images, step, positions: augment(images, example_keys(0, step, positions)))


def views_of(preset, step=0, views=2, image_size=SIZE, images=IMAGES):
    return np.asarray(compiled(preset, image_size, views)(images, step, np.arange(len(images))))


# Keys and layouts


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_keys_and_draws_do_not_depend_on_how_the_batch_is_split(parts):
    draw = jax.jit(jax.vmap(functools.partial(sample_draws, spec=FULL, height=SIZE, width=SIZE)))
    positions = np.arange(64)
    whole = example_keys(5, 7, positions)
    split = [example_keys(5, 7, part) for part in np.split(positions, parts)]
    np.testing.assert_array_equal(jax.random.key_data(whole), np.concatenate(list(map(jax.random.key_data, split))))
    in_parts = jax.tree.map(lambda *leaves: np.concatenate(leaves), *map(draw, split))
    jax.tree.map(np.testing.assert_array_equal, draw(whole), in_parts)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_pixels_agree_on_any_number_of_devices(devices):
    augment = make_augmentation((FULL,), image_size=SIZE, views=1)
    step = jax.pmap(
        lambda images, step, positions: augment(images, example_keys(0, step, positions)), in_axes=(0, None, 0)
    )
    images = IMAGES.reshape(devices, -1, SIZE, SIZE, 3)
    positions = np.arange(BATCH).reshape(devices, -1)
    first, again = step(images, 3, positions), step(images, 3, positions)
    np.testing.assert_array_equal(first, again)
    merged = np.concatenate(list(first), axis=1)
    np.testing.assert_allclose(merged, views_of((FULL,), step=3, views=1), rtol=0, atol=1e-6)


def test_keys_differ_by_seed_step_and_position():
    arguments = [(0, 0), (1, 0), (0, 1)]
    data = np.concatenate([jax.random.key_data(example_keys(*a, np.arange(4))) for a in arguments])
    assert len(np.unique(data, axis=0)) == 12


def test_any_step_can_be_the_first_and_one_compilation_serves_all():
    traces = []
    augment = make_augmentation((PLAIN,), image_size=SIZE, views=2)

    @jax.jit
    def step(images, step, positions):
        traces.append(step)
        return augment(images, example_keys(0, step, positions))

    run = [step(IMAGES, i, np.arange(BATCH)) for i in range(3)]
    restarted = step(IMAGES, 2, np.arange(BATCH))
    np.testing.assert_array_equal(run[2], restarted)
    assert not np.array_equal(run[1], run[2])
    assert len(traces) == 1


# Views


@pytest.mark.parametrize("views", [1, 3, 4])
def test_any_number_of_views_each_with_its_own_draws(views):
    got = views_of((PLAIN,), views=views)
    assert got.shape == (views, BATCH, SIZE, SIZE, 3)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got[:2], views_of((PLAIN,))[:views], atol=1e-6)  # more views change none of the first
    for i in range(views):
        for j in range(i):
            assert np.abs(got[i] - got[j]).mean(axis=(1, 2, 3)).min() > 0.05


@pytest.mark.usefixtures("x64")
def test_views_are_float32_whatever_the_default():
    keys = example_keys(0, 0, jnp.arange(BATCH))
    assert jax.eval_shape(make_augmentation((FULL,), image_size=SIZE, views=2), IMAGES, keys).dtype == jnp.float32
    draws = jax.eval_shape(functools.partial(sample_draws, spec=FULL, height=SIZE, width=SIZE), keys[0])
    assert {name: leaf.dtype.name for name, leaf in draws._asdict().items()} == {
        **dict.fromkeys(("box", "order"), "int32"),
        **dict.fromkeys(("jitter", "grey", "sigma", "threshold"), "float32"),
        "flip": "bool",
    }


def test_specs_take_turns():
    black, white = (
        dataclasses.replace(PRESETS["eval"](SIZE)[0], mean=(level,) * 3, std=(1.0,) * 3) for level in (0, 1)
    )
    got = views_of((black, white), views=3)
    np.testing.assert_array_equal(got[0], got[2])
    np.testing.assert_allclose(got[0] - got[1], 1, atol=1e-6)


def test_a_view_is_its_operations_in_order():
    spec = dataclasses.replace(FULL, jitter_p=1.0, blur_p=1.0, solarize_p=1.0)
    draws = sample_draws(jax.random.key(1), spec, height=SIZE, width=SIZE)
    draws = draws._replace(flip=jnp.array(True), grey=jnp.array(0.3))
    top, left, height, width = map(int, draws.box)
    image = ops.resample(
        IMAGES[0],
        ops.resample_taps(top, height, size=SIZE, out=SIZE, interpolation="bicubic"),
        ops.resample_taps(left, width, size=SIZE, out=SIZE, interpolation="bicubic"),
    )
    image = ops.flip(image, draws.flip)
    image = ops.color_jitter(image, draws.jitter, draws.order)
    image = ops.adjust_saturation(image, draws.grey)
    image = ops.gaussian_blur(image, draws.sigma, size=spec.blur_size)
    image = ops.solarize(image, draws.threshold)
    got = jax.jit(functools.partial(render_view, spec=spec, image_size=SIZE))(IMAGES[0], draws)
    np.testing.assert_allclose(got, np.asarray(image).transpose(1, 2, 0), atol=1e-6)


def test_images_cropped_already_are_not_cropped_again():
    spec = dataclasses.replace(PLAIN, flip_p=0.0)
    cropped = np.stack([IMAGES, IMAGES[::-1]], axis=1)
    np.testing.assert_allclose(views_of((spec,), images=cropped), cropped.swapaxes(0, 1) / 255, atol=1e-6)


# Presets


@pytest.mark.parametrize("image_size", [32, 64, 96, 224])
@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_valid_at_every_size(preset, image_size):
    augment = make_augmentation(preset, image_size=image_size, views=2)
    keys = example_keys(0, 0, jnp.arange(2))
    views = jax.eval_shape(augment, jax.ShapeDtypeStruct((2, image_size, image_size, 3), jnp.uint8), keys)
    assert views.shape == (2, 2, image_size, image_size, 3)
    assert views.dtype == jnp.float32


def test_simclr_at_32_pixels_is_the_published_cifar_recipe():
    (spec,) = PRESETS["simclr"](32)
    assert spec.jitter == (0.4, 0.4, 0.4, 0.1)
    assert (spec.crop.scale, spec.flip_p, spec.jitter_p, spec.grey_p) == ((0.08, 1.0), 0.5, 0.8, 0.2)
    assert (spec.blur_p, spec.solarize_p) == (0.0, 0.0)
    (large,) = PRESETS["simclr"](224)
    assert (large.jitter, large.blur_p, large.blur_size) == ((0.8, 0.8, 0.8, 0.2), 0.5, 23)


@pytest.mark.parametrize("preset", ["barlow", "byol"])
def test_barlow_and_byol_are_an_asymmetric_pair(preset):
    first, second = PRESETS[preset](96)
    assert (first.blur_p, second.blur_p) == (1.0, 0.1)
    assert (first.solarize_p, second.solarize_p) == (0.0, 0.2)
    assert first.jitter == second.jitter == (0.4, 0.4, 0.2, 0.1)


def test_cmc_gives_normalised_lab():
    got = views_of("cmc")
    assert np.abs(got).max() <= 1.001
    grey = np.repeat(IMAGES[..., :1], 3, axis=-1)
    lab = views_of("cmc", images=grey) * np.array(PRESETS["cmc"](SIZE)[0].std) + np.array(PRESETS["cmc"](SIZE)[0].mean)
    np.testing.assert_allclose(lab[..., 1:], 0, atol=0.05)  # a grey picture has no colour


# Evaluation


def test_eval_only_normalises_images_of_the_right_size():
    spec = PRESETS["eval"](SIZE)[0]
    expected = (IMAGES / 255 - np.array(spec.mean)) / np.array(spec.std)
    for step in (0, 1):
        np.testing.assert_allclose(views_of("eval", step=step, views=1)[0], expected, atol=2e-6)


@pytest.mark.parametrize(("height", "width", "image_size"), [(280, 250, 224), (40, 64, 32)])
def test_eval_resizes_the_shortest_side_and_cuts_the_middle_out(height, width, image_size):
    image = np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)
    shortest = {224: 256, 32: 32}[image_size]
    resized = (shortest * width // min(height, width), shortest * height // min(height, width))
    pillow = np.asarray(Image.fromarray(image).resize(resized, Image.Resampling.BILINEAR))
    top, left = ((side - image_size) // 2 for side in pillow.shape[:2])
    expected = pillow[top : top + image_size, left : left + image_size] / 255
    spec = PRESETS["eval"](image_size)[0]
    got = views_of("eval", views=1, image_size=image_size, images=image[None])[0, 0]
    np.testing.assert_allclose(got * np.array(spec.std) + np.array(spec.mean), expected, atol=1.5 / 255)


# Refusals


@pytest.mark.parametrize(
    ("preset", "sizes", "message"),
    [
        ("simclrr", {"image_size": 32, "views": 2}, "preset='simclrr'; expected one of 'simclr', 'barlow'"),
        ("simclr", {"image_size": 32, "views": 0}, "views=0; expected at least 1"),
        ("simclr", {"image_size": 0, "views": 2}, "image_size=0; expected at least 1"),
        ((), {"image_size": 32, "views": 2}, r"preset=\(\); expected at least one ViewSpec"),
    ],
)
def test_bad_arguments_are_refused(preset, sizes, message):
    with pytest.raises(ValueError, match=message):
        make_augmentation(preset, **sizes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flip_p": 1.5}, r"flip_p=1.5; expected a probability in \[0, 1\]"),
        ({"interpolation": "nearest"}, "interpolation='nearest'; expected one of 'bilinear', 'bicubic'"),
        ({"color_space": "hsv"}, "color_space='hsv'; expected 'rgb' or 'lab'"),
        ({"blur_size": 4}, "blur_size=4; expected an odd number below 64"),
        ({"crop": CenterCrop(shortest=16)}, "crop.shortest=16; expected at least image_size=32"),
    ],
)
def test_bad_specs_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        make_augmentation((dataclasses.replace(FULL, **change),), image_size=32, views=2)


@pytest.mark.parametrize(
    ("images", "keys", "error", "message"),
    [
        (IMAGES / 255, example_keys(0, 0, np.arange(BATCH)), TypeError, "images.dtype=float64; expected uint8"),
        (IMAGES[..., :1], example_keys(0, 0, np.arange(BATCH)), ValueError, r"images.shape=\(8, 32, 32, 1\)"),
        (IMAGES[0], example_keys(0, 0, np.arange(BATCH)), ValueError, r"images.shape=\(32, 32, 3\)"),
        (
            IMAGES,
            example_keys(0, 0, np.arange(4)),
            ValueError,
            r"keys.shape=\(4,\); expected one key per image, \(8,\)",
        ),
        (IMAGES, np.zeros((BATCH, 2), np.uint32), TypeError, "keys.dtype=uint32; expected keys from example_keys"),
    ],
)
def test_bad_batches_are_refused(images, keys, error, message):
    with pytest.raises(error, match=message):
        make_augmentation("simclr", image_size=SIZE, views=2)(images, keys)
