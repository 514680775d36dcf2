"""LLVM code for loops over arrays, and the one product of matrices that all native kernels are made of."""

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple, TypeAlias

from llvmlite import ir

INT, POINTER = ir.IntType(64), ir.PointerType()
VECTOR = 16  # numbers in the longest vector register; channels come in multiples of it

Index: TypeAlias = "ir.Value | int"
Vectors: TypeAlias = Sequence[ir.Value]


class Machine(NamedTuple):
    """What decides how a product is cut into pieces that stay in registers.

    Attributes:
      bits: size of a vector register.
      sums: registers that hold the entries of a piece.
      vectors: width of a piece, in vectors.
    """

    bits: int
    sums: int
    vectors: int

    def rows(self, vectors: int) -> int:
        """Height of a piece that is `vectors` wide."""
        return self.sums // vectors


class Product(NamedTuple):
    """`c[i, j] = sum_k a[i, k] * b[k, j]`, where `k` may be several axes of `a`, and `b` is packed (`Emitter.packed`).

    Attributes:
      a_row: distance from one row of `a` to the next, in numbers.
      c_row: distance from one row of `c` to the next, or None if `c` is packed too.
      sums: the axes of `k`, outermost first: the length, and the distance from one entry to the next in `a`.
      accumulate: whether to add to what `c` holds.
    """

    a_row: int
    c_row: int | None
    sums: tuple[tuple[int, int], ...]
    accumulate: bool

    @property
    def depth(self) -> int:
        """How many products are summed per entry of `c`."""
        return prod(count for count, _ in self.sums)


