"""Machine code that outlives the process, whatever happens to its file."""

import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metamask_jax.kernels import lax_kernels
from metamask_jax.kernels.geometry import Geometry
from metamask_jax.kernels.switch import has_native

if not has_native():
    pytest.skip("native kernels need llvmlite and a processor with AVX2 or AVX-512", allow_module_level=True)

from metamask_jax.kernels.native import direct, ffi, store

FLIPS = 40
LENGTHS = (0, 1, 31, 32, 33, 0.1, 0.5, 0.999)  # bytes, or parts of the file
_restarts = itertools.count()
_kept = []  # machine code that XLA has heard of must not be freed


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "programs"
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(path))
    yield path
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.fixture
def restart(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Forgets all kernels, as the end of the process does; XLA cannot, so that they get new names there."""
    register, call = jax.ffi.register_ffi_target, jax.ffi.ffi_call

    def restart() -> None:
        suffix = f".{next(_restarts)}"
        _kept.append(ffi._engines)
        monkeypatch.setattr(ffi, "_engines", {})
        monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda name, *a, **k: register(name + suffix, *a, **k))
        monkeypatch.setattr(jax.ffi, "ffi_call", lambda name, *a, **k: call(name + suffix, *a, **k))

    yield restart
    _kept.append(ffi._engines)


def convolve(window: int) -> None:
    """Convolves small integers, which leaves no rounding errors, on a native kernel and compares with XLA's own."""
    geometry = Geometry.make(image=(2, 2), window=(window,) * 2, strides=(1, 1), padding="VALID")
    x = jnp.arange(64.0).reshape(1, 2, 2, 16) % 7
    w = jnp.arange(window**2 * 256.0).reshape(window, window, 16, 16) % 5
    found = direct.conv(x, w, geometry)
    np.testing.assert_array_equal(found, lax_kernels.conv(x, w, geometry=geometry))


def damaged(content: bytes) -> Iterator[bytes]:
    """The content of a file with one of many bits flipped, or cut off."""
    for i in range(FLIPS):
        bit = i * 8 * len(content) // FLIPS + i % 8
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)
    for length in LENGTHS:
        yield content[: length if isinstance(length, int) else int(length * len(content))]


def test_a_damaged_file_is_compiled_again_and_repaired(folder: Path, restart: Callable[[], None]) -> None:
    restart()
    convolve(1)
    (path,) = folder.iterdir()
    good = path.read_bytes()
    for content in damaged(good):
        path.write_bytes(content)
        restart()
        convolve(1)
        assert path.read_bytes() == good
        assert list(folder.iterdir()) == [path]


def test_a_whole_file_is_not_compiled_again(
    folder: Path, restart: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    restart()
    convolve(1)
    monkeypatch.setattr(ffi, "_compile", None)
    restart()
    convolve(1)


def test_the_file_of_another_kernel_is_refused(folder: Path, restart: Callable[[], None]) -> None:
    restart()
    convolve(1)
    (one,) = folder.iterdir()
    convolve(2)
    (two,) = set(folder.iterdir()) - {one}
    good = one.read_bytes(), two.read_bytes()
    one.write_bytes(good[1])
    two.write_bytes(good[0])
    restart()
    convolve(1)
    convolve(2)
    assert (one.read_bytes(), two.read_bytes()) == good


def test_a_file_that_cannot_be_read_or_replaced_is_no_error(folder: Path, restart: Callable[[], None]) -> None:
    restart()
    convolve(1)
    (path,) = folder.iterdir()
    path.unlink()
    (path / "in the way").mkdir(parents=True)
    restart()
    convolve(1)
    assert path.is_dir()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("binding.get_host_cpu_name", lambda: "another processor"),
        ("binding.get_host_cpu_features", lambda: type("", (), {"flatten": lambda self: "+another"})()),
        ("llvmlite.__version__", "another"),
        ("binding.llvm_version_info", (0, 0, 0)),
        ("_version", lambda: [0, 999]),
        ("__file__", __file__),  # other sources beside it
    ],
)
def test_code_is_kept_for_this_processor_compiler_and_source_alone(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ffi.source.__wrapped__
    before = source()
    assert source() == before
    *modules, attribute = name.split(".")
    monkeypatch.setattr(getattr(ffi, modules[0]) if modules else ffi, attribute, value)
    assert source() != before


def test_code_comes_back_as_it_was_stored(folder: Path) -> None:
    assert store.load("a") is None
    store.store("a", b"code")
    assert store.load("a") == b"code"
    assert [path.name for path in folder.iterdir()] == ["a.o"]


def test_a_folder_that_cannot_be_written_is_no_error(folder: Path) -> None:
    folder.write_text("a file in the way")
    store.store("a", b"code")
    assert store.load("a") is None


@pytest.mark.parametrize("address", [None, "", "gs://bucket/programs"])
def test_nothing_is_stored_where_jax_stores_nothing_on_this_machine(
    address: str | None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    jax.config.update("jax_compilation_cache_dir", address)
    store.store("a", b"code")
    assert store.load("a") is None
    assert not list(tmp_path.iterdir())


def write_and_read(folder: str, first: int) -> bool:
    """Stores and loads under one key again and again; whether only what was stored came back."""
    jax.config.update("jax_compilation_cache_dir", folder)
    codes = [bytes([i]) * 100_000 for i in range(4)]
    found = set()
    for i in range(200):
        store.store("a", codes[(first + i) % 4])
        found.add(store.load("a"))
    return found <= set(codes)


def test_several_processes_write_and_read_at_once(folder: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(store.load, ["a"])  # the other process is there
        other = pool.apply_async(write_and_read, (str(folder), 0))
        assert write_and_read(str(folder), 1)
        assert other.get()
    assert [path.name for path in folder.iterdir()] == ["a.o"]
