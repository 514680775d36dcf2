"""Encoders: parameter counts, shapes, BatchNorm's conventions, precision, derivatives and errors."""

import jax
import jax.numpy as jnp
import pytest

from metamask_jax.models import Encoder, ProjectionHead, count_parameters, make_encoder

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