class Emitter:
    """Writes the body of a function on arrays of one floating-point type."""

    def __init__(self, function: ir.Function, machine: Machine, element: ir.Type) -> None:
        """Starts at the beginning of an empty function."""
        # A register that is saved on the stack must not lie across two cache lines: reading it would take far longer.
        function.attributes.alignstack = machine.bits // 8
        self.builder = ir.IRBuilder(function.append_basic_block())
        self.machine = machine
        self.bytes = 8 if isinstance(element, ir.DoubleType) else 4  # of a number
        self.lanes = machine.bits // (8 * self.bytes)
        self.element, self._module = element, function.module
        self._vector = ir.VectorType(element, self.lanes)

    def at(self, pointer: ir.Value, *offsets: Index) -> ir.Value:
        """The address that is the sum of `offsets` numbers further on."""
        for offset in offsets:
            if not (isinstance(offset, int) and offset == 0):
                pointer = self.builder.gep(pointer, [value(offset)], inbounds=True, source_etype=self.element)
        return pointer

    def scaled(self, index: Index, stride: int) -> Index:
        """`index * stride`."""
        return index * stride if isinstance(index, int) else self.builder.mul(index, value(stride))

    def divided(self, index: ir.Value, by: int) -> tuple[ir.Value, ir.Value]:
        """Quotient and remainder."""
        return self.builder.udiv(index, value(by)), self.builder.urem(index, value(by))

    def place(self, table: ir.Value, index: int) -> ir.Value:
        """The address of an entry of a table of places."""
        return self.builder.gep(table, [value(index)], inbounds=True, source_etype=INT)

    def entry(self, table: ir.Value, index: int) -> ir.Value:
        """An entry of a table of places."""
        return self.builder.load(self.place(table, index), typ=INT, align=4)

    def chosen(self, entries: Sequence[int], index: ir.Value) -> ir.Value:
        """An entry of a list of constants; the index itself where it counts."""
        if list(entries) == list(range(len(entries))):
            return index
        name, kind = f"list {entries}", ir.ArrayType(INT, len(entries))
        if name not in self._module.globals:
            made = ir.GlobalVariable(self._module, kind, name)
            made.linkage, made.global_constant, made.initializer = "internal", True, ir.Constant(kind, list(entries))
        places = [value(0), index]
        place = self.builder.gep(self._module.globals[name], places, inbounds=True, source_etype=kind)
        return self.builder.load(place, typ=INT)

    def offset(self, pointer: ir.Value, place: ir.Value) -> ir.Value:
        """The address that is so many bytes further on."""
        return self.builder.gep(pointer, [place], source_etype=ir.IntType(8))

    def distance(self, start: ir.Value, end: ir.Value) -> ir.Value:
        """From one address to another, in bytes."""
        return self.builder.sub(self.builder.ptrtoint(end, INT), self.builder.ptrtoint(start, INT))

    def load(self, pointer: ir.Value) -> ir.Value:
        """A vector of the numbers that follow each other from an address on."""
        return self.builder.load(pointer, align=4, typ=self._vector)

    def store(self, vector: ir.Value, pointer: ir.Value) -> None:
        """Writes the numbers of a vector one after the other."""
        self.builder.store(vector, pointer, align=4)

    def stream(self, vector: ir.Value, pointer: ir.Value) -> None:
        """The same past the caches, for what will not be read before they have forgotten it; aligned to a vector."""
        stored = self.builder.store(vector, pointer, align=self.machine.bits // 8)
        stored.set_metadata("nontemporal", self._module.add_metadata([ir.Constant(ir.IntType(32), 1)]))

    def prefetch(self, pointer: ir.Value) -> None:
        """Asks for a line of a cache, wherever it may be."""
        kind, name = ir.IntType(32), "llvm.prefetch.p0"
        if name not in self._module.globals:
            ir.Function(self._module, ir.FunctionType(ir.VoidType(), [POINTER, kind, kind, kind]), name)
        self.builder.call(self._module.globals[name], [pointer, *(ir.Constant(kind, i) for i in (0, 2, 1))])

    def constant(self, number: float) -> ir.Constant:
        """A vector whose entries are all the same number."""
        return ir.Constant(self._vector, [number] * self.lanes)

    def combine(self, factors: Sequence[float], vectors: Vectors) -> ir.Value:
        """The weighted sum: nothing is done for a factor of zero, and no product for a factor of one."""
        terms = [pair for pair in zip(factors, vectors, strict=True) if pair[0] != 0]
        terms.sort(key=lambda pair: pair[0] != 1)  # ones first: all that follow are fused products or differences
        (factor, first), *rest = terms
        total = first if factor == 1 else self.builder.fmul(self.constant(factor), first)
        for factor, vector in rest:
            if factor == 1:
                total = self.builder.fadd(total, vector)
            elif factor == -1:
                total = self.builder.fsub(total, vector)
            else:
                total = self.fused(self.constant(factor), vector, total)
        return total

    def fold(self, count: int, carry: Vectors, body: Callable[[ir.Value, Vectors], Vectors]) -> Vectors:
        """`for i in range(count): carry = body(i, carry)`, for a count that is not zero."""
        before, inside = self.builder.block, self.builder.append_basic_block()
        self.builder.branch(inside)
        self.builder.position_at_end(inside)
        i = self.builder.phi(INT)
        phis = [self.builder.phi(vector.type) for vector in carry]
        results = body(i, phis)
        after = self.builder.add(i, value(1))
        end, outside = self.builder.block, self.builder.append_basic_block()
        self.builder.cbranch(self.builder.icmp_unsigned("<", after, value(count)), inside, outside)
        for phi, first, last in zip([i, *phis], [value(0), *carry], [after, *results], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(last, end)
        self.builder.position_at_end(outside)
        return results

    def repeat(self, count: int, body: Callable[[ir.Value], None]) -> None:
        """`for i in range(count): body(i)`, for a count that is not zero."""

        def step(i: ir.Value, carry: Vectors) -> Vectors:
            body(i)
            return carry

        self.fold(count, [], step)

    def pieces(self, count: int, size: int, body: Callable[[Index, int], None]) -> None:
        """`body(start, length)` for pieces of `size` that cover `count`, and what is left over."""
        whole, rest = divmod(count, size)
        if whole:
            self.repeat(whole, lambda i: body(self.scaled(i, size), size))
        if rest:
            body(whole * size, rest)

    def columns(self, count: int, body: Callable[[Index, int], None]) -> None:
        """`body(start, vectors)` for the pieces that a product's columns are cut into."""
        pieces = count // self.lanes, self.machine.vectors
        self.pieces(*pieces, lambda i, vectors: body(self.scaled(i, self.lanes), vectors))

    def packed(self, b: ir.Value, depth: int, start: Index, vectors: int, k: Index) -> list[ir.Value]:
        """Addresses of row `k` of the piece of columns from `start`: each piece is an array `[depth, columns]`."""
        row = self.at(b, self.scaled(start, depth), self.scaled(k, vectors * self.lanes))
        return [self.at(row, v * self.lanes) for v in range(vectors)]

    def pack(self, shape: tuple[int, int], row: int, source: ir.Value, target: ir.Value) -> None:
        """Copies a matrix, whose rows are `row` numbers apart, into the layout of the right side of a product."""
        depth, columns = shape

        def piece(start: Index, vectors: int) -> None:
            def line(k: ir.Value) -> None:
                here = self.at(source, self.scaled(k, row), start)
                for v, there in enumerate(self.packed(target, depth, start, vectors, k)):
                    self.store(self.load(self.at(here, v * self.lanes)), there)

            self.repeat(depth, line)

        self.columns(columns, piece)

    def gather(self, rows: int, sums: Sequence[tuple[int, int]], source: ir.Value, target: ir.Value) -> None:
        """Copies a piece of a matrix into an array `[depth, rows]`; entries of one column are neighbours in memory."""
        if not sums:
            line = ir.VectorType(self.element, rows)
            self.builder.store(self.builder.load(source, align=4, typ=line), target, align=4)
            return
        (count, step), *rest = sums
        size = prod(inner for inner, _ in rest) * rows

        def inside(k: ir.Value) -> None:
            self.gather(rows, rest, self.at(source, self.scaled(k, step)), self.at(target, self.scaled(k, size)))

        self.repeat(count, inside)

    def zero(self, count: int, target: ir.Value) -> None:
        """Sets `count` numbers, a multiple of those in a vector, to zero."""
        self.repeat(
            count // self.lanes, lambda i: self.store(self.constant(0.0), self.at(target, self.scaled(i, self.lanes)))
        )

    def product(self, product: Product, rows: int, columns: int, a: ir.Value, b: ir.Value, c: ir.Value) -> None:
        """Writes a whole product: all rows with all columns."""

        def piece(start: Index, vectors: int) -> None:
            target = self.at(c, self.scaled(start, rows) if product.c_row is None else start)
            self.rows(product, rows, vectors, a, self.at(b, self.scaled(start, product.depth)), target)

        self.columns(columns, piece)

    def rows(self, product: Product, count: int, vectors: int, a: ir.Value, b: ir.Value, c: ir.Value) -> None:
        """Multiplies all rows with one piece of columns, `vectors` wide."""
        c_row = product.c_row or vectors * self.lanes

        def piece(i: Index, rows: int) -> None:
            left, target = self.at(a, self.scaled(i, product.a_row)), self.at(c, self.scaled(i, c_row))
            self._sums(product, (rows, vectors), c_row, left, b, target)

        self.pieces(count, self.machine.rows(vectors), piece)

    def _sums(self, product: Product, size: tuple[int, int], c_row: int, a: ir.Value, b: ir.Value, c: ir.Value) -> None:
        """Multiplies one piece. Sums over several axes are sums of sums, which have smaller rounding errors."""
        (count, step), *rest = product.sums
        if not rest:
            self._piece(product, size, c_row, a, b, c)
            return
        inner = product._replace(sums=tuple(rest))
        length = inner.depth * size[1] * self.lanes
        self._sums(inner, size, c_row, a, b, c)

        def add(k: ir.Value) -> None:
            k = self.builder.add(k, value(1))
            left, right = self.at(a, self.scaled(k, step)), self.at(b, self.scaled(k, length))
            self._sums(inner._replace(accumulate=True), size, c_row, left, right, c)

        if count > 1:
            self.repeat(count - 1, add)

    def _piece(
        self, product: Product, size: tuple[int, int], c_row: int, a: ir.Value, b: ir.Value, c: ir.Value
    ) -> None:
        """Multiplies rows and columns that fit into registers, for one axis of `k`."""
        ((count, step),), (rows, vectors) = product.sums, size
        places = [(i, v) for i in range(rows) for v in range(vectors)]

        def write(emit: "Emitter", arguments: Sequence[ir.Value]) -> None:
            a, b, c = arguments

            def multiply(k: ir.Value, totals: Vectors) -> Vectors:
                here, there = emit.at(a, emit.scaled(k, step)), emit.at(b, emit.scaled(k, vectors * self.lanes))
                right = [emit.load(emit.at(there, v * self.lanes)) for v in range(vectors)]
                left = [emit.everywhere(emit.at(here, i * product.a_row)) for i in range(rows)]
                return [emit.fused(left[i], right[v], total) for (i, v), total in zip(places, totals, strict=True)]

            totals = emit.fold(count, [emit.constant(0.0)] * len(places), multiply)
            for (i, v), total in zip(places, totals, strict=True):
                target = emit.at(c, i * c_row + v * self.lanes)
                emit.store(emit.builder.fadd(total, emit.load(target)) if product.accumulate else total, target)

        self.call(f"{product}, {size}, {c_row}", write, [a, b, c])

    def call(
        self, name: str, write: Callable[["Emitter", Sequence[ir.Value]], None], arguments: Sequence[ir.Value]
    ) -> None:
        """Calls a function, which `write` writes, given its arguments, where no other call of that name has.

        One copy of what a kernel does in many places, instead of one per place, takes a fraction of the time to
        compile.
        """
        if name not in self._module.globals:
            types = [argument.type for argument in arguments]
            function = ir.Function(self._module, ir.FunctionType(ir.VoidType(), types), name)
            function.linkage = "internal"
            function.attributes.add("noinline")
            emit = Emitter(function, self.machine, self.element)
            write(emit, function.args)
            emit.builder.ret_void()
        self.builder.call(self._module.globals[name], arguments)

    def everywhere(self, pointer: ir.Value) -> ir.Value:
        """A vector whose entries are all the number at an address."""
        nothing = ir.Constant(self._vector, ir.Undefined)
        one = self.builder.insert_element(nothing, self.builder.load(pointer, typ=self.element), value(0))
        return self.shuffled(one, nothing, [0] * self.lanes)

    def shuffled(self, a: ir.Value, b: ir.Value, places: Sequence[int]) -> ir.Value:
        """A vector of entries of two others, at places counted through both."""
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), list(places)))

    def fused(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """`a * b + c` in one rounding."""
        name = f"llvm.fma.v{self.lanes}f{self.machine.bits // self.lanes}"
        if name not in self._module.globals:
            ir.Function(self._module, ir.FunctionType(self._vector, [self._vector] * 3), name)
        return self.builder.call(self._module.globals[name], [a, b, c])


def value(index: Index) -> ir.Value:
    """An index as a value of the program."""
    return ir.Constant(INT, index) if isinstance(index, int) else index
