"""Machine code that outlives the process."""

import jax
import pytest

store = pytest.importorskip("metamask_jax.kernels.native", reason="needs llvmlite").store


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "programs"
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(path))
    yield path
    jax.config.update("jax_compilation_cache_dir", before)


def test_code_comes_back_as_it_was_stored(folder):
    assert store.load("a") is None
    assert store.store("a", b"code") == b"code"
    assert store.load("a") == b"code"
    assert [path.name for path in folder.iterdir()] == ["a.o"]


def test_a_folder_that_cannot_be_written_is_no_error(folder):
    folder.write_text("a file in the way")
    assert store.store("a", b"code") == b"code"
    assert store.load("a") is None


def test_nothing_is_stored_where_jax_stores_nothing(folder):
    jax.config.update("jax_compilation_cache_dir", None)
    assert store.store("a", b"code") == b"code"
    assert store.load("a") is None
    assert not folder.exists()
