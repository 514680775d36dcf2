"""Keeps machine code beside the programs that JAX keeps, where it keeps any."""

import os
import tempfile
from pathlib import Path

import jax


def load(key: str) -> bytes | None:
    """The code stored under a key, if there is any."""
    path = _path(key)
    try:
        return None if path is None else path.read_bytes()
    except OSError:
        return None


def store(key: str, code: bytes) -> bytes:
    """Stores code, whole or not at all, and returns it; what cannot be stored is compiled again another time."""
    path = _path(key)
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(code)
            os.replace(file.name, path)
        except OSError:
            pass
    return code


def _path(key: str) -> Path | None:
    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    return None if folder is None else Path(folder) / f"{key}.o"
