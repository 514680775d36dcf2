"""Files that are whole or not there: a reader, or a kill at any moment, sees the old content or the new one.

They may be on this machine or in a bucket (`places`).
"""

import errno
import hashlib
import json
import logging
import math
import os
import pathlib
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import numpy as np

from metamask_jax.core.places import Place, to_place

_log = logging.getLogger(__name__)
_FEW = 5  # damaged lines that are named
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)  # what file systems say that have none


@contextmanager
def replacing(path: Place) -> Iterator[pathlib.Path]:
    """Gives the name of a local file to write; when the block ends well, that file becomes `path` in one go.

    Several processes may do this at once: the last one wins. If the block fails, `path` stays as it was.

    Raises:
      FileExistsError: `path` is there and is no file: a folder, or a device, which would be replaced, too.
    """
    if not isinstance(path, pathlib.Path):
        with temporary_folder() as folder:
            yield (temporary := folder / path.name)
            path.upload(temporary)
        return
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "it is there and is no regular file", str(path))
    with temporary_beside(path) as temporary:
        yield temporary
        os.replace(temporary, path)


def write_atomically(path: Place, content: str | bytes) -> None:
    """Replaces a file in one go."""
    data = content.encode() if isinstance(content, str) else content
    if not isinstance(path, pathlib.Path):
        path.write_bytes(data)
        return
    with replacing(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def local_copy(path: Place) -> Iterator[pathlib.Path]:
    """A file as one on this machine: itself, or a copy that is removed at the end, though what is mapped of it stays.

    Raises:
      FileNotFoundError: there is no such object in the bucket.
    """
    if isinstance(path, pathlib.Path):
        yield path
        return
    with temporary_folder() as folder:
        path.download(copy := folder / path.name)
        yield copy


def is_file(path: Place) -> bool:
    """Whether it is a file that is there; a name that cannot be one is none."""
    return os.path.isfile(path) if isinstance(path, pathlib.Path) else path.is_file()


def is_folder(path: Place) -> bool:
    """Whether it is a folder that is there; a name that cannot be one is none."""
    return os.path.isdir(path) if isinstance(path, pathlib.Path) else path.is_dir()


def create_exclusively(path: pathlib.Path, content: str) -> bool:
    """Makes a file, in one go, unless there is one of that name already, on NFS too.

    Returns:
      Whether it did.
    """
    try:
        with temporary_beside(path) as temporary:
            temporary.write_text(content)
            os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _create_in_place(path, content)
    return True


def _create_in_place(path: pathlib.Path, content: str) -> bool:
    """The same where a file has one name only: for a moment it is there and empty."""
    try:
        file = path.open("x")
    except FileExistsError:
        return False
    try:
        with file:
            file.write(content)
    except OSError:
        path.unlink()
        raise
    return True


@contextmanager
def temporary_beside(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A name beside `path` for a file that is gone when the block ends; what a kill has left of earlier ones goes too.

    The name tells the process and where its number means something.
    """
    temporary = _name_of_our_own(path.parent, f".{path.name}.", ".tmp")
    try:
        yield temporary
    finally:
        with suppress(OSError):  # it is gone already, or could never be made
            temporary.unlink()


@contextmanager
def temporary_folder(parent: pathlib.Path | None = None, *, prefix: str = "metamask_jax-") -> Iterator[pathlib.Path]:
    """A folder that is gone when the block ends; what a kill has left of earlier ones goes too.

    Args:
      parent: where to make it; None is where this machine has its temporary files.
      prefix: of its name.
    """
    folder = make_temporary_folder(parent, prefix=prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_temporary_folder(parent: pathlib.Path | None = None, *, prefix: str = "metamask_jax-") -> pathlib.Path:
    """Makes such a folder for whoever removes it later."""
    folder = _name_of_our_own(pathlib.Path(tempfile.gettempdir()) if parent is None else parent, prefix, "")
    folder.mkdir(mode=0o700)
    return folder


def _name_of_our_own(parent: pathlib.Path, prefix: str, suffix: str) -> pathlib.Path:
    """A new name that tells this process; files and folders with such names of processes that are gone are removed."""
    mine = f"{prefix}{hashlib.blake2b(machine().encode(), digest_size=3).hexdigest()}."
    with suppress(OSError):  # where nothing can be made either, as the caller will find
        for left in parent.iterdir():
            ours = left.name.startswith(mine) and left.name.endswith(suffix)
            if not ours or _is_running(left.name[len(mine) :]):
                continue
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
    return parent / f"{mine}{os.getpid()}.{secrets.token_hex(4)}{suffix}"


def _is_running(name: str) -> bool:
    """Whether the process whose number a name begins with is there, or may be."""
    try:
        os.kill(int(name.partition(".")[0]), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError, OverflowError):
        return True
    return True


@cache
def machine() -> str:
    """Where process ids mean the same: this boot of this machine, and on it this container."""
    with suppress(OSError):
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


class JsonLines:
    """A file with one JSON object per line, each with its `step`, in order, without gap or repeat across restarts."""

    def __init__(self, path: pathlib.Path, *, resume_step: int) -> None:
        """Opens the file and drops what was written after `resume_step`: those steps will be taken again."""
        kept = [line for line in read_json_lines(path) if line["step"] <= resume_step]
        write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept))
        self._file = path.open("a", buffering=1)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Appends one line; it is in the file, not in a buffer of ours, when this returns."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def read_json_lines(path: str | Place) -> list[dict[str, Any]]:
    """Reads such a file; a missing one is empty.

    A line that is damaged is left out with a warning, a last one cut off by a kill without.
    """
    try:
        *lines, cut_off = to_place(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    found = [_parsed(line) for line in lines]
    if damaged := [str(number) for number, line in enumerate(found, start=1) if line is None]:
        _log.warning("%s: %d damaged, left out: line %s", path, len(damaged), ", ".join(damaged[:_FEW]))
    return [line for line in (*found, _parsed(cut_off)) if line is not None]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    # A step that is not a whole number could not be put in order with the others.
    return found if isinstance(found, dict) and type(found.get("step")) is int else None


def to_plain(value: Any) -> Any:
    """Arrays, NumPy scalars and nested mappings as what JSON knows; numbers that are not finite become null.

    Example:
      >>> to_plain({"mean": np.float32(0.5), "values": np.array([1.0, np.nan])})
      {'mean': 0.5, 'values': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, np.generic):
        return to_plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
