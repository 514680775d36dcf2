"""Max-pooling that says which pixel it took, and the two linear operations that its derivatives are made of.

A picture is one part of the work: it fits the cache of a core, so that memory is passed over once. A window that
reaches beyond its picture meets the pixels at the edge again; of equal pixels the first is taken, so that this changes
nothing.
"""

from collections.abc import Callable, Sequence
from math import prod

import jax
import numpy as np
from llvmlite import ir

from metamask_jax.kernels.geometry import Geometry
from metamask_jax.kernels.native.emit import Emitter, Index, value
from metamask_jax.kernels.native.ffi import Body, call


def pool(x: jax.Array, *, geometry: Geometry) -> Sequence[jax.Array]:
    """The largest pixel of each window of `x` `[images, height, width, channels]`, and which of its pixels that is."""
    images, _, _, channels = x.shape
    shape = images, *geometry.output, channels
    return call(_pool, (geometry, channels), (x,), shape, jax.ShapeDtypeStruct(shape, np.uint8), parts=images)


def pick(x: jax.Array, taken: jax.Array, *, geometry: Geometry) -> jax.Array:
    """Of each window the pixel that was taken."""
    return call(_pick, (geometry, x.shape[3]), (x, taken), taken.shape, parts=len(x))[0]


def place(y: jax.Array, taken: jax.Array, *, geometry: Geometry) -> jax.Array:
    """The pixels that `pick` would take are put back, added up where windows overlap."""
    images, _, _, channels = y.shape
    return call(_place, (geometry, channels), (y, taken), (images, *geometry.image, channels), parts=images)[0]


class _Lanes:
    """Some neighbouring channels, in vectors that are as long: of numbers, of integers of the same size, of bytes."""

    def __init__(self, emit: Emitter, count: int) -> None:
        self._build = emit.builder
        self._numbers = ir.VectorType(emit.element, count)
        self._integers, self._bytes = (ir.VectorType(ir.IntType(8 * size), count) for size in (emit.bytes, 1))

    def load(self, address: ir.Value) -> ir.Value:
        """Numbers."""
        return self._build.load(address, align=4, typ=self._numbers)

    def load_bytes(self, address: ir.Value) -> ir.Value:
        """Bytes, as integers."""
        return self._build.zext(self._build.load(address, align=1, typ=self._bytes), self._integers)

    def store(self, numbers: ir.Value, address: ir.Value) -> None:
        """Writes numbers."""
        self._build.store(numbers, address, align=4)

    def store_bytes(self, integers: ir.Value, address: ir.Value) -> None:
        """Writes integers as bytes."""
        self._build.store(self._build.trunc(integers, self._bytes), address, align=1)

    def integer(self, integer: int) -> ir.Constant:
        """The same integer in every place."""
        return ir.Constant(self._integers, [integer] * self._integers.count)

    def zero(self) -> ir.Constant:
        """Zeros."""
        return ir.Constant(self._numbers, [0.0] * self._numbers.count)


def _pool(geometry: Geometry, channels: int) -> Body:
    def body(emit: Emitter, buffers: Sequence[ir.Value], part: ir.Value) -> None:
        build = emit.builder
        x, y, taken = _picture(emit, geometry, channels, part, *buffers)

        def window(pixels: Sequence[ir.Value], here: ir.Value, lanes: _Lanes) -> None:
            best, which = lanes.load(emit.at(x, pixels[0])), lanes.integer(0)
            for i, pixel in enumerate(pixels[1:], start=1):
                new = lanes.load(emit.at(x, pixel))
                # What is no number counts as larger than all that came before, and nothing as larger than it.
                better = build.or_(build.fcmp_ordered(">", new, best), build.fcmp_unordered("uno", new, new))
                best, which = build.select(better, new, best), build.select(better, lanes.integer(i), which)
            lanes.store(best, emit.at(y, here))
            lanes.store_bytes(which, emit.offset(taken, here))

        _each_window(emit, geometry, channels, window)

    return body


