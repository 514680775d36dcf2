"""BatchNorm beside Flax's, and modules mapped over views."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from metamask_jax.methods.base import apply_views
from metamask_jax.models import ProjectionHead
from metamask_jax.models.layers import BatchNorm


def pair(*, train: bool, dtype: str = "float64") -> tuple[nn.Module, nn.Module]:
    settings = {"momentum": 0.9, "epsilon": 1e-5, "use_fast_variance": False, "use_running_average": not train}
    return BatchNorm(train=train, dtype=dtype, axis_name=None), nn.BatchNorm(dtype=dtype, **settings)


def variables(channels: int) -> dict:
    rng = np.random.default_rng(0)
    scale, bias, mean, var = jnp.asarray(rng.uniform(0.5, 1.5, size=(4, channels)))
    return {"params": {"scale": scale, "bias": bias}, "batch_stats": {"mean": mean, "var": var}}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("shape", [(6, 4, 2, 16), (48, 5)], ids=str)
def test_equals_flaxs(shape: tuple[int, ...], train: bool) -> None:
    x = jnp.asarray(np.random.default_rng(1).normal(2.0, 3.0, size=shape))

    def run(module: nn.Module) -> tuple:
        def loss(params: dict, x: jax.Array) -> tuple:
            start = variables(shape[-1]) | {"params": params}
            y, updated = module.apply(start, x, mutable=["batch_stats"])
            return jnp.sum(jnp.sin(y)), (y, updated)

        return jax.grad(loss, (0, 1), has_aux=True)(variables(shape[-1])["params"], x)

    found, expected = map(run, pair(train=train))
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_starts_as_flaxs_and_leaves_the_running_statistics_at_their_start() -> None:
    x = 3.0 + jnp.arange(32.0).reshape(8, 4)
    found, expected = (module.init(jax.random.key(0), x) for module in pair(train=True, dtype="float32"))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_bfloat16_comes_out_as_such_but_statistics_in_float32() -> None:
    x = jnp.asarray(np.random.default_rng(1).normal(100.0, 1.0, size=(64, 16)), "bfloat16")
    outputs = []
    for module in pair(train=True, dtype="bfloat16"):
        start = jax.tree.map(lambda leaf: leaf.astype("float32"), variables(16))
        y, updated = module.apply(start, x, mutable=["batch_stats"])
        assert y.dtype == jnp.bfloat16
        assert {leaf.dtype for leaf in jax.tree.leaves(updated)} == {jnp.dtype("float32")}
        outputs.append(y.astype("float32"))
    np.testing.assert_allclose(*outputs, rtol=2**-7, atol=2**-7)


@pytest.mark.usefixtures("x64")
def test_views_at_once_equal_views_one_after_another() -> None:
    head = ProjectionHead(widths=(16, 6), last_norm=True, dtype="float64", axis_name=None)
    rng = np.random.default_rng(2)
    views = jnp.asarray(rng.normal(1.0, 2.0, size=(3, 32, 7)))
    fresh = head.init(jax.random.key(0), views[0], train=True)
    start = jax.tree.map(lambda leaf: jnp.asarray(rng.uniform(0.5, 1.5, size=leaf.shape)), fresh)
    found, stats = apply_views(head, start["params"], start["batch_stats"], views)
    expected, running = [], start["batch_stats"]
    for view in views:
        y, updated = head.apply(
            {"params": start["params"], "batch_stats": running}, view, train=True, mutable=["batch_stats"]
        )
        running = updated["batch_stats"]
        expected.append(y)
    np.testing.assert_allclose(found, jnp.stack(expected), rtol=1e-11, atol=1e-13)
    for a, b in zip(jax.tree.leaves(stats), jax.tree.leaves(running), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("devices", [2, 4])
def test_on_several_devices_it_has_the_moments_of_the_whole_batch(devices: int) -> None:
    """Values and derivatives up to the second, although each of them takes one exchange only."""
    x = jnp.asarray(np.random.default_rng(3).normal(2.0, 3.0, size=(8, 3, 5)))
    start = variables(5)

    def loss(x: jax.Array, axis_name: str | None) -> jax.Array:
        module = BatchNorm(train=True, dtype="float64", axis_name=axis_name)
        y, updated = module.apply(start, x, mutable=["batch_stats"])
        return jnp.sum(jnp.sin(y)), (y, updated)

    def results(x: jax.Array, axis_name: str | None) -> tuple:
        def slope(x: jax.Array) -> jax.Array:
            def total(x: jax.Array) -> jax.Array:
                value, _ = loss(x, axis_name)
                return value if axis_name is None else jax.lax.psum(value, axis_name) / devices

            return jax.grad(total)(x)

        gradient, push = jax.jvp(slope, (x,), (jnp.cos(x),))
        return *loss(x, axis_name)[1], gradient, push

    y, updated, *derivatives = jax.jit(lambda x: results(x, None))(x)
    shares = x.reshape(devices, -1, *x.shape[1:])
    found, running, *slopes = jax.pmap(lambda x: results(x, "d"), axis_name="d")(shares)
    np.testing.assert_allclose(found.reshape(x.shape), y, rtol=1e-11, atol=1e-13)
    for a, b in zip(jax.tree.leaves(running), jax.tree.leaves(updated), strict=True):
        np.testing.assert_allclose(a, np.broadcast_to(b, a.shape), rtol=1e-12)
    for a, b in zip(slopes, derivatives, strict=True):
        np.testing.assert_allclose(a.reshape(x.shape), b, rtol=1e-9, atol=1e-12)


def test_constant_channels_on_three_devices_have_no_negative_variance() -> None:
    x = jnp.broadcast_to(jnp.linspace(100.0, 1000.0, 64), (3, 4, 64))
    module = BatchNorm(train=True, dtype="float32", axis_name="d")
    run = jax.pmap(lambda x: module.apply(variables(64), x, mutable=["batch_stats"]), axis_name="d")
    y, _ = run(x)
    assert np.all(np.isfinite(y))


@pytest.mark.parametrize(("order", "exchanges"), [(0, 1), (1, 2), (2, 4)])
def test_a_layer_takes_one_exchange_for_its_statistics_and_one_for_each_derivative(order: int, exchanges: int) -> None:
    module = BatchNorm(train=True, dtype="float32", axis_name="d")

    def loss(scale: jax.Array, x: jax.Array) -> jax.Array:
        start = {"params": {"scale": scale, "bias": scale}, "batch_stats": {"mean": 0 * scale, "var": scale}}
        return jnp.sum(jnp.sin(module.apply(start, x, mutable=["batch_stats"])[0]))

    functions = (loss, jax.grad(loss, 1), jax.grad(lambda *arguments: jnp.sum(jax.grad(loss, 1)(*arguments) ** 2), 1))
    run = jax.pmap(functions[order], axis_name="d", in_axes=(None, 0))
    assert run.lower(jnp.ones(5), jnp.ones((2, 8, 5))).as_text().count("stablehlo.all_reduce") == exchanges
