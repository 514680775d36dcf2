"""Compiled functions that outlive the process, found without being traced again.

JAX keeps what its compiler made of a program, but finds it by the program, which every start has to trace and lower
first: seconds for a meta step. Here a file is found by what a program is made from: our sources, the versions of the
libraries, the configuration, the shapes of the arguments, the machine.
"""

import json
import logging
import os
import pathlib
import pickle
import platform
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from typing import Any, Protocol

import jax
from jax.experimental import serialize_executable

import metamask_jax
from metamask_jax.kernels.process import cores
from metamask_jax.kernels.programs import read_sealed, write_sealed
from metamask_jax.kernels.switch import has_native

SUFFIX = ".program"
_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "ml_dtypes", "ml_collections")
_WHERE = ("jax_compilation_cache", "jax_persistent_cache", "jax_log", "jax_explain")  # settings that change no program
_FOUND = "/jax/compilation_cache/cache_hits"  # JAX says so when it has read a program instead of compiling it
_log = logging.getLogger(__name__)


class Compilable(Protocol):
    """What waits for its compiler, such as `jax.stages.Lowered`."""

    def compile(self) -> jax.stages.Compiled:
        """What can be called."""
        ...


class Kept:
    """A compiled function of a file that an earlier process has left; where there is none, one is left."""

    def __init__(self, function: Any, identity: str, folder: pathlib.Path) -> None:
        """Reads nothing yet.

        Args:
          function: what `jax.jit` or `jax.pmap` gave, of positional arguments, on all devices of this process.
          identity: everything that tells it from other functions of the same arguments, beside our sources.
          folder: of the files.
        """
        self._function, self._identity, self._folder = function, identity, folder
        self._ready: dict[Any, jax.stages.Compiled] = {}

    def lower(self, *arguments: Any) -> Compilable:
        """Finds the function for arguments like these, or traces it."""
        like = _like(arguments)
        if like not in self._ready:
            path = self._folder / f"{_digest([self._identity, str(like), _placed(arguments), _made_from()])}{SUFFIX}"
            found = _read(path)
            if found is None:
                return _Traced(self._function.lower(*arguments), path, self._ready, like)
            self._ready[like] = found
        return _Ready(self._ready[like])

    def __call__(self, *arguments: Any) -> Any:
        """Calls it, compiled now if need be."""
        run = self._ready.get(_like(arguments))
        return (run or self.lower(*arguments).compile())(*arguments)


class _Ready:
    """A function that has been compiled."""

    def __init__(self, compiled: jax.stages.Compiled) -> None:
        self._compiled = compiled

    def compile(self) -> jax.stages.Compiled:
        return self._compiled


class _Traced:
    """A function that leaves a file when it is compiled."""

    def __init__(self, lowered: jax.stages.Lowered, path: pathlib.Path, ready: dict[Any, Any], like: Any) -> None:
        self._lowered, self._path, self._ready, self._like = lowered, path, ready, like

    def compile(self) -> jax.stages.Compiled:
        with _heard() as events:
            compiled = self._lowered.compile()
        self._ready[self._like] = compiled
        if _FOUND not in events:  # XLA cannot write all of a program that it has read from a file of JAX's
            _write(self._path, compiled)
        return compiled


def _read(path: pathlib.Path) -> jax.stages.Compiled | None:
    """The function of a file, or None: then it is traced."""
    content = read_sealed(path)
    if content is None:
        return None
    try:
        kernels, program, inputs, outputs = pickle.loads(zlib.decompress(content))
        if kernels and not _native().restore(kernels):
            return None
        devices = jax.local_devices()
        return serialize_executable.deserialize_and_load(program, inputs, outputs, execution_devices=devices)
    except Exception as error:  # whatever it is: the program can be made anew
        _log.warning("%s cannot be used (%s); its program is traced again", path, error)
        return None


def _write(path: pathlib.Path, compiled: jax.stages.Compiled) -> None:
    kernels = _native().registered() if has_native() else []
    with suppress(OSError, ValueError, NotImplementedError):  # no room, or a program that JAX cannot write
        content = pickle.dumps([kernels, *serialize_executable.serialize(compiled)])
        write_sealed(path, zlib.compress(content, level=1))


@contextmanager
def _heard() -> Iterator[set[str]]:
    """What JAX tells of meanwhile."""
    events: set[str] = set()

    def hear(event: str, **about: Any) -> None:
        del about
        events.add(event)

    jax.monitoring.register_event_listener(hear)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_listener(hear)


def _native() -> Any:
    from metamask_jax.kernels.native import ffi  # LLVM may be missing

    return ffi


def _like(arguments: Sequence[Any]) -> Any:
    """What a traced function knows of its arguments."""
    leaves, structure = jax.tree.flatten(arguments)
    return structure, tuple(jax.typeof(leaf) for leaf in leaves)


def _placed(arguments: Sequence[Any]) -> list[str]:
    """On which devices arguments are."""
    return [str(getattr(leaf, "sharding", None)) for leaf in jax.tree.leaves(arguments)]


def _made_from() -> list[Any]:
    """What a program depends on beside its configuration and its arguments."""
    settings = {name: value for name, value in jax.config.values.items() if not name.startswith(_WHERE)}
    client = jax.local_devices()[0].client
    machine = [client.platform, client.platform_version, [device.device_kind for device in jax.local_devices()]]
    flags = [os.environ.get(name) for name in ("XLA_FLAGS", "METAMASK_KERNELS")]
    kernels = _native().source() if has_native() else None
    return [_sources(), kernels, cores(), sys.version, _processor(), machine, flags, repr(settings)]


@cache
def _processor() -> str:
    """What XLA compiles for: machines that share a folder of programs may differ in it."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # no Linux
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


@cache
def _sources() -> str:
    """Digest of this package and of the versions of the libraries that take part in a program."""
    folder = pathlib.Path(metamask_jax.__file__).parent
    files = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.py"))}
    return _digest([{name: version(name) for name in _LIBRARIES}, repr(files)])


def _digest(parts: list[Any]) -> str:
    return blake2b(json.dumps(parts, default=str).encode(), digest_size=16).hexdigest()
