"""What training asks of the modules: synchronised BatchNorm, evaluation mode, bfloat16 and second derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from metamask_jax.models import AlexNet, ProjectionHead, ResNet, predictor

PLAIN = {"dtype": "float32", "axis_name": None}


def tiny(name: str, **changes: object) -> nn.Module:
    """A network of each kind, small enough to differentiate twice."""
    common = PLAIN | changes
    if name == "resnet":
        return ResNet(blocks=(1, 1), bottleneck=False, width=1 / 16, stem="cifar", **common)
    if name == "bottleneck":
        return ResNet(blocks=(1, 1), bottleneck=True, width=1 / 32, stem="imagenet", **common)
    if name == "fc":
        return AlexNet(with_dense=True, width=1 / 64, stem="cifar", image_size=32, **common)
    return ProjectionHead(widths=(6, 5), last_norm=True, **common)


SHAPES = {"resnet": (6, 5, 3), "bottleneck": (9, 8, 3), "fc": (32, 32, 3), "head": (7,)}


def images(name: str, batch: int) -> jax.Array:
    # A mean far from zero: statistics that are averaged wrongly show.
    return jnp.asarray(np.random.default_rng(0).normal(1.0, 2.0, size=(batch, *SHAPES[name])))


def trained(module: nn.Module, x: jax.Array, dtype: str = "float32") -> dict:
    """Variables as after some training: no scale, bias or statistic at its initial one or zero."""
    rng = np.random.default_rng(1)

    def fill(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if leaf.ndim == 1:
            return jnp.asarray(rng.uniform(0.5, 1.5, size=leaf.shape), dtype)
        return jnp.asarray(rng.normal(size=leaf.shape) / np.sqrt(np.prod(leaf.shape[:-1])), dtype)

    return jax.tree.map(fill, jax.eval_shape(lambda x: module.init(jax.random.key(0), x, train=False), x))


def step(module: nn.Module, variables: dict, x: jax.Array, target: jax.Array) -> tuple:
    """Output, gradient and new statistics of one training step on a batch mean."""

    def loss(params: dict) -> tuple:
        y, updates = module.apply(variables | {"params": params}, x, train=True, mutable=["batch_stats"])
        return jnp.mean(jnp.sum((y - target) ** 2, axis=-1)), (y, updates["batch_stats"])

    gradient, (y, statistics) = jax.grad(loss, has_aux=True)(variables["params"])
    return y, gradient, statistics


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [("resnet", "float64", 1e-12), ("fc", "float64", 1e-12), ("head", "float64", 1e-12), ("resnet", "float32", 1e-5)],
)
def test_synchronised_devices_equal_the_whole_batch(name: str, dtype: str, tolerance: float) -> None:
    x = images(name, 8).astype(dtype)
    whole, synced = tiny(name, dtype=dtype), tiny(name, dtype=dtype, axis_name="device")
    variables = trained(whole, x, dtype)
    target = jnp.asarray(np.random.default_rng(2).normal(size=(8, whole.features)), dtype)

    def device_step(variables: dict, x: jax.Array, target: jax.Array) -> tuple:
        y, gradient, statistics = step(synced, variables, x, target)
        return y, jax.lax.pmean(gradient, "device"), statistics

    split = lambda a: a.reshape(4, 2, *a.shape[1:])  # noqa: E731
    mapped = jax.pmap(device_step, axis_name="device", in_axes=(None, 0, 0), out_axes=(0, None, None))
    y, *rest = mapped(variables, split(x), split(target))
    expected = jax.jit(lambda *args: step(whole, *args))(variables, x, target)
    for actual, wanted in zip(*jax.device_get(((y.reshape(8, -1), *rest), expected)), strict=True):
        # Against the largest entry of output, gradient or statistics: a bias that BatchNorm cancels has gradient zero.
        largest = max(abs(leaf).max() for leaf in jax.tree.leaves(wanted))
        error = jax.tree.map(lambda a, w: abs(a - w).max(), actual, wanted)
        assert max(jax.tree.leaves(error)) <= tolerance * largest


def test_running_statistics_move_a_tenth_towards_the_batch() -> None:
    x = images("head", 16)
    module = ProjectionHead(widths=(5,), last_norm=True, **PLAIN)
    variables = trained(module, x)
    _, updates = module.apply(variables, x, train=True, mutable=["batch_stats"])
    linear = variables["params"]["fc1"]
    z = np.asarray(x, np.float64) @ np.asarray(linear["kernel"], np.float64) + np.asarray(linear["bias"])
    before, after = variables["batch_stats"]["bn1"], updates["batch_stats"]["bn1"]
    np.testing.assert_allclose(after["mean"], 0.9 * before["mean"] + 0.1 * z.mean(0), rtol=1e-5)
    np.testing.assert_allclose(after["var"], 0.9 * before["var"] + 0.1 * z.var(0), rtol=1e-5)


@pytest.mark.parametrize("name", ["resnet", "fc"])
def test_evaluation_treats_each_image_alone(name: str) -> None:
    module, x = tiny(name), images(name, 6).astype(jnp.float32)
    variables = trained(module, x)
    apply = jax.jit(lambda x: module.apply(variables, x, train=False))
    together, alone = apply(x), jnp.concatenate([apply(x[i : i + 1]) for i in range(6)])
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(together, apply(x))
    assert together.std(0).max() > 1e-3  # and does tell images apart


@pytest.mark.parametrize("name", ["resnet", "fc"])
def test_bfloat16_computes_short_and_keeps_float32(name: str) -> None:
    x = images(name, 8).astype(jnp.float32)
    variables = trained(tiny(name), x)
    run = lambda dtype: jax.jit(  # noqa: E731
        lambda: tiny(name, dtype=dtype).apply(variables, x, train=True, mutable=["batch_stats"])
    )()
    (short, updates), (exact, _) = run("bfloat16"), run("float32")
    error = jnp.linalg.norm(short - exact) / jnp.linalg.norm(exact)
    assert 1e-4 < error < 0.05
    assert {leaf.dtype for leaf in jax.tree.leaves((short, updates))} == {jnp.dtype("float32")}
    init = jax.eval_shape(lambda: tiny(name, dtype="bfloat16").init(jax.random.key(0), x, train=True))
    assert {leaf.dtype for leaf in jax.tree.leaves(init)} == {jnp.dtype("float32")}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", SHAPES)
def test_second_derivative_equals_differences_of_the_first(name: str) -> None:
    module, x = tiny(name, dtype="float64"), images(name, 4)
    variables = trained(module, x, "float64")
    rng = np.random.default_rng(3)
    direction = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), variables["params"])
    target = jnp.asarray(rng.normal(size=(4, module.features)))
    along = lambda params: sum(jax.tree.leaves(jax.tree.map(jnp.vdot, params, direction)))  # noqa: E731

    def slope(params: dict) -> jax.Array:
        return along(step(module, variables | {"params": params}, x, target)[1])

    @jax.jit
    def both(size: float) -> tuple[jax.Array, jax.Array]:
        shifted = lambda shift: jax.tree.map(lambda p, d: p + shift * d, variables["params"], direction)  # noqa: E731
        # Mapped: the gradient is compiled once for both.
        after, before = jax.lax.map(lambda shift: slope(shifted(shift)), jnp.array([size, -size]))
        return along(jax.grad(slope)(variables["params"])), (after - before) / (2 * size)

    exact, difference = both(1e-6)
    assert abs(exact) > 1e-3
    np.testing.assert_allclose(exact, difference, rtol=1e-5)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["resnet", "fc"])
def test_rematerialised_blocks_keep_less_and_change_nothing(name: str) -> None:
    plain, x = tiny(name, dtype="float64"), images(name, 4)
    variables = trained(plain, x, "float64")
    target = jnp.asarray(np.random.default_rng(3).normal(size=(4, plain.features)))

    def kept(module: nn.Module) -> int:
        """Bytes that wait for the backward pass."""

        def loss(params: dict) -> jax.Array:
            return jnp.sum(module.apply(variables | {"params": params}, x, train=True, mutable=["batch_stats"])[0])

        residuals = jax.eval_shape(lambda params: jax.vjp(loss, params)[1], variables["params"])
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(residuals))

    remat = plain.clone(remat=True)
    assert kept(remat) < 0.7 * kept(plain)
    actual, expected = (jax.jit(lambda v, m=m: step(m, v, x, target))(variables) for m in (remat, plain))
    jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, rtol=1e-10, atol=1e-12), actual, expected)


def test_predictor_ends_in_a_bare_linear_layer() -> None:
    module = predictor(hidden=4, out=3, **PLAIN)
    variables = trained(module, jnp.ones((2, 5)))
    assert {part: set(layer) for part, layer in variables["params"].items()} == {
        "fc1": {"kernel", "bias"},
        "bn1": {"scale", "bias"},
        "fc2": {"kernel", "bias"},
    }
    # No ReLU and no BatchNorm at the end: adding to the last bias adds to the output.
    moved = jax.tree.map(lambda a: a, variables)
    moved["params"]["fc2"]["bias"] = moved["params"]["fc2"]["bias"] - 9.0
    before, after = (module.apply(v, jnp.ones((2, 5)), train=False) for v in (variables, moved))
    np.testing.assert_allclose(after, before - 9.0, rtol=1e-5)
