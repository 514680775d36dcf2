"""Every kernel a convolution may run on, chosen or not, against XLA's own."""

import threading
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metamask_jax.kernels import conv2d, cpu_kernels, lax_kernels
from metamask_jax.kernels.geometry import Geometry

if not cpu_kernels.has_native():
    pytest.skip("native kernels need llvmlite and a processor with AVX2 or AVX-512", allow_module_level=True)

from llvmlite import ir

from metamask_jax.kernels.native import ffi, suits_winograd, winograd
from metamask_jax.kernels.native.emit import Emitter, Machine, Product
from metamask_jax.kernels.native.plans import forward

OPERATIONS = {
    "conv": cpu_kernels.CONV,
    "conv_tangent": cpu_kernels.CONV_TANGENT,
    "conv_dx": cpu_kernels.CONV_DX,
    "conv_dw": cpu_kernels.CONV_DW,
}
NATIVE = ["direct", "winograd"]
# Image height and width, window, stride, padding.
CASES = [
    (6, 7, 3, 1, [(1, 1), (1, 1)]),
    (4, 4, 3, 1, [(1, 1), (1, 1)]),
    (8, 9, 3, 1, [(0, 2), (1, 0)]),
    (9, 8, 5, 1, [(2, 2), (2, 2)]),
    (7, 8, 3, 2, [(1, 1), (1, 1)]),
    (18, 12, 3, 2, [(0, 1), (0, 1)]),
    (8, 7, 5, 2, [(2, 1), (0, 3)]),
    (7, 6, 2, 3, [(0, 1), (0, 0)]),
    (5, 6, 1, 1, [(0, 0), (0, 0)]),
    (5, 6, 1, 2, [(0, 0), (0, 0)]),
    # Tiles of other sizes than the usual one.
    (2, 2, 3, 1, [(1, 1), (1, 1)]),
    (3, 3, 3, 1, [(1, 1), (1, 1)]),
    (5, 5, 3, 1, [(1, 1), (1, 1)]),
    (4, 3, 3, 2, [(1, 1), (1, 1)]),
    (6, 6, 3, 2, [(0, 1), (0, 1)]),
    # Shorter tiles at the ends of lines: in both directions, in one, and of each length.
    (7, 7, 3, 1, [(1, 1), (1, 1)]),
    (8, 6, 3, 1, [(1, 1), (1, 1)]),
    (17, 4, 3, 1, [(1, 1), (1, 1)]),
    (6, 13, 5, 1, [(2, 2), (2, 2)]),
    (14, 11, 3, 2, [(1, 1), (1, 1)]),
    (9, 14, 3, 2, [(0, 1), (0, 1)]),
]
# Columns that fill the pieces of a product, leave one vector over, or do not even fill vectors.
CHANNELS = (16, 48)
ODD_CHANNELS = (12, 40)


def geometry_of(case: tuple) -> Geometry:
    height, width, window, stride, padding = case
    return Geometry.make(image=(height, width), window=(window,) * 2, strides=(stride,) * 2, padding=padding)


def operands(
    geometry: Geometry, operation: str, dtype: str, batch: int = 3, channels: tuple[int, int] = CHANNELS
) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    shapes = {
        "x": (batch, *geometry.image, channels[0]),
        "w": (*geometry.window, *channels),
        "dy": (batch, *geometry.output, channels[1]),
    }
    names = {"conv": "x w", "conv_tangent": "x w x w", "conv_dx": "dy w", "conv_dw": "x dy"}[operation].split()
    return [jnp.asarray(rng.normal(size=shapes[name]), dtype) for name in names]


def on_xla(operation: str, arrays: Sequence[jax.Array], geometry: Geometry) -> jax.Array:
    """What XLA's own convolution gives."""
    if operation == "conv_tangent":
        x, w, dx, dw = arrays
        return lax_kernels.conv(dx, w, geometry=geometry) + lax_kernels.conv(x, dw, geometry=geometry)
    return getattr(lax_kernels, operation)(*arrays, geometry=geometry)


def kernels_for(operation: str, geometry: Geometry) -> list[str]:
    patches = ["patches"] if operation == "conv_dw" else []
    return patches + [kernel for kernel in NATIVE if kernel != "winograd" or suits_winograd(geometry)]


