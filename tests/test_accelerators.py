"""What runs on accelerators lowers for each of them, without a call that only a CPU has."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import export
from jax.sharding import Mesh

from metamask_jax.augment import example_keys, make_augmentation
from metamask_jax.core.state import Pair
from metamask_jax.data.loader import Batch
from metamask_jax.evaluate import knn, minibatch_probe, probe
from metamask_jax.kernels import conv2d
from metamask_jax.methods.base import init_module
from metamask_jax.models import ProjectionHead
from metamask_jax.training.state import init_state
from metamask_jax.training.step import make_train_step
from tests.tiny import LENGTH, tiny_config

PLATFORMS = ["cuda", "rocm", "tpu"]
shaped = jax.ShapeDtypeStruct
Case = tuple[Callable[..., Any], Any]


def step(**overrides: str) -> Case:
    config = tiny_config({"encoder.name": "conv", "encoder.width": "0.0625", **overrides})
    places = shaped((16,), jnp.int32)
    batch = Batch(shaped((16, 32, 32, 3), jnp.uint8), places, places, places)
    pair = config.meta.estimator == "lookahead"
    state = jax.eval_shape(lambda: init_state(config))
    return make_train_step(config, **LENGTH), (state, Pair(batch, batch) if pair else batch)


def augmentation(preset: str) -> Case:
    augment = make_augmentation(preset, image_size=24, views=2)

    def views(seed: jax.Array, images: jax.Array) -> jax.Array:
        return augment(images, example_keys(seed, seed, jnp.arange(4)))

    return views, (shaped((), jnp.int32), shaped((4, 32, 32, 3), jnp.uint8))


def neighbors(metric: str) -> Case:
    def merged(best: knn.Neighbors, test: jax.Array, train: jax.Array, offset: jax.Array) -> knn.Neighbors:
        origin = jnp.zeros(8)
        rows = knn._train_factor.__wrapped__(metric, train, origin, offset)
        return knn._merge.__wrapped__(metric, False, best, test, rows, origin, offset)

    best = knn.Neighbors(shaped((4, 3), jnp.float32), shaped((4, 3), jnp.int32))
    return merged, (best, shaped((4, 8), jnp.float32), shaped((16, 8), jnp.float32), shaped((), jnp.int32))


def linear_probe() -> Case:
    fitted = probe.Linear(shaped((8, 3), jnp.float32), shaped((3,), jnp.float32))
    rows = shaped((16, 8), jnp.float32), shaped((16,), jnp.int32), shaped((16,), jnp.float32)
    _, add, _ = probe.sums(one_device())
    found = shaped((1,), jnp.float32), probe.Linear(shaped((1, 8, 3), jnp.float32), shaped((1, 3), jnp.float32))
    return add, (found, fitted, *rows)


def network_probe() -> Case:
    optimizer = minibatch_probe.momentum(1e-4)
    layers = jax.eval_shape(lambda: minibatch_probe._init(jax.random.key(0), (8, 5, 3)))
    candidates = jax.tree.map(lambda leaf: shaped((2, *leaf.shape), leaf.dtype), layers)
    state = candidates, jax.eval_shape(jax.vmap(optimizer.init), candidates)
    data = shaped((4, 16, 8), jnp.float32), shaped((4, 16), jnp.int32), shaped((4,), jnp.float32)
    settings = shaped((2, 8), jnp.float32), shaped((2,), jnp.float32), shaped((2, 4, 16), jnp.bool_)
    return minibatch_probe.train_steps(one_device(), optimizer), (state, *settings, *data)


def one_device() -> Mesh:
    return Mesh(np.array(jax.devices()[:1]), (probe.AXIS,))


def head() -> Case:
    module = ProjectionHead(widths=(8, 4), last_norm=True, dtype="bfloat16", axis_name=None)
    params, stats = init_module(module, jax.random.key(0), 2, 12)

    def loss(params: Any, h: jax.Array) -> jax.Array:
        z, _ = module.apply({"params": params, "batch_stats": stats}, h, train=True, mutable=["batch_stats"])
        return jnp.sum(optax.losses.l2_loss(z))

    return jax.grad(loss), (params, shaped((4, 12), jnp.float32))


CASES: dict[str, Callable[[], Case]] = {
    "joint step": partial(step, **{"mask.learn": "False", "train.dtype": "bfloat16"}),
    "exact step": step,
    "lookahead step": partial(step, **{"meta.estimator": "lookahead"}),
    # Every pixel operation is in one of these.
    **{f"augmentation {preset}": partial(augmentation, preset) for preset in ("barlow", "cmc")},
    **{f"nearest neighbours, {metric}": partial(neighbors, metric) for metric in knn.METRICS},
    "linear probe": linear_probe,
    "network probe": network_probe,
    "projection head": head,
}


@pytest.mark.parametrize("case", CASES)
def test_lowers_for_every_accelerator(case: str) -> None:
    """`export` itself refuses a call that is not known to be stable, such as one into a library of this process."""
    function, arguments = CASES[case]()
    exported = export.export(jax.jit(function), platforms=PLATFORMS)(*arguments)
    assert exported.platforms == tuple(PLATFORMS)


@pytest.mark.parametrize("precision", ["high", "highest"])
def test_convolutions_keep_the_precision_they_were_called_with(precision: str) -> None:
    """Ours are lowered after the `with` around them has ended; their derivatives have it too."""

    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        with jax.default_matmul_precision(precision):
            return jnp.sum(conv2d(x, w, strides=(1, 1), padding="SAME") ** 2)

    arrays = shaped((2, 8, 8, 4), jnp.float32), shaped((3, 3, 4, 4), jnp.float32)
    program = export.export(jax.jit(jax.grad(loss, (0, 1))), platforms=["tpu"])(*arrays).mlir_module()
    convolutions = [line for line in program.splitlines() if "stablehlo.convolution" in line]
    assert len(convolutions) == 3
    assert all(f"precision {precision.upper()}>" in line for line in convolutions)


def test_a_step_multiplies_in_the_precision_of_its_configuration() -> None:
    """All but the losses, which always multiply in the highest."""

    def used(precision: str) -> set[str]:
        function, arguments = step(**{"train.precision": precision, "mask.learn": "False", "encoder.name": "tiny"})
        return set(re.findall(r"precision=\(Precision\.(\w+),", str(jax.make_jaxpr(function)(*arguments))))

    assert used("default") == {"DEFAULT", "HIGHEST"}
    assert used("high") == {"HIGH", "HIGHEST"}
    assert used("highest") == {"HIGHEST"}
