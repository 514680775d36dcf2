"""How Winograd's convolutions are cut into tiles, and the matrices of tiles of every length."""

import numpy as np
import pytest

from metamask_jax.kernels import cpu_kernels

if not cpu_kernels.has_native():
    pytest.skip("native kernels need llvmlite and a processor with AVX2 or AVX-512", allow_module_level=True)

from metamask_jax.kernels.geometry import Geometry
from metamask_jax.kernels.native.plans import Plan, backward, forward
from metamask_jax.kernels.native.points import (
    Matrices,
    matrices_of,
    strided_matrices,
    tiles_of,
    transposed_strided_matrices,
)


def geometry_of(size: tuple[int, int], taps: int = 3, stride: int = 1) -> Geometry:
    pad = (taps // 2, taps // 2)
    return Geometry.make(image=size, window=(taps, taps), strides=(stride, stride), padding=(pad, pad))


def tile_of(matrices: Matrices, w: np.ndarray, x: np.ndarray) -> np.ndarray:
    kernel = np.array(matrices.kernel) @ w
    return np.array(matrices.output) @ (kernel[list(matrices.rows)] * (np.array(matrices.input) @ x))


@pytest.mark.parametrize(("taps", "usual"), [(taps, usual) for taps in (2, 3, 5) for usual in tiles_of(taps, 1)])
def test_a_shorter_tile_is_the_same_convolution_with_the_kernels_of_the_usual_one(taps: int, usual: int) -> None:
    rng = np.random.default_rng(0)
    for tile in range(1, usual + 1):
        matrices = matrices_of(taps, tile, usual)
        assert matrices.kernel == matrices_of(taps, usual, usual).kernel
        assert len(matrices.rows) == tile + taps - 1
        w, x = rng.normal(size=taps), rng.normal(size=tile + taps - 1)
        np.testing.assert_allclose(tile_of(matrices, w, x), np.correlate(x, w, "valid"), atol=1e-13)


@pytest.mark.parametrize("usual", tiles_of(3, 2))
def test_a_shorter_tile_of_a_kernel_that_skips_pixels_is_too(usual: int) -> None:
    rng = np.random.default_rng(0)
    for tile in range(1, usual + 1):
        w, x, dy = rng.normal(size=3), rng.normal(size=2 * tile + 1), rng.normal(size=tile + 1)
        expected = np.correlate(x, w, "valid")[::2]
        np.testing.assert_allclose(tile_of(strided_matrices(tile, usual), w, x), expected, atol=1e-13)
        spread = np.zeros(2 * tile + 1)
        spread[::2] = dy  # with zeros where pixels are skipped
        for low in (0, 1):
            actual = tile_of(transposed_strided_matrices(tile, usual, low=low), w[::-1], dy)
            np.testing.assert_allclose(actual, np.convolve(spread, w)[2 - low :][: 2 * tile], atol=1e-13)


@pytest.mark.parametrize(
    ("size", "taps", "stride", "products", "tiles"),
    [
        ((32, 32), 3, 1, 48**2, [(4, 4)]),
        ((7, 7), 3, 1, 11**2, [(4, 4), (4, 3), (3, 4), (3, 3)]),
        ((14, 14), 3, 1, 22**2, [(4, 4), (4, 2), (2, 4), (2, 2)]),
        ((28, 28), 3, 2, 32**2, [(4, 4), (4, 2), (2, 4), (2, 2)]),
        ((8, 6), 3, 1, 120, [(4, 4), (4, 2)]),
        ((6, 6), 3, 1, 10**2, [(3, 3)]),  # 4 and 2 would multiply as much, in more code
        ((5, 5), 3, 1, 7**2, [(5, 5)]),
        ((31, 31), 3, 1, 48**2, [(4, 4)]),  # too little to gain
    ],
)
def test_lines_end_with_shorter_tiles_where_that_saves_products(
    size: tuple[int, int], taps: int, stride: int, products: int, tiles: list[tuple[int, int]]
) -> None:
    plan = forward(geometry_of(size, taps, stride))
    assert plan.products == products
    assert [region.size for region in plan.regions] == tiles


@pytest.mark.parametrize("stride", [1, 2])
def test_every_output_is_in_one_tile(stride: int) -> None:
    for height in range(3, 18):
        geometry = geometry_of((height, 20 - height), 3, stride)
        for plan in (forward(geometry), backward(geometry)):
            assert (covered(plan) == 1).all()


def covered(plan: Plan) -> np.ndarray:
    """How many tiles each output is in."""
    count = np.zeros(plan.output, int)
    for region in plan.regions:
        for i in range(region.tiles[0]):
            for j in range(region.tiles[1]):
                top, left = (start + n * own for start, n, own in zip(region.target, (i, j), region.size, strict=True))
                count[top : top + region.size[0], left : left + region.size[1]] += 1
    return count
