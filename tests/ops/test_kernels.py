"""Every kernel a convolution may run on, chosen or not, against XLA's own."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metamask_jax.ops import chunks, conv2d, cpu_kernels, lax_kernels, winograd
from metamask_jax.ops.geometry import Geometry

OPERATIONS = {"conv": cpu_kernels.CONV, "conv_dx": cpu_kernels.CONV_DX, "conv_dw": cpu_kernels.CONV_DW}
KERNELS = ["patches", "winograd2", "winograd4"]
# Image height and width, window, stride, padding.
CASES = [
    (6, 7, 3, 1, [(1, 1), (1, 1)]),
    (4, 4, 3, 1, [(1, 1), (1, 1)]),
    (8, 9, 3, 1, [(0, 2), (1, 0)]),
    (9, 8, 5, 1, [(2, 2), (2, 2)]),
    (7, 8, 3, 2, [(1, 1), (1, 1)]),
    (8, 7, 5, 2, [(2, 1), (0, 3)]),
]


def geometry_of(case: tuple) -> Geometry:
    height, width, window, stride, padding = case
    return Geometry.make(image=(height, width), window=(window,) * 2, strides=(stride,) * 2, padding=padding)


def operands(geometry: Geometry, operation: str, dtype: str, batch: int = 3) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    shapes = {
        "x": (batch, *geometry.image, 4),
        "w": (*geometry.window, 4, 5),
        "dy": (batch, *geometry.output, 5),
    }
    names = {"conv": "x w", "conv_dx": "dy w", "conv_dw": "x dy"}[operation].split()
    a, b = (jnp.asarray(rng.normal(size=shapes[name]), dtype) for name in names)
    return a, b


def suits(kernel: str, geometry: Geometry) -> bool:
    few_points = geometry.window[0] + int(kernel[-1]) - 1 <= 6 if kernel.startswith("winograd") else True
    return kernel == "patches" or (geometry.suits_winograd and few_points)


def relative_error(actual: jax.Array, expected: jax.Array) -> float:
    assert actual.shape == expected.shape
    return float(jnp.abs(actual - expected).max() / jnp.abs(expected).max())


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_kernel_equals_lax(operation: str, case: tuple) -> None:
    geometry = geometry_of(case)
    a, b = operands(geometry, operation, "float64")
    expected = getattr(lax_kernels, operation)(a, b, geometry=geometry)
    tried = [kernel for kernel in KERNELS if suits(kernel, geometry)]
    for kernel in tried:
        assert relative_error(OPERATIONS[operation][kernel](a, b, geometry), expected) < 1e-13, kernel
    assert len(tried) == {(3, 1): 3, (5, 1): 2}.get((case[2], case[3]), 1)


@pytest.mark.parametrize(("kernel", "tolerance"), [("patches", 1e-6), ("winograd2", 1e-6), ("winograd4", 1e-5)])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_float32_errors_stay_within_what_is_documented(operation: str, kernel: str, tolerance: float) -> None:
    geometry = geometry_of(CASES[0])
    a, b = operands(geometry, operation, "float32")
    with jax.enable_x64(True):
        exact = getattr(lax_kernels, operation)(a.astype("float64"), b.astype("float64"), geometry=geometry)
    actual = OPERATIONS[operation][kernel](a, b, geometry)
    assert actual.dtype == jnp.float32
    with jax.enable_x64(True):
        assert relative_error(actual, exact) < tolerance


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kernel", KERNELS)
def test_second_derivatives_on_every_kernel_equal_lax(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = operands(geometry_of(CASES[0]), "conv", "float64", batch=2)

    def second(x: jax.Array, w: jax.Array) -> tuple:
        conv = partial(conv2d, strides=(1, 1), padding="SAME")
        gradient = jax.grad(lambda x, w: jnp.sum(conv(x, w) ** 3), (0, 1))
        return jax.grad(lambda x, w: sum(jnp.vdot(g, g) for g in gradient(x, w)), (0, 1))(x, w)

    def run(name: str) -> tuple:
        monkeypatch.setattr(cpu_kernels, "choose", lambda *args, **kwargs: name)
        return jax.jit(lambda x, w: second(x, w))(x, w)

    for actual, expected in zip(run(kernel), run("lax"), strict=True):
        assert relative_error(actual, expected) < 1e-12


def test_wide_convolutions_run_on_winograds_or_patches_and_narrow_ones_on_xlas() -> None:
    assert cpu_kernels.choose("conv", geometry_of(CASES[0]), (64, 64)) == "winograd2"
    assert cpu_kernels.choose("conv", geometry_of(CASES[0]), (3, 64)) == "lax"
    assert cpu_kernels.choose("conv_dw", geometry_of(CASES[0]), (3, 64)) == "patches"
    assert cpu_kernels.choose("conv_dw", geometry_of(CASES[0]), (3, 63)) == "lax"
    for case in CASES[3:]:
        assert cpu_kernels.choose("conv_dw", geometry_of(case), (64, 64)) == "patches"


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_winograd_does_not_depend_on_chunks(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = geometry_of(CASES[0])
    a, b = operands(geometry, operation, "float64", batch=7)
    whole = OPERATIONS[operation]["winograd2"](a, b, geometry)
    for size in (1, 3, 5):
        monkeypatch.setattr(winograd, "_images_a_chunk", lambda *args, size=size: size)
        assert relative_error(OPERATIONS[operation]["winograd2"](a, b, geometry), whole) < 1e-14


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 9])
def test_chunks_cover_every_entry_once(size: int) -> None:
    x = jnp.arange(14.0).reshape(7, 2)
    np.testing.assert_array_equal(chunks.map_chunks(lambda x: 2 * x, x, size=size), 2 * x)
    np.testing.assert_array_equal(chunks.sum_chunks(lambda x, y: x.T @ y, (x, x + 1), size=size), x.T @ (x + 1))
    assert jax.eval_shape(lambda x: chunks.map_chunks(lambda part: part[:, :1], x, size=size), x).shape == (7, 1)


def test_tiles_with_too_many_points_are_refused() -> None:
    geometry = geometry_of(CASES[3])
    x, w = operands(geometry, "conv", "float32")
    with pytest.raises(ValueError, match="tile=4 with a kernel of 5 pixels; expected at most 2"):
        winograd.conv(x, w, geometry, tile=4)
