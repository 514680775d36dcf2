"""Compiles native kernels for this machine, and runs them in XLA's programs or from Python."""

import ctypes
import re
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import jax
import llvmlite
from llvmlite import binding, ir

from metamask_jax.kernels.native.emit import INT, POINTER, Emitter, Machine
from metamask_jax.kernels.native.store import load, store
from metamask_jax.kernels.native.threads import address, pointer_at, run_parts
from metamask_jax.kernels.process import cores

# Writes the code of a kernel, given the addresses of all operands and results, and the number of the part to compute.
Body = Callable[[Emitter, Sequence[ir.Value], ir.Value], None]
# Writes the code of a function, given its arguments.
Write = Callable[[Emitter, Sequence[ir.Value]], None]

_NULL = ir.Constant(POINTER, None)
_MOST_SHARES, _FEW = 8, 64 * 64
_ELEMENTS = {"float32": ir.FloatType(), "float64": ir.DoubleType()}
_KNOWN_MAJOR = 0  # version of XLA's C interface (xla/ffi/api/c_api.h); minor ones only add to the ends of structures
# Offsets in its structures, in bytes.
_EXTENSION, _OPERANDS, _RESULTS = 8, 72, 112  # of a call
_DATA = 24  # of a buffer
_METADATA = 24  # of the extension by which XLA asks for a handler's version
_MAJOR, _MINOR = 24, 28  # of the metadata

# They own the compiled code: kernels that XLA knows, and functions that Python calls.
_engines: dict[str, binding.ExecutionEngine] = {}
_functions: dict[str, binding.ExecutionEngine] = {}
_lock = threading.Lock()


@cache
def machine() -> Machine | None:
    """This machine, or None if the kernels are not made for it or for its version of XLA."""
    if _version()[0] != _KNOWN_MAJOR:
        return None
    features = binding.get_host_cpu_features()
    if features.get("avx512f"):
        return Machine(bits=512, sums=24, vectors=4)
    if features.get("avx2") and features.get("fma"):
        return Machine(bits=256, sums=12, vectors=2)
    return None


def parts(units: int) -> int:
    """The number of equal parts to cut `units` of work into, so that every core has one."""
    return next(count for count in range(min(cores(), units), units + 1) if units % count == 0)


def shares(images: int, sums: int) -> int:
    """The number of equal shares to cut sums over images into, where there are few of them.

    Unlike `parts` it does not depend on the number of cores, because the rounding of a sum depends on how it is cut.
    """
    return 1 if sums > _FEW else max(count for count in range(1, _MOST_SHARES + 1) if images % count == 0)


def call(
    kernel: Callable[..., Body],
    settings: Sequence[Any],
    operands: Sequence[jax.Array],
    *results: Sequence[int] | jax.ShapeDtypeStruct,
    parts: int = 1,
) -> Sequence[jax.Array]:
    """Runs all parts of the kernel `kernel(*settings)` in parallel.

    Args:
      kernel: makes the kernel.
      settings: its arguments: everything that tells this kernel from others of the same function.
      operands: the first is of float32 or float64, which is what addresses count.
      *results: one shape per result, with a type unless it is that of the first operand.
      parts: into how many parts the kernel is cut.
    """
    host, dtype = machine(), operands[0].dtype
    assert host is not None
    description = repr((host, cores(), dtype.name, settings, parts))
    name = f"{kernel.__module__}.{kernel.__name__}.{sha256(description.encode()).hexdigest()[:16]}"
    with _lock:
        if name not in _engines:
            write = partial(_handler, kernel(*settings), host, dtype.name, len(operands), len(results), parts)
            _register(name, _engine(name, write))
    types = [
        result if isinstance(result, jax.ShapeDtypeStruct) else jax.ShapeDtypeStruct(tuple(result), dtype)
        for result in results
    ]
    return jax.ffi.ffi_call(name, types)(*operands)


def function(name: str, types: Sequence[ir.Type], element: ir.Type, write: Write) -> int:
    """The address of a function that is called by Python, not by XLA.

    Args:
      name: tells it from others.
      types: of its arguments; it returns nothing.
      element: what addresses count.
      write: writes its code.
    """
    host = machine()
    assert host is not None

    def module() -> ir.Module:
        module = ir.Module()
        made = ir.Function(module, ir.FunctionType(ir.VoidType(), types), "function")
        emit = Emitter(made, host, element)
        write(emit, made.args)
        emit.builder.ret_void()
        return module

    with _lock:
        if name not in _functions:
            _functions[name] = _engine(name, module)
    address: int = _functions[name].get_function_address("function")
    return address


