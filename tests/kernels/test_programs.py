"""Compiled programs that JAX keeps: damage to their files never reaches a result."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from etils import epath

from metamask_jax.cli.common import keep_compiled_programs
from metamask_jax.kernels.programs import keep_programs, programs_folder, read_sealed, write_sealed

# JAX takes `zstandard` for its files where there is one. This one, like the real one, stores no checksum.
PROGRAM = """
import sys, types

class Plain:
    compress = decompress = staticmethod(bytes)

sys.modules["zstandard"] = types.SimpleNamespace(ZstdCompressor=Plain, ZstdDecompressor=Plain)

import jax, jax.numpy as jnp, numpy as np
from metamask_jax.cli.common import keep_compiled_programs
from metamask_jax.kernels.programs import keep_programs
from pathlib import Path

folder = Path(sys.argv[1])
keep_programs(folder)
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name.endswith("/cache_hits")))
x = np.arange(12.0, dtype="float32").reshape(3, 4)
run = jax.jit(lambda x: jnp.sin(x) @ x.T + 1)
expected = np.asarray(run(x))
(path,) = folder.iterdir()
good = path.read_bytes()
flips = 40
damaged = []
for i in range(flips):
    bit = i * 8 * len(good) // flips + i % 8
    changed = bytearray(good)
    changed[bit // 8] ^= 1 << bit % 8
    damaged.append(bytes(changed))
damaged += [good[:length] for length in (0, 1, 31, 32, 33, len(good) // 2, len(good) - 1)]
for content in damaged:
    path.write_bytes(content)
    for found in (False, True):  # compiled again, and stored again
        del hits[:]
        jax.clear_caches()
        assert np.array_equal(run(x), expected)
        assert any(hits) == found
assert list(folder.iterdir()) == [path]
print("fine")
"""


@pytest.fixture
def folder(tmp_path: Path):
    before = jax.config.jax_compilation_cache_dir
    yield tmp_path / "programs"
    jax.config.update("jax_compilation_cache_dir", before)


def test_jax_compiles_damaged_programs_again_and_stores_them_again(folder: Path) -> None:
    settings = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_RAISE_PERSISTENT_CACHE_ERRORS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    ended = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)
    assert ended.stdout == "fine\n", ended.stderr


@pytest.mark.usefixtures("folder")  # puts JAX's own one back
def test_commands_keep_their_programs_in_checked_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    keep_compiled_programs()
    jax.config.update("jax_persistent_cache_min_compile_time_secs", before)
    path = epath.Path(jax.config.jax_compilation_cache_dir) / "a"
    path.write_bytes(b"code")
    assert read_sealed(tmp_path / ".cache" / "metamask_jax" / "a") == b"code"


def test_a_file_that_is_not_as_it_was_written_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a"
    assert read_sealed(path) is None
    assert not caplog.records
    write_sealed(path, b"code")
    assert read_sealed(path) == b"code"
    path.write_bytes(path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        assert read_sealed(path) is None
    assert caplog.messages == [
        f"{path} is damaged, or of an earlier version; it is removed, and its program compiled again"
    ]
    assert not path.exists()


def test_paths_that_jax_is_given_are_local_ones_of_sealed_files(folder: Path) -> None:
    keep_programs(folder)
    assert programs_folder() == folder
    path = epath.Path(jax.config.jax_compilation_cache_dir)
    path.mkdir(parents=True)
    assert str(path) == str(folder)
    file = path / "a"
    assert not file.exists()
    assert file.write_bytes(b"code") == 4
    assert file.exists()
    assert file.read_bytes() == b"code" == read_sealed(folder / "a")
    assert [found.read_bytes() for found in path.glob("*")] == [b"code"]
    (folder / "a").write_bytes(b"something else")
    with pytest.raises(FileNotFoundError, match="a is missing or damaged; expected a stored program"):
        file.read_bytes()
    (folder / "a").write_bytes(b"something else")
    assert not file.exists()
