"""Keeps machine code beside the programs that JAX keeps, where it keeps any on this machine."""

from contextlib import suppress
from pathlib import Path

from metamask_jax.kernels.programs import programs_folder, read_sealed, write_sealed


def load(key: str) -> bytes | None:
    """The code stored under a key, if there is any and it is undamaged."""
    path = _path(key)
    return None if path is None else read_sealed(path)


def store(key: str, code: bytes) -> None:
    """Stores code, whole or not at all; what cannot be stored is compiled again another time."""
    path = _path(key)
    if path is not None:
        with suppress(OSError):
            write_sealed(path, code)


def _path(key: str) -> Path | None:
    folder = programs_folder()
    return None if folder is None else folder / f"{key}.o"
