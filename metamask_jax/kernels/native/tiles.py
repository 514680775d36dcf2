"""Tiles of images, within them or beyond their borders: nothing is padded, and no tile is copied."""

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from llvmlite import ir

from metamask_jax.kernels.native.emit import VECTOR, Emitter, Index, value
from metamask_jax.kernels.native.transform import Grid, Pair, Scattered, Square, transform

_LINE = 64  # bytes of a line of a cache
_AHEAD = 2**18  # bytes that are asked for before their turn; more would drive out what is being worked on


class Images(NamedTuple):
    """Images whose tiles are read or written.

    Attributes:
      pointer: address of the first number.
      shape: height, width and channels.
      first: row and column of the first pixel of the first tile.
      step: pixels from one tile to the next, downwards and across.
      nowhere: address of what stands for a pixel outside of the image: zeros to read, or room for what is not needed.
    """

    pointer: ir.Value
    shape: Sequence[int]
    first: Sequence[int]
    step: Sequence[int]
    nowhere: ir.Value


def apart(numbers: int) -> int:
    """Distance from one point to the next: with powers of two, a cache would hold few points of a tile at once."""
    return numbers + VECTOR


def gather(
    emit: Emitter,
    images: Images,
    some: tuple[Index, int],
    tiles: tuple[int, int],
    matrices: Pair,
    target: tuple[ir.Value, int],
    table: ir.Value,
    *,
    channels: int | None = None,
    packed: bool = False,
) -> None:
    """Transforms tiles of images.

    Args:
      emit: where to write the code.
      images: where they are.
      some: the first tile, and how many to transform.
      tiles: how many an image has downwards and across.
      matrices: the transform.
      target: an array `[points, tiles, channels]` with spare room (`apart`), and its number of tiles.
      table: room for the places of a tile's pixels.
      channels: how many to transform; all of them if None.
      packed: whether each point's part is laid out as the right side of a product.
    """
    transformed, room = target
    channels = images.shape[2] if channels is None else channels
    down, across = matrices
    point = apart(room * channels)

    def tile(t: ir.Value, grid: Callable[[Index], Grid]) -> None:
        def piece(start: Index, vectors: int) -> None:
            row = emit.at(transformed, emit.scaled(t, channels), start)
            plain = [emit.at(row, v * emit.lanes) for v in range(vectors)]
            places = emit.packed(transformed, some[1], start, vectors, t) if packed else plain
            for v, there in enumerate(places):
                source = grid(emit.builder.add(value(start), value(v * emit.lanes)))
                transform(emit, matrices, source, Square(there, len(across) * point, point))

        emit.columns(channels, piece)

    for_tiles(emit, images, some, tiles, (len(down[0]), len(across[0])), table, tile)


def fetch(
    emit: Emitter, images: Images, some: tuple[Index, int], tiles: tuple[int, int], part: ir.Value, parts: int
) -> None:
    """Asks for a part of the pixels of the tiles that come next, so that they are in a cache when their turn comes.

    Args:
      emit: where to write the code.
      images: where they are.
      some: the first tile of those before, and how many there are.
      tiles: how many an image has downwards and across.
      part: which part.
      parts: how many there are.
    """
    (first, count), (height, width, channels) = some, images.shape
    numbers = count * height * width * channels // prod(tiles)
    if numbers * emit.bytes > _AHEAD or 2 * prod(tiles) * prod(images.step) < height * width:
        return  # the latter: tiles of a narrow stretch, between which there are many pixels of others
    # Tiles follow each other as pixels do, but for those that they share.
    before = emit.scaled(emit.builder.add(value(first), value(count)), height * width * channels)
    line = _LINE // emit.bytes
    lines = -(-numbers // (line * parts))
    here = emit.at(
        images.pointer, emit.builder.udiv(value(before), value(prod(tiles))), emit.scaled(part, lines * line)
    )
    emit.repeat(lines, lambda i: emit.prefetch(emit.at(here, emit.scaled(i, line))))


def for_tiles(
    emit: Emitter,
    images: Images,
    some: tuple[Index, int],
    tiles: tuple[int, int],
    size: tuple[int, int],
    table: ir.Value,
    body: Callable[[ir.Value, Callable[[Index], Grid]], None],
) -> None:
    """`body(t, grid)` for some tiles of `size` pixels, where `grid(channel)` are the pixels of tile `t`."""
    height, width, channels = images.shape
    axes = zip(images.first, images.step, tiles, size, (height, width), strict=True)
    within_line = [
        [0 <= first + i * step <= length - own for i in range(count)] for first, step, count, own, length in axes
    ]

    def tile(t: ir.Value) -> None:
        rest, column = emit.divided(emit.builder.add(value(some[0]), t), tiles[1])
        picture, row = emit.divided(rest, tiles[0])
        image = emit.at(images.pointer, emit.scaled(picture, prod(images.shape)))
        corner = [
            emit.builder.add(emit.builder.mul(i, value(step)), value(first))
            for i, step, first in zip((row, column), images.step, images.first, strict=True)
        ]

        def within() -> None:
            here = emit.at(image, emit.scaled(corner[0], width * channels), emit.scaled(corner[1], channels))
            body(t, lambda channel: Square(emit.at(here, channel), width * channels, channels))

        def beyond() -> None:
            _fill_table(emit, images.shape, size, corner, table, emit.distance(image, images.nowhere))
            body(t, lambda channel: Scattered(emit.at(image, channel), table))

        if all(map(all, within_line)):
            within()
        elif not all(map(any, within_line)):
            beyond()
        else:
            with emit.builder.if_else(_is_within(emit, images.shape, size, corner)) as (then, otherwise):
                with then:
                    within()
                with otherwise:
                    beyond()

    emit.repeat(some[1], tile)


def _fill_table(
    emit: Emitter,
    image: Sequence[int],
    size: tuple[int, int],
    corner: Sequence[ir.Value],
    table: ir.Value,
    missing: ir.Value,
) -> None:
    """Writes where the pixels of a tile are, in bytes from the beginning of their image.

    Args:
      emit: where to write the code.
      image: its height, width and channels.
      size: pixels of the tile downwards and across.
      corner: row and column of its first pixel, which may be negative.
      table: address of as many places.
      missing: the place of pixels that are not in the image.
    """
    height, width, channels = image

    def write(emit: Emitter, arguments: Sequence[ir.Value]) -> None:
        row, column, table, missing = arguments
        build = emit.builder

        def axis(start: ir.Value, pixels: int, length: int, stride: int) -> list[tuple[ir.Value, ir.Value]]:
            places = [build.add(start, value(i)) for i in range(pixels)]
            return [
                (build.icmp_unsigned("<", place, value(length)), build.mul(place, value(stride * emit.bytes)))
                for place in places
            ]

        columns = axis(column, size[1], width, channels)
        for i, (is_row, down) in enumerate(axis(row, size[0], height, width * channels)):
            for j, (is_column, across) in enumerate(columns):
                there = build.select(build.and_(is_row, is_column), build.add(down, across), missing)
                build.store(there, emit.place(table, i * size[1] + j))

    emit.call(f"table {image}, {size}", write, [*corner, table, missing])


def _is_within(emit: Emitter, image: Sequence[int], size: tuple[int, int], corner: Sequence[ir.Value]) -> ir.Value:
    """Whether a tile lies within an image that is larger."""
    axes = zip(corner, image[:2], size, strict=True)
    return emit.builder.and_(
        *(emit.builder.icmp_unsigned("<", start, value(length - own + 1)) for start, length, own in axes)
    )