def _pick(geometry: Geometry, channels: int) -> Body:
    def body(emit: Emitter, buffers: Sequence[ir.Value], part: ir.Value) -> None:
        build = emit.builder
        source, taken, target = buffers
        x, y, taken = _picture(emit, geometry, channels, part, source, target, taken)

        def window(pixels: Sequence[ir.Value], here: ir.Value, lanes: _Lanes) -> None:
            which = lanes.load_bytes(emit.offset(taken, here))
            found = lanes.load(emit.at(x, pixels[0]))
            for i, pixel in enumerate(pixels[1:], start=1):
                new = lanes.load(emit.at(x, pixel))
                found = build.select(build.icmp_unsigned("==", which, lanes.integer(i)), new, found)
            lanes.store(found, emit.at(y, here))

        _each_window(emit, geometry, channels, window)

    return body


def _place(geometry: Geometry, channels: int) -> Body:
    def body(emit: Emitter, buffers: Sequence[ir.Value], part: ir.Value) -> None:
        build = emit.builder
        source, taken, target = buffers
        x, y, taken = _picture(emit, geometry, channels, part, target, source, taken)

        def clear(pixel: ir.Value, lanes: _Lanes) -> None:
            lanes.store(lanes.zero(), emit.at(x, pixel))

        def window(pixels: Sequence[ir.Value], here: ir.Value, lanes: _Lanes) -> None:
            which, new = lanes.load_bytes(emit.offset(taken, here)), lanes.load(emit.at(y, here))
            for i, pixel in enumerate(pixels):
                address = emit.at(x, pixel)
                more = build.select(build.icmp_unsigned("==", which, lanes.integer(i)), new, lanes.zero())
                lanes.store(build.fadd(lanes.load(address), more), address)

        emit.repeat(prod(geometry.image), lambda i: _each_vector(emit, channels, emit.scaled(i, channels), clear))
        _each_window(emit, geometry, channels, window)

    return body


def _picture(
    emit: Emitter, geometry: Geometry, channels: int, i: ir.Value, x: ir.Value, y: ir.Value, taken: ir.Value
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Where the picture `i` begins in `x`, and its windows in `y` and `taken`, which holds bytes."""
    pixels, windows = (emit.scaled(i, prod(size) * channels) for size in (geometry.image, geometry.output))
    return emit.at(x, pixels), emit.at(y, windows), emit.offset(taken, value(windows))


def _each_window(
    emit: Emitter,
    geometry: Geometry,
    channels: int,
    visit: Callable[[Sequence[ir.Value], ir.Value, _Lanes], None],
) -> None:
    """`visit(pixels, here, lanes)` for every window and vector of channels: what is where, counted in numbers."""
    build, (rows, columns) = emit.builder, geometry.output

    def places(axis: int, i: ir.Value) -> list[ir.Value]:
        """The rows or columns of window `i`."""
        (padding, _), size = geometry.padding[axis], geometry.image[axis]
        start = build.sub(value(emit.scaled(i, geometry.strides[axis])), value(padding))
        found = [build.add(start, value(k)) for k in range(geometry.window[axis])]
        if padding == 0:  # then no window reaches beyond its picture
            return found
        found = [build.select(build.icmp_signed("<", k, value(0)), value(0), k) for k in found]
        return [build.select(build.icmp_signed(">", k, value(size - 1)), value(size - 1), k) for k in found]

    def row(i: ir.Value) -> None:
        lines = [emit.scaled(k, geometry.image[1]) for k in places(0, i)]

        def window(j: ir.Value) -> None:
            pixels = [build.mul(build.add(line, k), value(channels)) for line in lines for k in places(1, j)]
            here = emit.scaled(build.add(value(emit.scaled(i, columns)), j), channels)

            def vector(channel: ir.Value, lanes: _Lanes) -> None:
                visit([build.add(pixel, channel) for pixel in pixels], build.add(value(here), channel), lanes)

            _each_vector(emit, channels, 0, vector)

        emit.repeat(columns, window)

    emit.repeat(rows, row)


def _each_vector(emit: Emitter, channels: int, start: Index, visit: Callable[[ir.Value, _Lanes], None]) -> None:
    """`visit(place, lanes)` for whole vectors of channels from `start` on, and for what is left over."""
    whole, rest = divmod(channels, emit.lanes)

    def vector(i: ir.Value) -> None:
        visit(emit.builder.add(value(start), value(emit.scaled(i, emit.lanes))), _Lanes(emit, emit.lanes))

    if whole:
        emit.repeat(whole, vector)
    if rest:
        visit(emit.builder.add(value(start), value(whole * emit.lanes)), _Lanes(emit, rest))
