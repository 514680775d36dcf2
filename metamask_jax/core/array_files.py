"""Arrays and what to know about them in one file: safetensors, npz or msgpack."""

import json
import os
import pathlib
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from flax.serialization import msgpack_restore, msgpack_serialize

from metamask_jax.core.places import to_place
from metamask_jax.core.storage import is_file, local_copy
from metamask_jax.errors import ExportError

_KEY = "metamask_jax"  # under which the metadata are kept


class Export(NamedTuple):
    """What is in an exported file.

    Attributes:
      arrays: by name.
      metadata: what JSON can hold: `layout`, `encoder`, `preprocessing`, `mask`, `step`, `version` and more.
    """

    arrays: dict[str, np.ndarray]
    metadata: dict[str, Any]


def _write_safetensors(path: pathlib.Path, export: Export) -> None:
    from safetensors.numpy import save

    # torch loads files whose metadata say "pt" without asking.
    path.write_bytes(save(export.arrays, metadata={"format": "pt", _KEY: json.dumps(export.metadata)}))


def _write_npz(path: pathlib.Path, export: Export) -> None:
    with path.open("wb") as file:  # a bare path would get another suffix
        np.savez(file, **{_KEY: np.array(json.dumps(export.metadata))}, **export.arrays)  # type: ignore[arg-type]


def _write_msgpack(path: pathlib.Path, export: Export) -> None:
    path.write_bytes(msgpack_serialize({_KEY: json.dumps(export.metadata), "arrays": export.arrays}))


WRITERS: dict[str, Callable[[pathlib.Path, Export], None]] = {
    "safetensors": _write_safetensors,
    "npz": _write_npz,
    "msgpack": _write_msgpack,
}


def read_export(path: str | os.PathLike[str]) -> Export:
    """Reads a file of any of the formats, telling them apart by their first bytes."""
    place = to_place(path)
    if not is_file(place):
        raise ExportError(f"{path} is not a file; expected one that metamask-export has written")
    try:
        with local_copy(place) as copy:
            return _read(copy)
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ExportError(
            f"{path} cannot be read ({str(error)[:100]}); expected one that metamask-export has written"
        ) from error


def _read(path: pathlib.Path) -> Export:
    with path.open("rb") as file:
        start = file.read(9)
    if start.startswith(b"PK"):
        return _read_npz(path)
    return _read_safetensors(path) if start[8:] == b"{" else _read_msgpack(path)


def _read_safetensors(path: pathlib.Path) -> Export:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            metadata = json.loads(file.metadata()[_KEY])
            return Export({name: file.get_tensor(name) for name in file.keys()}, metadata)  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _read_npz(path: pathlib.Path) -> Export:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return Export(arrays, json.loads(arrays.pop(_KEY).item()))


def _read_msgpack(path: pathlib.Path) -> Export:
    content = msgpack_restore(path.read_bytes())
    return Export(content["arrays"], json.loads(content[_KEY]))
