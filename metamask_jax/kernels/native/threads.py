"""Runs the parts of a kernel on the threads of XLA's own pool, in LLVM's language."""

from collections.abc import Sequence

from llvmlite import ir

from metamask_jax.kernels.native.emit import INT, POINTER

_NULL, _ONE = ir.Constant(POINTER, None), ir.Constant(INT, 1)
# Offsets in the structures of XLA's C interface (xla/ffi/api/c_api.h), in bytes.
_API, _CONTEXT = 16, 24  # of a call
_DESTROY, _SCHEDULE = 64, 136  # functions of the interface
# What the threads share: counters, and then the addresses of the buffers.
_NEXT, _DONE, _USERS, _BUFFERS = 0, 8, 16, 24


def run_parts(
    builder: ir.IRBuilder, frame: ir.Value, part: ir.Function, buffers: Sequence[ir.Value], count: int, others: int
) -> None:
    """Calls `part(buffers, i)` for every i below `count`, on this thread and on at most `others` that are free.

    Each thread takes the next part when it is free. This one waits only for parts that others have begun, never for
    others to begin, so that it comes to an end even if no other thread is ever free. A thread that begins after the end
    finds no part left; the last one to leave frees the memory they share.
    """
    module = builder.module
    shared = builder.call(_function(module, "malloc", POINTER, [INT]), [_int(_BUFFERS + 8 * len(buffers))])
    for offset, start in ((_NEXT, 0), (_DONE, 0), (_USERS, others + 1)):
        builder.store(_int(start), address(builder, shared, offset))
    for i, buffer in enumerate(buffers):
        builder.store(buffer, address(builder, shared, _BUFFERS + 8 * i))
    work, leave = _work(module, part, count), _leave(module)
    for _ in range(others):
        _schedule(builder, frame, _task(module, work, leave), shared, leave)
    builder.call(work, [shared])

    wait, end = builder.append_basic_block(), builder.append_basic_block()
    builder.branch(wait)
    builder.position_at_end(wait)
    builder.call(_function(module, "sched_yield", ir.IntType(32), []), [])
    done = builder.load_atomic(address(builder, shared, _DONE), "acquire", 8, typ=INT)
    builder.cbranch(builder.icmp_unsigned("==", done, _int(count)), end, wait)
    builder.position_at_end(end)
    builder.call(leave, [shared])


def _work(module: ir.Module, part: ir.Function, count: int) -> ir.Function:
    """`work(shared)`: takes parts until none is left."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER]), "work")
    builder, (shared,) = ir.IRBuilder(function.append_basic_block()), function.args
    take, run, end = (function.append_basic_block() for _ in range(3))
    builder.branch(take)
    builder.position_at_end(take)
    i = builder.atomic_rmw("add", address(builder, shared, _NEXT), _ONE, "acq_rel")
    builder.cbranch(builder.icmp_unsigned("<", i, _int(count)), run, end)
    builder.position_at_end(run)
    builder.call(part, [address(builder, shared, _BUFFERS), i])
    builder.atomic_rmw("add", address(builder, shared, _DONE), _ONE, "acq_rel")
    builder.branch(take)
    builder.position_at_end(end)
    builder.ret_void()
    return function


def _leave(module: ir.Module) -> ir.Function:
    """`leave(shared)`: frees the shared memory if no other thread uses it."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER]), "leave")
    builder, (shared,) = ir.IRBuilder(function.append_basic_block()), function.args
    users = builder.atomic_rmw("sub", address(builder, shared, _USERS), _ONE, "acq_rel")
    with builder.if_then(builder.icmp_unsigned("==", users, _ONE)):
        builder.call(_function(module, "free", ir.VoidType(), [POINTER]), [shared])
    builder.ret_void()
    return function


def _task(module: ir.Module, work: ir.Function, leave: ir.Function) -> ir.Function:
    """`task(shared)`: what another thread runs."""
    if "task" in module.globals:
        return module.globals["task"]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER]), "task")
    builder = ir.IRBuilder(function.append_basic_block())
    for step in (work, leave):
        builder.call(step, function.args)
    builder.ret_void()
    return function


def _schedule(builder: ir.IRBuilder, frame: ir.Value, task: ir.Function, shared: ir.Value, leave: ir.Function) -> None:
    """Asks XLA to run a task on some thread; if it cannot, that thread counts as having left."""
    error = _ask(builder, frame, _SCHEDULE, [pointer_at(builder, frame, _CONTEXT), task, shared])
    with builder.if_then(builder.icmp_unsigned("!=", error, _NULL)):
        _ask(builder, frame, _DESTROY, [error])
        builder.call(leave, [shared])


def _ask(builder: ir.IRBuilder, frame: ir.Value, function: int, values: Sequence[ir.Value]) -> ir.Value:
    """Calls a function of the interface, which takes one structure: its size, no extension, and the values."""
    with builder.goto_entry_block():
        slots = builder.alloca(INT, 2 + len(values))
        structure = builder.inttoptr(builder.ptrtoint(slots, INT), POINTER)  # without a type, like all pointers here
    builder.store(_int(8 * (2 + len(values))), structure)
    for i, value in enumerate([_NULL, *values], start=1):
        builder.store(value, address(builder, structure, 8 * i))
    kind = ir.FunctionType(POINTER, [POINTER]).as_pointer()
    table = pointer_at(builder, frame, _API)
    return builder.call(builder.load(address(builder, table, function), typ=kind), [structure])


def pointer_at(builder: ir.IRBuilder, structure: ir.Value, offset: int) -> ir.Value:
    """The pointer that a structure holds `offset` bytes from its start."""
    return builder.load(address(builder, structure, offset), typ=POINTER)


def address(builder: ir.IRBuilder, structure: ir.Value, offset: int) -> ir.Value:
    """The address `offset` bytes from the start of a structure."""
    return builder.gep(structure, [_int(offset)], source_etype=ir.IntType(8))


def _function(module: ir.Module, name: str, result: ir.Type, arguments: Sequence[ir.Type]) -> ir.Function:
    """A function of the C library."""
    if name not in module.globals:
        ir.Function(module, ir.FunctionType(result, arguments), name)
    return module.globals[name]


def _int(number: int) -> ir.Constant:
    return ir.Constant(INT, number)