def relative_error(actual: jax.Array, expected: jax.Array) -> float:
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("channels", "case"), [(CHANNELS, case) for case in CASES] + [(ODD_CHANNELS, case) for case in CASES[:5]], ids=str
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_kernel_equals_lax(operation: str, channels: tuple[int, int], case: tuple) -> None:
    geometry = geometry_of(case)
    tried = kernels_for(operation, geometry)

    @jax.jit
    def run(*arrays: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        return on_xla(operation, arrays, geometry), {
            kernel: OPERATIONS[operation][kernel](*arrays, geometry) for kernel in tried
        }

    expected, found = run(*operands(geometry, operation, "float64", channels=channels))
    for kernel, actual in found.items():
        assert relative_error(actual, expected) < 1e-13, kernel
    assert ("winograd" in tried) == ((case[2], case[3]) in ((3, 1), (5, 1), (3, 2)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("case", [CASES[0], pytest.param(CASES[4], marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("kernel", NATIVE)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_shorter_vector_registers_give_the_same(
    operation: str, kernel: str, case: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    geometry = geometry_of(case)
    arrays = operands(geometry, operation, "float64")
    expected = on_xla(operation, arrays, geometry)
    monkeypatch.setattr(ffi, "machine", lambda: Machine(bits=256, sums=12, vectors=2))
    assert relative_error(OPERATIONS[operation][kernel](*arrays, geometry), expected) < 1e-13


@pytest.mark.parametrize("kernel", NATIVE)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_number_of_cores_changes_no_bit(operation: str, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = geometry_of(CASES[0])
    arrays = operands(geometry, operation, "float32", batch=6, channels=(48, 48))
    found = []
    for cores in (1, 2, 3, 5):
        monkeypatch.setattr(ffi, "cores", lambda cores=cores: cores)
        found.append(np.asarray(OPERATIONS[operation][kernel](*arrays, geometry)))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("bits", [256, 512])
def test_outputs_written_past_the_caches_are_the_same_to_the_bit(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = geometry_of(CASES[0])
    own = ffi.machine()
    assert own is not None
    if own.bits < bits:
        pytest.skip("this processor has no such registers")
    monkeypatch.setattr(ffi, "machine", lambda: own._replace(bits=bits, sums=3 * bits // 64, vectors=bits // 128))
    for operation in ("conv", "conv_dx"):
        arrays = operands(geometry, operation, "float32")
        found = []
        for least in (2**62, 1):
            monkeypatch.setattr(winograd, "_STREAMED", least)
            found.append(np.asarray(OPERATIONS[operation]["winograd"](*arrays, geometry)))
        np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("turned", [False, True])
def test_large_kernels_written_past_the_caches_are_the_same_to_the_bit(
    turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, w = forward(geometry_of(CASES[0])).kernel, np.random.default_rng(0).normal(size=(3, 3, 32, 48))
    found = []
    for most in (2**62, 1):
        monkeypatch.setattr(winograd, "_LARGE", most)
        found.append(np.asarray(winograd._transformed(jnp.float32(w), matrix, turned=turned))[:, : 32 * 48])
    np.testing.assert_array_equal(*found)
    assert np.abs(found[0]).min(axis=1).max() > 0


@pytest.mark.parametrize("images", [3, 5])
def test_a_weight_gradient_of_one_block_or_of_more_is_the_same(images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = Geometry.make(image=(8, 8), window=(3, 3), strides=(1, 1), padding="SAME")
    monkeypatch.setattr(winograd, "shares", lambda *counts: 1)
    monkeypatch.setattr(winograd, "_BLOCK", 12)  # tiles, of four in an image
    arrays = operands(geometry, "conv_dw", "float32", batch=images)
    expected = on_xla("conv_dw", arrays, geometry)
    assert relative_error(winograd.conv_dw(*arrays, geometry), expected) < 1e-5


# Tiles of the first image fill whole blocks: its kernels have no second copy of their code, for the rest, to compile.
@pytest.mark.parametrize(
    ("window", "stride", "batch", "image"),
    [
        (3, 1, 8, (44, 12)),
        (5, 1, 16, (16, 16)),
        (3, 2, 12, (32, 16)),
        *((3, 1, 24, (size, size)) for size in (2, 3, 5)),  # tiles of as many outputs
        (3, 1, 24, (7, 7)),  # shorter tiles at the ends of lines
        (5, 1, 24, (13, 13)),
        (3, 2, 24, (14, 14)),
    ],
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_float32_errors_stay_within_what_is_documented(
    operation: str, window: int, stride: int, batch: int, image: tuple[int, int]
) -> None:
    geometry = geometry_of((*image, window, stride, [(window // 2,) * 2] * 2))
    arrays = operands(geometry, operation, "float32", batch=batch, channels=(64, 64))
    with jax.enable_x64(True):
        exact = on_xla(operation, [a.astype("float64") for a in arrays], geometry)
    for kernel in kernels_for(operation, geometry):
        actual = OPERATIONS[operation][kernel](*arrays, geometry)
        assert actual.dtype == jnp.float32
        assert relative_error(actual, exact) < (1e-5 if kernel == "winograd" else 1e-6), kernel


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kernel", NATIVE)
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


def test_native_kernels_run_side_by_side() -> None:
    """On several devices, from several threads, many times: the parts of one call are nobody else's."""
    geometry = geometry_of(CASES[0])
    x, w = operands(geometry, "conv", "float32", batch=8)
    on_devices = jax.pmap(lambda x: cpu_kernels.CONV["winograd"](x, w, geometry))
    expected = np.asarray(jax.jit(lambda x: cpu_kernels.CONV["winograd"](x, w, geometry))(x))
    wrong = []

    def work() -> None:
        for _ in range(50):
            found = np.asarray(on_devices(x.reshape(4, 2, *x.shape[1:])))
            if not np.array_equal(found.reshape(expected.shape), expected):
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_channels_that_nearly_fill_registers_run_on_native_kernels_and_others_on_xlas() -> None:
    small, strided, wide, pointwise, skipping = map(geometry_of, (CASES[0], CASES[4], CASES[6], CASES[8], CASES[9]))
    assert cpu_kernels.choose("conv", small, (64, 64)) == "winograd"
    assert cpu_kernels.choose("conv", strided, (64, 64)) == "winograd"
    assert cpu_kernels.choose("conv", wide, (64, 64)) == "direct"
    assert cpu_kernels.choose("conv", small, (3, 64)) == "direct"
    assert cpu_kernels.choose("conv_dx", small, (3, 64)) == "lax"
    assert cpu_kernels.choose("conv", small, (12, 12)) == "winograd"
    assert cpu_kernels.choose("conv", small, (8, 8)) == "direct"
    assert cpu_kernels.choose("conv", small, (64, 7)) == "lax"
    assert cpu_kernels.choose("conv_dw", small, (64, 7)) == "patches"
    assert cpu_kernels.choose("conv", pointwise, (64, 64)) == "pointwise"
    assert cpu_kernels.choose("conv_dw", pointwise, (64, 64)) == "direct"
    assert cpu_kernels.choose("conv", skipping, (64, 64)) == "direct"
    assert cpu_kernels.choose("conv", skipping, (64, 7)) == "pointwise"


def test_without_native_kernels_weight_gradients_of_wide_layers_run_on_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "has_native", lambda: False)
    geometry = geometry_of(CASES[0])
    assert cpu_kernels.choose("conv", geometry, (64, 64)) == "lax"
    assert cpu_kernels.choose("conv_dw", geometry, (3, 64)) == "patches"
    assert cpu_kernels.choose("conv_dw", geometry, (3, 48)) == "lax"


def test_no_native_kernels_for_an_unknown_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ffi.machine.__wrapped__() is not None
    monkeypatch.setattr(ffi, "_version", lambda: [1, 0])
    assert ffi.machine.__wrapped__() is None


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 9])
def test_chunks_of_patches_cover_every_image_once(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    geometry = geometry_of(CASES[0])
    a, b = operands(geometry, "conv_dw", "float64", batch=7)
    monkeypatch.setattr(cpu_kernels, "_images_per_chunk", lambda *args: size)
    expected = lax_kernels.conv_dw(a, b, geometry=geometry)
    assert relative_error(cpu_kernels.CONV_DW["patches"](a, b, geometry), expected) < 1e-13


@pytest.mark.parametrize("bits", [256, 512])
def test_registers_put_aside_stay_within_cache_lines(bits: int) -> None:
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.PointerType()] * 3), "part")
    emit = Emitter(function, Machine(bits=bits, sums=12, vectors=2), ir.FloatType())
    emit.product(Product(a_row=8, c_row=64, sums=((3, 8), (4, 1)), accumulate=False), 6, 64, *function.args)
    emit.builder.ret_void()
    written = [function for function in module.functions if function.blocks]
    assert len(written) > 1
    assert {function.attributes.alignstack for function in written} == {bits // 8}
