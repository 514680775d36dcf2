"""Compiled programs that outlive the process, in files that tell whether they are whole.

JAX can keep compiled programs in a folder. It writes them in place, so that a kill leaves half a file, and never
replaces a damaged one. Its compressor may store no checksum (zstd, which it prefers to zlib, does not): then a flipped
bit is loaded as part of the program, which crashes or computes something else. Here every file begins with a digest of
its name and content, and is written in one go. A file whose digest does not fit is removed, and what it held is
compiled and stored again. Several processes may read and write at once.

The digest finds damage, not malice: whoever may write to the folder can make us run anything, as with JAX's own.
"""

import logging
import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import jax
from etils import epath

from metamask_jax.core.storage import write_atomically

_SCHEME = "sealed://"
_DIGEST_BYTES = 32
_logger = logging.getLogger(__name__)


def keep_programs(folder: str | Path) -> None:
    """Makes JAX, and the native kernels with it, keep what they compile in a folder of checked files.

    To be called before the first program is compiled: JAX does not change its folder later.
    """
    jax.config.update("jax_compilation_cache_dir", f"{_SCHEME}{Path(folder).expanduser()}")


def programs_folder() -> Path | None:
    """The folder where JAX keeps programs, or None if it keeps none or does so on another machine."""
    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if not folder:
        return None
    folder = folder.removeprefix(_SCHEME)
    return None if "://" in folder else Path(folder)


def read_sealed(path: Path) -> bytes | None:
    """What `write_sealed` wrote, or None if there is no such file or it is damaged; a damaged file is removed."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    digest, content = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
    if digest == _digest(path, content):
        return content
    _logger.warning("%s is damaged, or of an earlier version; it is removed, and its program compiled again", path)
    with suppress(OSError):  # another process was faster, or nothing can be removed here
        path.unlink()
    return None


def is_whole(path: Path) -> bool:
    """Whether a file is what `write_sealed` wrote under its name; unlike `read_sealed`, it leaves a damaged one."""
    try:
        stored = path.read_bytes()
    except OSError:
        return False
    return stored[:_DIGEST_BYTES] == _digest(path, stored[_DIGEST_BYTES:])


def write_sealed(path: Path, content: bytes) -> None:
    """Writes a file that only `read_sealed` of the same name reads.

    Raises:
      OSError: if it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, _digest(path, content) + content)


def _digest(path: Path, content: bytes) -> bytes:
    """Of the name too: a program must not be taken for another one."""
    return blake2b(b"%s\0%s" % (path.name.encode(), content), digest_size=_DIGEST_BYTES).digest()


_LocalPath: Any = type(epath.Path(os.curdir))  # JAX takes the paths of etils


class _SealedPath(_LocalPath):
    """A local path whose files are sealed; a damaged file does not exist."""

    def exists(self) -> bool:
        """Whether it is a folder or a file that is whole."""
        return self.is_dir() or read_sealed(Path(self)) is not None

    def read_bytes(self) -> bytes:
        """The content of a file that is whole."""
        content = read_sealed(Path(self))
        if content is None:
            raise FileNotFoundError(f"{self} is missing or damaged; expected a stored program")
        return content

    def write_bytes(self, data: bytes) -> int:
        """Writes a file in one go; returns the size of its content."""
        write_sealed(Path(self), data)
        return len(data)


@epath.register_path_cls(_SCHEME)
class _SealedAddress:
    """What etils makes of a string that begins with the scheme: the path without it."""

    def __new__(cls, address: str) -> _SealedPath:
        return _SealedPath(address.removeprefix(_SCHEME))
