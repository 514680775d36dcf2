"""Paths in a bucket with the manners of local ones.

A bucket has objects, no folders: an object appears whole or not at all and is replaced in one go, a folder is there as
long as an object's name begins with it, and nothing can be appended to. What goes wrong on the way is an `OSError`.
"""

import errno
import functools
import logging
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, TypeVar

# Before gcsfs and epath are used: TensorFlow's own access to buckets, which epath would prefer, has other credentials;
# and gcsfs would ask by gRPC, before each request, what kind of bucket this is.
os.environ.setdefault("EPATH_USE_TF", "false")
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

import fsspec
from etils import epath

from metamask_jax.errors import ConfigError, one_line

# Others write there too, tensorstore in this very process: a remembered listing is a wrong one.
for _protocol in ("gcs", "s3"):
    fsspec.config.conf.setdefault(_protocol, {}).setdefault("use_listings_cache", False)
fsspec.config.conf["gcs"].setdefault("consistency", "size")  # of an upload; S3 compares it by itself

_log = logging.getLogger(__name__)
_PATIENCE = 600.0  # seconds for which a bucket may refuse what is written to it, beyond what its client waits
_PAUSE = 5.0  # seconds before it is asked again
_TRIES = 3  # times that an object of which a part came is asked for
# How S3's client says that the other side is overloaded or has failed, which passes.
_PASSING = (errno.EBUSY, errno.EIO, getattr(errno, "EREMOTEIO", errno.EIO))
P = ParamSpec("P")
T = TypeVar("T")


class BucketError(OSError, ConfigError):
    """A bucket that cannot be reached, or refuses."""

    @property
    def final(self) -> bool:
        """Whether asking again is of no use: there is no such bucket, or not for us."""
        cause = self.__cause__
        if type(cause) is OSError:  # Google's client has no other word for "Forbidden"
            return cause.errno not in _PASSING
        return isinstance(cause, PermissionError | FileNotFoundError)


