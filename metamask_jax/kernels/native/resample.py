"""Pictures resized as Pillow resizes them, to the last bit, in a fraction of its time.

Pillow weighs pixels by integers of `_BITS` bits, along one axis and then along the other, and rounds to bytes after
each. Sums of integers are the same in any order, so vectors can take many at a time: `weights` writes the weights of
eight results, `across` makes a pixel of eight rows, `down` makes 64 bytes of a row.
"""

import ctypes
import math
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from metamask_jax.kernels.native.emit import INT, POINTER, Emitter, Vectors, value
from metamask_jax.kernels.native.ffi import Write, function

Box = tuple[float, float, float, float]  # left, upper, right and lower edge in pixels

_RADIUS = {"bilinear": 1.0, "bicubic": 2.0}  # where a filter ends, in pixels of what is smaller: picture or result
_BITS = 22  # after the point of a weight
_WEIGHTS, _ROWS, _BYTES = 8, 8, 64  # how many results `weights`, `across` and `down` make at a time
_BYTE, _INT32, _DOUBLE = ir.IntType(8), ir.IntType(32), ir.DoubleType()


def resample(pixels: np.ndarray, box: Box, size: tuple[int, int], interpolation: str) -> np.ndarray:
    """Resizes a box of a picture, anti-aliased; other threads can run meanwhile.

    Args:
      pixels: uint8 [height, width, 3].
      box: what to resize, within the picture.
      size: width and height of the result.
      interpolation: `bilinear` or `bicubic`.

    Returns:
      uint8 [height of the result, width of the result, 3].
    """
    height, width, channels = pixels.shape
    left, upper, right, lower = np.array(box, np.float32).tolist()  # as Pillow takes it
    if pixels.dtype != np.uint8 or channels != 3 or min(size) < 1:
        raise ValueError(f"{pixels.dtype=}, {channels=}, {size=}; expected uint8, 3, and at least 1 x 1")
    if not (0 <= left < right <= width and 0 <= upper < lower <= height):
        raise ValueError(f"{box=}; expected a box within {width} x {height} pixels")
    x, y = _axis(width, left, right, size[0], interpolation), _axis(height, upper, lower, size[1], interpolation)
    rows = np.ascontiguousarray(pixels).reshape(height, -1)
    if 3 * width < _BYTES:
        rows = _rows(height, 3 * width)
        rows[:] = pixels.reshape(height, -1)
    used = rows[y.first : y.first + y.used, 3 * x.first : 3 * (x.first + x.used)]
    columns_first = height - size[1] > max(0, 2 * (width - size[0]))  # as Pillow decides since its version 13
    found = _across(_down(used, y), x) if columns_first else _down(_across(used, x), y)
    return found.reshape(size[1], size[0], 3)


class _Axis(NamedTuple):
    """Which pixels of one axis make up each of `size` pixels of the result.

    Attributes:
      size: of the result.
      first: of the pixels that are used.
      used: pixels from there on.
      starts: the first pixel of each result, counted from `first`, int32 [size or a few more].
      weights: of the pixels from there on, int32 [pixels, size or a few more].
    """

    size: int
    first: int
    used: int
    starts: np.ndarray
    weights: np.ndarray


def _axis(length: int, start: float, end: float, size: int, interpolation: str) -> _Axis:
    scale = float(np.float32(end) - np.float32(start)) / size
    stretch = max(scale, 1.0)
    support = _RADIUS[interpolation] * stretch
    taps, columns = min(math.ceil(2 * support), length), _round_up(size, _WEIGHTS)
    starts, weights = np.empty(columns, np.int32), np.empty((taps, columns), np.int32)
    _function("weights", interpolation)(
        _address(starts), _address(weights), length, taps, columns, start, scale, support, 1.0 / stretch
    )
    first = int(starts[0])
    starts -= first
    return _Axis(size, first, int(starts[size - 1]) + taps, starts, weights)


def _across(source: np.ndarray, axis: _Axis) -> np.ndarray:
    """Rows of bytes resized along themselves."""
    target = _rows(len(source), 3 * axis.size)
    _run("across", source, axis, target, len(source), axis.size)
    return target


