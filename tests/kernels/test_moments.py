"""Mean, variance and BatchNorm's other sums: values, derivatives of any order, and the native kernels."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from metamask_jax.kernels import cpu_kernels
from metamask_jax.kernels.moments import _plain_moments, moments, spread, sums_p

# Channels that fill vector registers, of which kernels take four at a time, and channels that do so in several rows.
CHANNELS = (16, 80, 6)


def plain(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """BatchNorm as its equation has it."""
    axes = tuple(range(x.ndim - 1))
    mean = x.mean(axes)
    return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(axes) + 1e-5) * scale + bias


def ours(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    mean, variance = moments(x, jnp.zeros(x.shape[-1]))
    return spread(x, mean, bias, scale / jnp.sqrt(variance + 1e-5))


def inputs(channels: int, dtype: str = "float64") -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    shapes = ((5, 4, 8, channels), (channels,), (channels,))
    return tuple(jnp.asarray(rng.normal(1.0, 2.0, size=shape), dtype) for shape in shapes)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("channels", CHANNELS)
def test_moments_are_numpys(channels: int) -> None:
    x, near, _ = inputs(channels)
    mean, variance = jax.jit(moments)(x, near)
    np.testing.assert_allclose(mean, np.mean(x, (0, 1, 2)), rtol=1e-13)
    np.testing.assert_allclose(variance, np.var(x, (0, 1, 2)), rtol=1e-13)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("channels", CHANNELS)
def test_first_and_second_derivatives_are_those_of_the_equation(channels: int) -> None:
    arguments = inputs(channels)

    def second(norm, arguments):
        gradient = jax.grad(lambda arguments: jnp.sum(jnp.sin(norm(*arguments)) ** 2))
        value, slope = jax.value_and_grad(lambda a: sum(jnp.sum(jnp.cos(g)) for g in gradient(a)))(arguments)
        return gradient(arguments), value, slope

    found, expected = (jax.jit(partial(second, norm))(arguments) for norm in (ours, plain))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert float(jnp.abs(a - b).max() / jnp.abs(b).max()) < 1e-11


@pytest.mark.usefixtures("x64")
def test_forward_and_reverse_mode_agree_with_differences_to_the_third_order() -> None:
    x, scale, bias = inputs(2)
    norm = jax.jit(lambda *arguments: jnp.sin(ours(*arguments)))  # one program per derivative, not one per operation
    check_grads(norm, (x[:2, :2, :3], scale, bias), order=3)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("channels", CHANNELS)
def test_mapped_over_views_each_has_its_own_moments(channels: int) -> None:
    x, scale, bias = inputs(channels)
    views = jnp.stack([x, 3 * x - 1, x**2])

    def loss(norm, views, scale, bias):
        return jnp.sum(jnp.sin(jax.vmap(norm, (0, None, None))(views, scale, bias)))

    found, expected = (jax.jit(jax.grad(partial(loss, norm), (0, 1, 2)))(views, scale, bias) for norm in (ours, plain))
    for a, b in zip(found, expected, strict=True):
        assert float(jnp.abs(a - b).max() / jnp.abs(b).max()) < 1e-11


@pytest.mark.parametrize(("distance", "error"), [(0.0, 1e-6), (0.1, 1e-6), (1.0, 1e-6), (30.0, 1e-3)])
def test_accelerators_lose_the_digits_of_the_distance_to_where_the_mean_was_expected(distance, error) -> None:
    """Their one-pass form, of numbers whose mean is a thousand deviations from zero."""
    x = np.random.default_rng(0).normal(1000.0, 1.0, size=(1, 4096, 16)).astype("float32")
    exact = x.astype("float64")
    near = jnp.asarray(exact.mean(1) + distance, "float32")
    mean, variance = jax.jit(_plain_moments)(jnp.asarray(x), near)
    np.testing.assert_allclose(mean, exact.mean(1), rtol=1e-6)
    np.testing.assert_allclose(variance, exact.var(1), rtol=error)


def test_accelerators_give_constants_no_negative_variance() -> None:
    x = jnp.full((1, 1000, 3), jnp.array([0.1, 1e3, 3e-8]))
    _, variance = jax.jit(_plain_moments)(x, jnp.zeros((1, 3)))
    assert np.all(np.asarray(variance) >= 0)


@pytest.mark.parametrize("channels", CHANNELS)
def test_a_mean_far_from_zero_costs_no_digits(channels: int) -> None:
    x, scale, bias = inputs(channels, "float32")
    x = (x.round(3) + 1000.0).astype("float32")
    exact = np.asarray(x, "float64")
    _, variance = jax.jit(moments)(x, jnp.zeros(channels))
    np.testing.assert_allclose(variance, np.var(exact, (0, 1, 2)), rtol=1e-5)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(ours(x, scale, bias)))))(x)
    with jax.enable_x64(True):
        wide = (jnp.asarray(array, "float64") for array in (scale, bias))
        slope = jax.jit(jax.grad(lambda x, *others: jnp.sum(jnp.sin(plain(x, *others)))))
        expected = slope(jnp.asarray(exact), *wide)
    difference = np.asarray(gradient) - np.asarray(expected)
    assert np.abs(difference).max() / np.abs(expected).max() < 1e-3


def test_results_in_float32_and_their_sums_by_native_kernels() -> None:
    x, scale, bias = inputs(64, "float32")
    text = jax.jit(jax.grad(lambda x: jnp.sum(ours(x, scale, bias) ** 2))).lower(x).as_text()
    assert ("@metamask_jax.kernels.native.moments" in text) == cpu_kernels.has_native()
    mean, variance = moments(x, bias)
    assert mean.dtype == variance.dtype == ours(x, scale, bias).dtype == jnp.float32


native = pytest.mark.skipif(
    not cpu_kernels.has_native(), reason="native kernels need llvmlite and a processor with AVX2 or AVX-512"
)


@native
@pytest.mark.usefixtures("x64")
def test_shorter_vector_registers_and_any_number_of_cores_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from metamask_jax.kernels.native import ffi
    from metamask_jax.kernels.native.emit import Machine

    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.normal(size=(2, 520, 80))) for _ in range(2))
    centre = x.mean(1)

    def found() -> list[np.ndarray]:
        from metamask_jax.kernels.native.moments import moments, sums

        return [np.asarray(array) for array in (*moments(x, centre), *sums(x, centre, y))]

    first = found()
    expected = [x.mean(1), x.var(1), y.sum(1), ((x - centre[:, None]) * y).sum(1)]
    for a, b in zip(first, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)
    for cores in (1, 3):
        monkeypatch.setattr(ffi, "cores", lambda cores=cores: cores)
        for a, b in zip(found(), first, strict=True):
            np.testing.assert_array_equal(a, b)
    monkeypatch.setattr(ffi, "machine", lambda: Machine(bits=256, sums=12, vectors=2))
    for a, b in zip(found(), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


@native
def test_a_number_of_rows_without_divisors_runs_on_xlas_sums() -> None:
    x, y = jnp.ones((1, 521, 16)), jnp.full((1, 521, 16), 2.0)
    total, product = sums_p.bind(x, jnp.zeros((1, 16)), y)
    assert float(total[0, 0]) == float(product[0, 0]) == 1042.0
    assert "native" not in jax.jit(sums_p.bind).lower(x, jnp.zeros((1, 16)), y).as_text()