def _reaching(method: Callable[P, T]) -> Callable[P, T]:
    """What the clients of buckets raise, of many kinds, as the `OSError` that a disk would raise."""

    @functools.wraps(method)
    def reach(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except (BucketError, FileNotFoundError, FileExistsError):
            raise
        except Exception as error:
            raise BucketError(f"{args[0]} cannot be reached ({one_line(error)})") from error

    return reach


def patiently(write: Callable[[], T], what: object) -> T:
    """Calls a function again and again while a bucket refuses, which may be said in any way.

    Raises:
      BucketError: it has refused for minutes, or asking again is of no use.
    """
    end, said = time.monotonic() + _PATIENCE, False
    while True:
        try:
            found = write()
        except Exception as error:
            refusal = error if isinstance(error, BucketError) else BucketError(f"{what}: {one_line(error)}")
            refusal.__cause__ = refusal.__cause__ or error
            if time.monotonic() > end or refusal.final:
                raise refusal from refusal.__cause__
            if not said:
                _log.warning("%s; it is tried again for at most %.0f s", one_line(refusal), end - time.monotonic())
            said = True
            time.sleep(_PAUSE)
        else:
            if said:
                _log.warning("%s can be written again", what)
            return found


class BucketPath(type(epath.Path("gs://bucket"))):  # type: ignore[misc]
    """A path in a bucket: that of `etils.epath`, which orbax and JAX take, too."""

    @property
    def _files(self) -> Any:
        return fsspec.filesystem("gcs" if str(self).startswith("gs:") else "s3")

    @contextmanager
    def _in_bucket(self) -> Iterator[None]:
        """Says what is missing when something cannot be written for that reason."""
        try:
            yield
        except FileNotFoundError as error:
            raise BucketError(f"there is no bucket {'/'.join(str(self).split('/')[:3])}") from error

    @_reaching
    def _kind(self) -> str | None:
        try:
            return str(self._files.info(str(self))["type"])
        except FileNotFoundError:
            return None

    def exists(self) -> bool:
        """Whether there is an object of this name, or one whose name begins with it."""
        return self._kind() is not None

    def is_dir(self) -> bool:
        """Whether there are objects below this name."""
        return self._kind() == "directory"

    def is_file(self) -> bool:
        """Whether there is an object of this name."""
        return self._kind() == "file"

    def iterdir(self) -> Iterator["BucketPath"]:
        """What lies directly below this name."""
        return iter(self._listed())

    @_reaching
    def _listed(self) -> list["BucketPath"]:
        names = self._files.ls(str(self), detail=False)
        return [self / name for name in sorted({name.rstrip("/").rpartition("/")[2] for name in names})]

    def glob(self, pattern: str) -> Iterator["BucketPath"]:
        """What lies below and fits a pattern without `**`."""
        return iter(self._matching(pattern))

    @_reaching
    def _matching(self, pattern: str) -> list["BucketPath"]:
        scheme = str(self).partition("://")[0]
        return [type(self)(f"{scheme}://{name}") for name in self._files.glob(f"{self}/{pattern}")]

    @_reaching
    def objects(self) -> list["BucketPath"]:
        """All objects whose names begin with this one's, as if it were a folder."""
        scheme = str(self).partition("://")[0]
        return [type(self)(f"{scheme}://{name}") for name in self._files.find(str(self))]

    def mkdir(self, mode: int | None = None, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing: a folder is made by what is put into it, and a bucket is never made by mistake."""

    @_reaching
    def read_bytes(self) -> bytes:
        """The whole content."""
        return bytes(self._files.cat_file(str(self)))

    def read_text(self, encoding: str | None = None) -> str:
        """The whole content as text."""
        return self.read_bytes().decode(encoding or "utf-8")

    def write_bytes(self, data: bytes) -> int:
        """Replaces the object in one go, patiently."""
        patiently(functools.partial(self.put, data), self)
        return len(data)

    @_reaching
    def put(self, data: bytes) -> None:
        """Replaces the object in one go."""
        with self._in_bucket():
            self._files.pipe_file(str(self), data)

    @_reaching
    def create(self, data: bytes) -> bool:
        """Makes the object if there is none, which only one of several writers can; says whether it did."""
        try:
            with self._in_bucket():
                self._files.pipe_file(str(self), data, mode="create")
        except FileExistsError:
            return False
        return True

    def upload(self, file: pathlib.Path) -> None:
        """Replaces the object by the content of a local file, in one go."""
        patiently(functools.partial(self._upload, file), self)

    @_reaching
    def _upload(self, file: pathlib.Path) -> None:
        with self._in_bucket():
            self._files.put_file(str(file), str(self))

    @_reaching
    def download(self, file: pathlib.Path) -> None:
        """Copies the object to a local file, all of it: what came short is asked for again."""
        for _ in range(_TRIES):
            self._files.get_file(str(self), str(file))
            size, expected = file.stat().st_size, self._files.info(str(self))["size"]
            if size == expected:
                return
        raise BucketError(f"{self} has {expected} bytes, and {size} came")

    @_reaching
    def unlink(self, missing_ok: bool = False) -> None:
        """Removes the object."""
        if not missing_ok and not self.is_file():  # S3 says nothing when it removes what is not there
            raise FileNotFoundError(errno.ENOENT, "there is no such object", str(self))
        with suppress(FileNotFoundError):
            self._files.rm_file(str(self))

    @_reaching
    def rmtree(self, missing_ok: bool = False) -> None:
        """Removes all objects whose names begin with this one's."""
        try:
            self._files.rm(str(self), recursive=True)
        except FileNotFoundError:
            if not missing_ok:
                raise

    @_reaching
    def rename(self, target: str | os.PathLike[str]) -> "BucketPath":
        """Copies all objects to their new names, then removes the old ones: a kill in between loses nothing."""
        old, new = str(self), os.fspath(target)
        for path in self.objects():
            self._files.cp_file(str(path), new + str(path).removeprefix(old))
        self._files.rm(old, recursive=True)
        return type(self)(target)

    def resolve(self, strict: bool = False) -> "BucketPath":
        """Itself: a URL is absolute."""
        return self

    def absolute(self) -> "BucketPath":
        """Itself: a URL is absolute."""
        return self

    def expanduser(self) -> "BucketPath":
        """Itself: a bucket has no home."""
        return self