def _down(source: np.ndarray, axis: _Axis) -> np.ndarray:
    """Rows of bytes resized along their columns."""
    target = _rows(axis.size, source.shape[1])
    _run("down", source, axis, target, axis.size, target.strides[0] // _BYTES)
    return target


def _run(name: str, source: np.ndarray, axis: _Axis, target: np.ndarray, *counts: int) -> None:
    # Vectors read beyond the end of a row. Nothing of ours may follow the last one, so they get a longer copy of it.
    end = np.empty(source.shape[1] + _BYTES, np.uint8)
    end[: source.shape[1]] = source[-1]
    arrays = source, end, axis.starts, axis.weights, target
    sizes = source.strides[0], target.strides[0], len(source), *counts, *axis.weights.shape
    _function(name)(*map(_address, arrays), *sizes)


def _rows(count: int, length: int) -> np.ndarray:
    """Rows of bytes with room for vectors that write beyond a row, and for rows beyond the last."""
    return np.empty((_round_up(count, _ROWS), _round_up(length + 1, _BYTES)), np.uint8)[:count, :length]


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _address(array: np.ndarray) -> int:
    return array.ctypes.data


@cache
def _function(name: str, interpolation: str = "") -> Any:
    """A compiled function."""
    kinds: dict[str, tuple[int, int, int, Write]] = {
        "weights": (2, 3, 4, partial(_write_weights, interpolation)),
        "across": (5, 7, 0, _write_across),
        "down": (5, 7, 0, _write_down),
    }
    pointers, integers, numbers, write = kinds[name]
    types = [POINTER] * pointers + [INT] * integers + [_DOUBLE] * numbers
    address = function(f"{__name__}.{name}.{interpolation}", types, _BYTE, write)
    arguments = [ctypes.c_void_p] * pointers + [ctypes.c_int64] * integers + [ctypes.c_double] * numbers
    return ctypes.CFUNCTYPE(None, *arguments)(address)


def _write_weights(interpolation: str, emit: Emitter, arguments: Sequence[ir.Value]) -> None:
    """Writes the function of `_axis`. Each sum and product is Pillow's own, in its order."""
    starts, weights, length, taps, columns, begin, scale, support, shrink = arguments
    build, integers, numbers = emit.builder, ir.VectorType(_INT32, _WEIGHTS), ir.VectorType(_DOUBLE, _WEIGHTS)
    begin, scale, support, shrink = (_everywhere(build, v, numbers) for v in (begin, scale, support, shrink))
    length, room = (_everywhere(build, build.trunc(v, _INT32), integers) for v in (length, build.sub(length, taps)))
    nothing, half = _constant(numbers, 0.0), _constant(numbers, 0.5)

    def block(i: ir.Value) -> None:
        offset = emit.scaled(i, _WEIGHTS)
        index = _everywhere(build, build.trunc(offset, _INT32), integers)
        index = build.add(index, ir.Constant(integers, list(range(_WEIGHTS))))
        centre = build.fadd(begin, build.fmul(build.fadd(build.sitofp(index, numbers), half), scale))
        low = build.fptosi(build.fadd(build.fsub(centre, support), half), integers)
        high = build.fptosi(build.fadd(build.fadd(centre, support), half), integers)
        low, high = _most(build, low, _constant(integers, 0)), _least(build, high, length)
        start = _least(build, low, room)  # so that no pixel beyond the last is read

        def weight(tap: ir.Value) -> ir.Value:
            pixel = build.add(start, _everywhere(build, build.trunc(tap, _INT32), integers))
            distance = build.fadd(build.fsub(build.sitofp(pixel, numbers), centre), half)
            used = build.and_(build.icmp_signed("<=", low, pixel), build.icmp_signed("<", pixel, high))
            return build.select(used, _FILTERS[interpolation](build, build.fmul(distance, shrink)), nothing)

        (total,) = emit.fold(taps, [nothing], lambda tap, sums: [build.fadd(sums[0], weight(tap))])

        def store(tap: ir.Value) -> None:
            share = build.fdiv(weight(tap), total)
            rounding = build.select(build.fcmp_ordered("<", share, nothing), _constant(numbers, -0.5), half)
            fixed = build.fadd(build.fmul(share, _constant(numbers, 1 << _BITS)), rounding)
            place = build.add(build.mul(tap, columns), offset)
            build.store(build.fptosi(fixed, integers), emit.at(weights, emit.scaled(place, 4)), align=4)

        emit.repeat(taps, store)
        build.store(start, emit.at(starts, emit.scaled(offset, 4)), align=4)

    emit.repeat(build.udiv(columns, value(_WEIGHTS)), block)


def _bicubic(build: ir.IRBuilder, x: ir.Value) -> ir.Value:
    number = partial(_constant, x.type)
    x = build.select(build.fcmp_ordered("<", x, number(0.0)), build.fneg(x), x)
    near = build.fmul(build.fmul(build.fsub(build.fmul(number(1.5), x), number(2.5)), x), x)
    far = build.fadd(build.fmul(build.fsub(x, number(5.0)), x), number(8.0))
    far = build.fmul(build.fsub(build.fmul(far, x), number(4.0)), number(-0.5))
    far = build.select(build.fcmp_ordered("<", x, number(2.0)), far, number(0.0))
    return build.select(build.fcmp_ordered("<", x, number(1.0)), build.fadd(near, number(1.0)), far)


def _bilinear(build: ir.IRBuilder, x: ir.Value) -> ir.Value:
    number = partial(_constant, x.type)
    x = build.select(build.fcmp_ordered("<", x, number(0.0)), build.fneg(x), x)
    return build.select(build.fcmp_ordered("<", x, number(1.0)), build.fsub(number(1.0), x), number(0.0))


_FILTERS = {"bilinear": _bilinear, "bicubic": _bicubic}


def _write_across(emit: Emitter, arguments: Sequence[ir.Value]) -> None:
    """Writes the function that makes rows narrower or wider, `_ROWS` at a time."""
    source, end, starts, weights, target, source_row, target_row, _, rows, columns, taps, weights_row = arguments
    build, last = emit.builder, emit.builder.sub(rows, value(1))
    sums = ir.VectorType(_INT32, 4 * _ROWS)

    def group(i: ir.Value) -> None:
        first = emit.scaled(i, _ROWS)
        sources, targets = [], []
        for j in range(_ROWS):
            row = build.add(first, value(j))
            here = emit.at(source, build.mul(row, source_row))
            sources.append(build.select(build.icmp_unsigned("<", row, last), here, end))  # past the end: the last again
            targets.append(emit.at(target, build.mul(row, target_row)))

        def pixel(column: ir.Value) -> None:
            start = build.sext(build.load(emit.at(starts, emit.scaled(column, 4)), typ=_INT32), INT)

            def add(tap: ir.Value, carry: Vectors) -> Vectors:
                offset = emit.scaled(build.add(start, tap), 3)
                pixels: ir.Value = ir.Constant(ir.VectorType(_INT32, _ROWS), ir.Undefined)
                for j, row in enumerate(sources):  # red, green, blue and what follows them
                    four = build.load(emit.at(row, offset), align=1, typ=_INT32)
                    pixels = build.insert_element(pixels, four, value(j))
                pixels = build.zext(build.bitcast(pixels, ir.VectorType(_BYTE, 4 * _ROWS)), sums)
                weight = _weight(emit, weights, weights_row, tap, column, sums)
                return [build.add(carry[0], build.mul(pixels, weight))]

            (total,) = emit.fold(taps, [_constant(sums, 1 << _BITS - 1)], add)
            found = build.bitcast(_to_bytes(build, total), ir.VectorType(_INT32, _ROWS))
            for j, row in enumerate(targets):  # the next pixel overwrites the fourth byte
                build.store(build.extract_element(found, value(j)), emit.at(row, emit.scaled(column, 3)), align=1)

        emit.repeat(columns, pixel)

    emit.repeat(build.udiv(build.add(rows, value(_ROWS - 1)), value(_ROWS)), group)


def _write_down(emit: Emitter, arguments: Sequence[ir.Value]) -> None:
    """Writes the function that makes columns shorter or longer, `_BYTES` of a row at a time."""
    source, end, starts, weights, target, source_row, target_row, count, rows, pieces, taps, weights_row = arguments
    build, sums, last = emit.builder, ir.VectorType(_INT32, _BYTES), emit.builder.sub(count, value(1))

    def row(i: ir.Value) -> None:
        start = build.sext(build.load(emit.at(starts, emit.scaled(i, 4)), typ=_INT32), INT)

        def piece(j: ir.Value) -> None:
            here = emit.scaled(j, _BYTES)

            def add(tap: ir.Value, carry: Vectors) -> Vectors:
                row = build.add(start, tap)
                line = emit.at(source, build.mul(row, source_row))
                line = emit.at(build.select(build.icmp_unsigned("<", row, last), line, end), here)
                pixels = build.zext(build.load(line, align=1, typ=ir.VectorType(_BYTE, _BYTES)), sums)
                return [build.add(carry[0], build.mul(pixels, _weight(emit, weights, weights_row, tap, i, sums)))]

            (total,) = emit.fold(taps, [_constant(sums, 1 << _BITS - 1)], add)
            build.store(_to_bytes(build, total), emit.at(target, build.mul(i, target_row), here), align=1)

        emit.repeat(pieces, piece)

    emit.repeat(rows, row)


def _weight(
    emit: Emitter, weights: ir.Value, weights_row: ir.Value, tap: ir.Value, column: ir.Value, kind: ir.VectorType
) -> ir.Value:
    place = emit.builder.add(emit.builder.mul(tap, weights_row), column)
    return _everywhere(emit.builder, emit.builder.load(emit.at(weights, emit.scaled(place, 4)), typ=_INT32), kind)


def _to_bytes(build: ir.IRBuilder, sums: ir.Value) -> ir.Value:
    """Sums of weighted pixels as bytes: what is below 0 or above 255 is cut off."""
    kind = sums.type
    sums = _most(build, build.ashr(sums, _constant(kind, _BITS)), _constant(kind, 0))
    return build.trunc(_least(build, sums, _constant(kind, 255)), ir.VectorType(_BYTE, kind.count))


def _least(build: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return build.select(build.icmp_signed("<", a, b), a, b)


def _most(build: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return build.select(build.icmp_signed(">", a, b), a, b)


def _constant(kind: ir.VectorType, number: float) -> ir.Constant:
    return ir.Constant(kind, [number] * kind.count)


def _everywhere(build: ir.IRBuilder, number: ir.Value, kind: ir.VectorType) -> ir.Value:
    nothing = ir.Constant(kind, ir.Undefined)
    zeros = ir.Constant(ir.VectorType(_INT32, kind.count), None)
    return build.shuffle_vector(build.insert_element(nothing, number, value(0)), nothing, zeros)
