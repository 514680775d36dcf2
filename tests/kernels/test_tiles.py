"""Tiles of images: which pixels are asked for before their turn."""

import ctypes
from collections.abc import Sequence

import numpy as np
import pytest

from metamask_jax.kernels import cpu_kernels

if not cpu_kernels.has_native():
    pytest.skip("native kernels need llvmlite and a processor with AVX2 or AVX-512", allow_module_level=True)

from llvmlite import ir

from metamask_jax.kernels.native import ffi
from metamask_jax.kernels.native.emit import POINTER, Emitter
from metamask_jax.kernels.native.tiles import Images, fetch

LINE = 16  # numbers


def lines_asked_for(
    shape: tuple[int, int, int], tiles: tuple[int, int], some: tuple[int, int], parts: int
) -> np.ndarray:
    """Which lines of caches, counted from the first image on, are asked for after some tiles of 4x4 pixels."""

    def write(emit: Emitter, arguments: Sequence[ir.Value]) -> None:
        emit.prefetch = lambda pointer: emit.store(emit.constant(1.0), pointer)  # type: ignore[method-assign]
        images = Images(arguments[0], shape, (0, 0), (4, 4), arguments[0])
        emit.repeat(parts, lambda part: fetch(emit, images, some, tiles, part, parts))

    marked = np.zeros(8 * np.prod(shape), np.float32)
    name = f"test of fetch {shape}, {tiles}, {some}, {parts}"
    address = ffi.function(name, [POINTER], ir.FloatType(), write)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(marked.ctypes.data)
    return np.flatnonzero(marked[::LINE])


@pytest.mark.parametrize("parts", [1, 5, 36])
def test_the_pixels_of_the_next_tiles_are_asked_for_in_parts(parts: int) -> None:
    tile = 4 * 4 * 32 // LINE  # lines of one of four in an image
    asked = lines_asked_for((8, 8, 32), (2, 2), (2, 3), parts)
    assert asked[0] == (2 + 3) * tile
    assert np.all(np.diff(asked) == 1)
    assert 0 <= len(asked) - 3 * tile < parts  # of three tiles, in equal parts


def test_too_many_pixels_and_those_between_narrow_tiles_are_left_alone() -> None:
    assert len(lines_asked_for((8, 12, 16), (2, 2), (0, 2), 4))
    assert not len(lines_asked_for((8, 12, 16), (2, 1), (0, 2), 4))  # a third of the pixels
    assert len(lines_asked_for((16, 16, 256), (4, 4), (0, 16), 4))  # 256 kB
    assert not len(lines_asked_for((16, 16, 512), (4, 4), (0, 16), 4))
