"""Max-pooling against Flax's, in value and derivatives."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from metamask_jax.kernels import max_pool
from metamask_jax.kernels.pool import by_choice, by_xla
from metamask_jax.kernels.switch import has_native

native = pytest.mark.skipif(
    not has_native(), reason="native kernels need llvmlite and a processor with AVX2 or AVX-512"
)
both_forms = pytest.mark.parametrize("pool", [by_choice, by_xla])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kernels", [pytest.param("native", marks=native), "xla"])
@pytest.mark.parametrize(("size", "channels"), [(8, 3), (9, 16), (11, 21)])  # no vector of channels, whole ones, both
@pytest.mark.parametrize(("window", "stride", "padding"), [(3, 2, 0), (3, 2, 1), (2, 2, 0), (3, 1, 1), (2, 3, 0)])
def test_equals_flax_in_value_and_two_derivatives(
    window: int, stride: int, padding: int, size: int, channels: int, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAMASK_KERNELS", kernels)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, size, size + 1, channels)))

    def ours(x: jax.Array) -> jax.Array:
        return max_pool(x, window=window, stride=stride, padding=padding)

    def flax(x: jax.Array) -> jax.Array:
        return nn.max_pool(x, (window, window), (stride, stride), ((padding, padding), (padding, padding)))

    def derivatives(pool: Callable) -> Callable:
        gradient = jax.grad(lambda x: jnp.sum(pool(x) ** 3))
        return jax.jit(lambda x: (pool(x), gradient(x), jax.grad(lambda x: jnp.sum(gradient(x) ** 2))(x)))

    for actual, expected in zip(derivatives(ours)(x), derivatives(flax)(x), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@both_forms
def test_first_of_equal_pixels_has_the_gradient(pool: Callable) -> None:
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(pool(x, window=2, stride=2, padding=0))))(jnp.ones((1, 2, 2, 1)))
    np.testing.assert_array_equal(gradient[0, :, :, 0], [[1.0, 0.0], [0.0, 0.0]])


@both_forms
@pytest.mark.parametrize("pixel", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_nan_is_not_hidden(pixel: tuple[int, int], pool: Callable) -> None:
    x = jnp.ones((1, 2, 2, 1)).at[0, *pixel].set(jnp.nan)
    assert jnp.isnan(pool(x, window=2, stride=2, padding=0)).all()


@pytest.mark.usefixtures("x64")
def test_both_forms_have_the_same_derivatives_under_vmap_and_pmap() -> None:
    """As a meta-gradient of two views takes them, in the half of a batch that each of two devices has."""
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 2, 3, 7, 7, 2)))

    def second(pool: Callable) -> Callable:
        def loss(x: jax.Array, scale: jax.Array) -> jax.Array:
            return jnp.sum(jax.vmap(lambda view: pool(scale * view, window=3, stride=2, padding=1))(x) ** 3)

        return jax.pmap(lambda x: jax.grad(lambda s: jnp.sum(jax.grad(loss)(x, s) ** 2))(jnp.ones(())))

    found, choice, xla = (second(pool)(x) for pool in (max_pool, by_choice, by_xla))
    np.testing.assert_allclose(found, xla, rtol=1e-12)
    np.testing.assert_array_equal(found, choice)


@native
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_each_platform_gets_its_own_form_alone(platform: str) -> None:
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(max_pool(x, window=3, stride=2, padding=1) ** 2)))
    lowered = gradient.trace(jnp.ones((2, 8, 8, 3))).lower(lowering_platforms=(platform,))
    text = lowered.as_text()
    assert ("stablehlo.reduce_window" in text, "native.pool" in text) == (platform == "tpu", platform == "cpu")
    if platform == "cpu":
        assert "conditional" not in lowered.compile().as_text()


@native
@pytest.mark.parametrize("bits", [256, 512])
def test_both_kernels_take_the_same_pixels_and_put_them_back(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, among equal pixels too, and where windows reach beyond the picture."""
    from metamask_jax.kernels.native import ffi

    monkeypatch.setattr(ffi, "machine", lambda: ffi.Machine(bits=bits, sums=12, vectors=2))
    x = jnp.asarray(np.random.default_rng(2).integers(0, 3, (3, 7, 9, 37)), jnp.float32)

    def found(kernels: str) -> tuple[jax.Array, jax.Array]:
        monkeypatch.setenv("METAMASK_KERNELS", kernels)
        y, pull_back = jax.vjp(lambda x: jax.jit(lambda x: max_pool(x, window=3, stride=2, padding=1))(x), x)
        return y, *pull_back(1.0 + jnp.arange(y.size, dtype=jnp.float32).reshape(y.shape) % 8)

    for native, xla in zip(found("native"), found("xla"), strict=True):
        np.testing.assert_array_equal(native, xla)


@pytest.mark.parametrize("kernels", [pytest.param("native", marks=native), "xla"])
def test_the_last_of_256_pixels_and_no_pictures_at_all(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAMASK_KERNELS", kernels)
    pool = jax.jit(lambda x: max_pool(x, window=16, stride=16, padding=0))
    x = jnp.arange(512.0).reshape(1, 16, 16, 2)
    y, pull_back = jax.vjp(pool, x)
    assert y.ravel().tolist() == [510.0, 511.0]
    assert np.flatnonzero(pull_back(y)[0]).tolist() == [510, 511]
    assert pool(jnp.zeros((0, 16, 16, 2))).shape == (0, 1, 1, 2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_numbers_are_pooled_too(dtype: str) -> None:
    x = jnp.arange(32).reshape(1, 4, 4, 2).astype(dtype)
    y, pull_back = jax.vjp(jax.jit(lambda x: max_pool(x, window=2, stride=2, padding=0)), x)
    assert (y.dtype.name, y[0, ..., 0].astype(float).tolist()) == (dtype, [[10.0, 14.0], [26.0, 30.0]])
    assert np.flatnonzero(pull_back(y)[0].astype(float)).tolist() == [10, 11, 14, 15, 26, 27, 30, 31]


@pytest.mark.parametrize(("window", "padding"), [(0, 0), (17, 0), (2, 2), (2, -1)])
def test_windows_that_cannot_be_pooled(window: int, padding: int) -> None:
    with pytest.raises(ValueError, match=rf"window={window}, padding={padding}; expected a window from 1 to 16"):
        max_pool(jnp.ones((1, 32, 32, 1)), window=window, stride=1, padding=padding)
