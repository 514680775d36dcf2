"""Encoders: parameter counts, shapes, BatchNorm's conventions, precision, derivatives and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metamask_jax.models import (
    Encoder,
    ProjectionHead,
    ResNet,
    count_parameters,
    make_encoder,
)
from metamask_jax.training.registry import REGISTRY
from tests.tiny import register

NAMES = ("conv", "fc", "resnet18", "resnet34", "resnet50")
HEAD = {"last_norm": True, "dtype": "float32", "axis_name": None}


def encoder(name: str, **changes: object) -> Encoder:
    settings = {"width": 1 / 16, "stem": "cifar", "image_size": 32, "dtype": "float32", "axis_name": None}
    return make_encoder(name, **(settings | changes))


def parameters(module: Encoder | ProjectionHead, *shape: int) -> dict:
    """Shapes of the parameters, without computing any."""
    return jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.zeros(shape), train=True))["params"]


def count(module: Encoder | ProjectionHead, *shape: int) -> int:
    return sum(count_parameters(parameters(module, *shape)).values())


# Sums of kernel and BatchNorm sizes of the reference architectures, without the classifier.
COUNTS = [
    ("resnet18", "cifar", 32, 11_168_832),
    ("resnet18", "imagenet", 64, 11_176_512),
    ("resnet34", "imagenet", 64, 21_284_672),
    ("resnet50", "imagenet", 224, 23_508_032),
    ("conv", "imagenet", 224, 3_748_576),
    ("fc", "imagenet", 224, 3_748_576 + (9216 + 4096) * 4096 + 2 * 3 * 4096),
]


@pytest.mark.parametrize(("name", "stem", "size", "expected"), COUNTS)
def test_encoder_has_the_parameters_of_its_reference(name: str, stem: str, size: int, expected: int) -> None:
    assert count(encoder(name, width=1, stem=stem, image_size=size), 1, size, size, 3) == expected


def kernels(init: str | None) -> dict[str, np.ndarray]:
    module = encoder("resnet18", width=1 / 4, init=init)
    params = module.init(jax.random.key(0), jnp.zeros((1, 8, 8, 3)), train=False)["params"]
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return {"/".join(key.key for key in path[:-1]): np.asarray(leaf) for path, leaf in leaves if leaf.ndim == 4}


def test_convolutions_start_as_hes_or_pytorchs() -> None:
    he, torch, own = map(kernels, ("he", "torch", None))
    for name, kernel in torch.items():
        window, _, channels, out = kernel.shape
        assert np.abs(kernel).max() <= 1 / np.sqrt(window**2 * channels)  # uniform up to PyTorch's bound
        ratio = np.std(he[name]) / np.std(kernel)  # of sqrt(2 / fan_out) to sqrt(1 / 3 / fan_in)
        np.testing.assert_allclose(ratio, np.sqrt(6 * channels / out), rtol=4 / np.sqrt(kernel.size))
        np.testing.assert_array_equal(own[name], he[name])


def test_an_unknown_initialisation_and_one_that_cannot_be_chosen_are_refused() -> None:
    with pytest.raises(ValueError, match=r"init='zeros'; expected one of 'he', 'torch', or None"):
        encoder("conv", init="zeros")
    with pytest.raises(ValueError, match=r"init='torch'; expected None for 'tiny', which has only its own init"):
        encoder("tiny", init="torch", encoders=register(REGISTRY).encoders)
    assert encoder("conv", init="he").initializer == "he"


def test_metamask_of_the_paper_has_no_dead_weights() -> None:
    params = {
        "encoder": parameters(encoder("resnet18", width=1), 1, 32, 32, 3),
        "drr_head": parameters(ProjectionHead(widths=(2048, 2048, 2048), **HEAD), 2, 512),
        "contrast_head": parameters(ProjectionHead(widths=(2048, 256), **HEAD), 2, 512),
        "mask": jnp.zeros(512),
    }
    expected = {"encoder": 11_168_832, "drr_head": 9_455_616, "contrast_head": 1_579_776, "mask": 512}
    assert count_parameters(params) == expected


@pytest.mark.parametrize("size", [32, 64, 96, 224])
@pytest.mark.parametrize("name", NAMES)
def test_every_encoder_takes_every_image_size(name: str, size: int) -> None:
    for stem in ("cifar", "imagenet"):
        if stem == "imagenet" and size == 32 and name in ("conv", "fc"):
            continue
        module = encoder(name, width=0.5, stem=stem, image_size=size)
        features, updates = jax.eval_shape(
            lambda module=module: module.init_with_output(jax.random.key(0), jnp.zeros((2, size, size, 3)), train=True)
        )
        assert features == jax.ShapeDtypeStruct((2, module.features), jnp.float32)
        assert set(updates) == {"params", "batch_stats"}


@pytest.mark.parametrize(
    ("name", "features"), [("conv", 256), ("fc", 4096), ("resnet18", 512), ("resnet34", 512), ("resnet50", 2048)]
)
def test_features_names_the_length_of_the_representation(name: str, features: int) -> None:
    assert encoder(name, width=1).features == features
    assert encoder(name, width=0.5).features == features // 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("channels", [1, 2])
def test_number_of_image_channels_is_free(name: str, channels: int) -> None:
    assert parameters(encoder(name), 1, 32, 32, channels)["conv1"]["kernel"].shape[2] == channels


def test_small_images_keep_their_pixels_until_the_first_pool() -> None:
    for size, window in [(32, 3), (64, 5), (96, 7)]:
        kernel = parameters(encoder("conv", image_size=size), 1, size, size, 3)["conv1"]["kernel"]
        dense = parameters(encoder("fc", image_size=size), 1, size, size, 3)["fc6"]["kernel"]
        assert kernel.shape[:2] == (window, window)
        assert dense.shape[0] == 3 * 3 * 16  # 32x32 after the first convolution, 3x3 after three pools


def test_resnet_names_are_those_of_torchvision() -> None:
    params = parameters(encoder("resnet50", stem="imagenet", image_size=64), 1, 64, 64, 3)
    paths = jax.tree_util.tree_flatten_with_path(params)[0]
    names = {".".join(entry.key for entry in path).replace("_", ".") for path, _ in paths}
    assert {"conv1.kernel", "bn1.scale", "layer1.0.downsample.0.kernel", "layer4.2.conv3.kernel"} <= names
    assert "layer1.1.downsample.0.kernel" not in names
    assert params["layer2_0"]["conv2"]["kernel"].shape == (3, 3, 8, 8)


def test_residual_convolutions_start_with_hes_fan_out_variance() -> None:
    module = ResNet(blocks=(1,), bottleneck=False, width=1, stem="cifar", dtype="float32", axis_name=None)
    params = jax.jit(lambda: module.init(jax.random.key(0), jnp.zeros((1, 4, 4, 3)), train=False))()["params"]
    kernel = params["conv1"]["kernel"]  # fan-in 27, fan-out 576
    np.testing.assert_allclose(kernel.std(), np.sqrt(2 / (3 * 3 * 64)), rtol=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "resnet19"}, "name='resnet19'; expected one of 'conv', 'fc', 'resnet18'"),
        ({"stem": "cifar10"}, "stem='cifar10'; expected one of 'cifar', 'imagenet'"),
        ({"width": 0}, "width=0; expected a positive number"),
        ({"width": -0.5}, "width=-0.5; expected a positive number"),
        ({"image_size": 0}, "image_size=0; expected a whole number >= 1"),
        ({"name": "fc", "image_size": 14}, "image_size=14; expected at least 15 for 'fc'"),
        ({"name": "conv", "stem": "imagenet"}, "image_size=32; expected at least 63 for 'conv'"),
    ],
)
def test_bad_arguments_are_named(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encoder(**({"name": "resnet18"} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": "1"}, "width='1'; expected a positive number"),
        ({"image_size": "32"}, "image_size='32'; expected a whole number >= 1"),
        ({"image_size": 32.0}, "image_size=32.0; expected a whole number >= 1"),
    ],
)
def test_what_is_no_number_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        encoder(**({"name": "resnet18"} | changes))


@pytest.mark.parametrize(
    ("name", "stem", "size"), [("fc", "cifar", 15), ("fc", "imagenet", 63), ("resnet18", "cifar", 1)]
)
def test_smallest_allowed_image_is_encoded(name: str, stem: str, size: int) -> None:
    module = encoder(name, stem=stem, image_size=size)
    x = jnp.zeros((2, size, size, 3))
    features = jax.eval_shape(lambda: module.init_with_output(jax.random.key(0), x, train=True))[0]
    assert features.shape == (2, module.features)
    assert jax.tree.reduce(min, jax.tree.map(lambda leaf: leaf.size, parameters(module, *x.shape))) > 0


def test_alexnet_refuses_images_of_another_size() -> None:
    with pytest.raises(ValueError, match=r"x.shape=\(1, 64, 64, 3\); expected images of 32x32"):
        parameters(encoder("conv"), 1, 64, 64, 3)