def registered() -> list[str]:
    """Names of the kernels that XLA's programs in this process may call."""
    with _lock:
        return sorted(_engines)


def restore(names: Sequence[str]) -> bool:
    """Makes kernels that another process has compiled known to XLA; False if one of them is not kept."""
    with _lock:
        for name in names:
            if name in _engines:
                continue
            code = load(f"{name}-{source()}")
            if code is None:
                return False
            _register(name, _run(code))
    return True


@cache
def source() -> str:
    """Digest of what machine code depends on beside the settings: our sources, XLA's interface, LLVM, the processor."""
    files = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    compiler = llvmlite.__version__, binding.llvm_version_info
    return blake2b(repr((files, compiler, _host(), _version())).encode(), digest_size=16).hexdigest()


def _register(name: str, engine: binding.ExecutionEngine) -> None:
    """Makes a kernel known to XLA."""
    handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(engine.get_function_address("handler"))
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="cpu")
    _engines[name] = engine


def _engine(name: str, module: Callable[[], ir.Module]) -> binding.ExecutionEngine:
    """The machine code of a module, from where such code is kept or compiled, loaded into this process."""
    key = f"{name}-{source()}"
    code = load(key)
    if code is None:
        code = _compile(module())
        store(key, code)
    return _run(code)


def _handler(body: Body, host: Machine, dtype: str, operands: int, results: int, parts: int) -> ir.Module:
    """A function `handler`, which XLA calls."""
    module = ir.Module()
    part = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER, INT]), "part")
    emit = Emitter(part, host, _ELEMENTS[dtype])
    buffers = [pointer_at(emit.builder, part.args[0], 8 * i) for i in range(operands + results)]
    body(emit, buffers, part.args[1])
    emit.builder.ret_void()

    handler = ir.Function(module, ir.FunctionType(POINTER, [POINTER]), "handler")
    builder, (frame,) = ir.IRBuilder(handler.append_basic_block()), handler.args
    _answer_version(builder, frame)
    found = [_buffer(builder, frame, _OPERANDS, i) for i in range(operands)]
    found += [_buffer(builder, frame, _RESULTS, i) for i in range(results)]
    run_parts(builder, frame, part, found, parts, others=min(parts, cores()) - 1)
    builder.ret(_NULL)  # no error
    return module


def _compile(module: ir.Module) -> bytes:
    """Machine code of a module."""
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    # The code is written with vectors and in the order it should run: more optimisation would find little.
    options = binding.create_pipeline_tuning_options(speed_level=1)
    passes = binding.create_pass_builder(_target(), options)
    # Function by function: passes over the whole module would look for what to inline, and nothing is.
    manager = passes.getFunctionPassManager()
    for function in parsed.functions:
        if not function.is_declaration:
            manager.run(function, passes)
    code: bytes = _target().emit_object(parsed)
    return code


def _run(code: bytes) -> binding.ExecutionEngine:
    """Loads machine code into this process."""
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _target())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


@cache
def _target() -> binding.TargetMachine:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple().create_target_machine(**_host(), opt=2, jit=True)


def _host() -> dict[str, str]:
    return {"cpu": binding.get_host_cpu_name(), "features": binding.get_host_cpu_features().flatten()}


def _answer_version(builder: ir.IRBuilder, frame: ir.Value) -> None:
    """Writes code that returns at once when XLA only asks which version of the interface the handler is made for."""
    extension = pointer_at(builder, frame, _EXTENSION)
    with builder.if_then(builder.icmp_unsigned("!=", extension, _NULL)):
        metadata = pointer_at(builder, extension, _METADATA)
        for offset, version in zip((_MAJOR, _MINOR), _version(), strict=True):
            builder.store(ir.Constant(ir.IntType(32), version), address(builder, metadata, offset))
        builder.ret(_NULL)


@cache
def _version() -> list[int]:
    header = (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text()
    return [int(number) for number in re.findall(r"#define XLA_FFI_API_(?:MAJOR|MINOR) (\d+)", header)]


def _buffer(builder: ir.IRBuilder, frame: ir.Value, which: int, i: int) -> ir.Value:
    return pointer_at(builder, pointer_at(builder, pointer_at(builder, frame, which), 8 * i), _DATA)
