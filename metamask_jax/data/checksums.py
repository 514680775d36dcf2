"""Whether the files of a folder are still those that were written: checksums, cheap to compare however large a file is.

A file is divided into blocks, and every block has its checksum. Of a small file all blocks are compared, of a large one
its size and a few blocks, other ones each time: damage that one start does not see, a later one does.
"""

import json
import pathlib
import zlib
from typing import Any

import numpy as np

from metamask_jax.core.storage import write_atomically
from metamask_jax.errors import one_line

_NAME = "checksums.json"
_BLOCK = 1 << 20  # bytes
_ALL = 256  # blocks of a file that are all compared
_SAMPLE = 64  # blocks of a larger file that are compared


def seal(folder: pathlib.Path, *, size_only: str | None = None) -> None:
    """Writes the checksums of a folder's files into it.

    Args:
      folder: the folder.
      size_only: files with this in their name are known by their size alone: their format has checksums of its own.
    """
    files = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name != _NAME:
            hashed = size_only is None or size_only not in path.name
            size = path.stat().st_size
            files[path.name] = {"bytes": size, "blocks": _blocks(path, range(_count(size))) if hashed else None}
    text = json.dumps(files)
    write_atomically(folder / _NAME, json.dumps({"files": files, "digest": zlib.crc32(text.encode())}))


def is_sealed(folder: pathlib.Path) -> bool:
    """Whether `seal` has written its checksums."""
    return (folder / _NAME).exists()


def find_damage(folder: pathlib.Path) -> str | None:
    """Compares a sealed folder with its checksums; returns what is wrong, or None."""
    try:
        sealed = json.loads((folder / _NAME).read_bytes())
        if zlib.crc32(json.dumps(sealed["files"]).encode()) != sealed["digest"]:
            return f"{_NAME} is damaged"
        for name, expected in sealed["files"].items():
            if problem := _compare(folder / name, expected):
                return f"{name} {problem}"
    except FileNotFoundError as error:
        return f"{pathlib.Path(error.filename or _NAME).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{_NAME} is damaged ({one_line(error)})"
    return None


def _compare(path: pathlib.Path, expected: dict[str, Any]) -> str | None:
    size, blocks = path.stat().st_size, expected["blocks"]
    if size != expected["bytes"]:
        return f"has {size} bytes instead of {expected['bytes']}"
    if blocks is None:
        return None
    which = np.arange(_count(size))
    if len(which) > _ALL:
        which = np.unique([0, len(which) - 1, *np.random.default_rng().integers(0, len(which), _SAMPLE)])
    for i, found in zip(which, _blocks(path, which), strict=True):
        if found != blocks[i]:
            return f"has other bytes from {i * _BLOCK} on than were written"
    return None


def _count(size: int) -> int:
    return -(-size // _BLOCK)


def _blocks(path: pathlib.Path, which: Any) -> list[int]:
    """The checksums of some blocks of a file."""
    found = []
    with path.open("rb") as file:
        for i in which:
            file.seek(int(i) * _BLOCK)
            found.append(zlib.crc32(file.read(_BLOCK)))
    return found
