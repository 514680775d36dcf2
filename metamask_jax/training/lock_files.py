"""What a lock is made of: a file that only one process can make, on a disk or in a bucket."""

import contextlib
import json
import os
import pathlib
import secrets
import time
from typing import TYPE_CHECKING, Any, Protocol

from metamask_jax.core.places import Place
from metamask_jax.core.storage import create_exclusively, temporary_beside

if TYPE_CHECKING:
    from metamask_jax.core.bucket import BucketPath

_SETTLED = 1.0  # seconds after which a lock that was taken over in a bucket is nobody else's


class LockFile(Protocol):
    """A lock's file, which says who made it, and shows signs of life."""

    def create(self, mine: dict[str, Any]) -> bool:
        """Makes the file if there is none; says whether it did."""
        ...

    def read(self, *, patient: bool = False) -> dict[str, Any] | None:
        """What the file says; an empty dict if that cannot be read, None if there is no file.

        Args:
          patient: wait for minutes for a bucket that cannot be reached.
        """
        ...

    def beat(self, mine: dict[str, Any]) -> None:
        """Shows a sign of life."""
        ...

    def pulse(self) -> Any:
        """What changes with every sign of life; None if there is no file."""
        ...

    def silence(self, pulse: Any) -> float:
        """Seconds since the last sign of life, by a clock that all who look share."""
        ...

    def remove(self, expected: dict[str, Any]) -> None:
        """Removes the file, but not one that another process has put in its place meanwhile."""
        ...

    def settled(self, mine: dict[str, Any]) -> bool:
        """Whether the file that was just made, in the place of one that was removed, is still there."""
        ...


def lock_file(path: Place) -> LockFile:
    """The file of a lock, wherever it is."""
    return OnDisk(path) if isinstance(path, pathlib.Path) else InBucket(path)


class OnDisk:
    """A file whose time of change is the sign of life."""

    def __init__(self, path: pathlib.Path) -> None:
        """Looks at nothing yet."""
        self._path = path

    def create(self, mine: dict[str, Any]) -> bool:
        """See `LockFile`; it is whole at once."""
        return create_exclusively(self._path, json.dumps(mine))

    def read(self, *, patient: bool = False) -> dict[str, Any] | None:
        """See `LockFile`."""
        return _read(self._path)

    def beat(self, mine: dict[str, Any]) -> None:
        """See `LockFile`."""
        with contextlib.suppress(OSError):  # a disk that fails is for the next save to report
            os.utime(self._path)

    def pulse(self) -> float | None:
        """See `LockFile`."""
        try:
            return self._path.stat().st_mtime
        except FileNotFoundError:
            return None

    def silence(self, pulse: float) -> float:
        """By the clock of the file system, which is another machine's on NFS."""
        path = self._path.with_name(f".clock.{secrets.token_hex(8)}")
        try:
            path.touch()
            return path.stat().st_mtime - pulse
        finally:
            path.unlink(missing_ok=True)

    def remove(self, expected: dict[str, Any]) -> None:
        """See `LockFile`."""
        with temporary_beside(self._path) as aside:
            try:
                self._path.rename(aside)
            except FileNotFoundError:
                return
            if (moved := _read(aside)) is not None and moved != expected:
                with contextlib.suppress(OSError):
                    os.link(aside, self._path)  # never over a third one

    def settled(self, mine: dict[str, Any]) -> bool:
        """Renaming leaves no gap for another."""
        return True


class InBucket:
    """An object that is written anew with every sign of life, counting them."""

    def __init__(self, path: "BucketPath") -> None:
        """Looks at nothing yet."""
        self._path, self._beats = path, 0
        self._looked: tuple[Any, float] = (None, 0.0)  # since when which pulse is known

    def create(self, mine: dict[str, Any]) -> bool:
        """The bucket lets only one writer make an object."""
        return self._path.create(json.dumps(mine).encode())

    def read(self, *, patient: bool = False) -> dict[str, Any] | None:
        """See `LockFile`."""
        from metamask_jax.core.bucket import patiently

        return patiently(lambda: _read(self._path), self._path) if patient else _read(self._path)

    def beat(self, mine: dict[str, Any]) -> None:
        """See `LockFile`; whose lock was taken over while it slept leaves the other's alone."""
        with contextlib.suppress(OSError):
            if (self.read() or {}).get("token") == mine["token"]:
                self._beats += 1
                self._path.put(json.dumps(mine | {"beats": self._beats}).encode())

    def pulse(self) -> tuple[Any, ...] | None:
        """See `LockFile`."""
        found = self.read()
        return None if found is None else (found.get("token"), found.get("beats"))

    def silence(self, pulse: tuple[Any, ...]) -> float:
        """By the own clock, from the first look on: buckets do not all tell theirs."""
        if self._looked[0] != pulse:
            self._looked = (pulse, time.monotonic())
        return time.monotonic() - self._looked[1]

    def remove(self, expected: dict[str, Any]) -> None:
        """See `LockFile`; what changes between the two requests is found out by `settled`."""
        if (self.read() or {}).get("token") == expected.get("token"):
            self._path.unlink(missing_ok=True)

    def settled(self, mine: dict[str, Any]) -> bool:
        """See `LockFile`."""
        time.sleep(_SETTLED)
        return (self.read() or {}).get("token") == mine["token"]


def _read(path: Place) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        if isinstance(error, OSError):  # a bucket that cannot be reached
            raise
        return {}
    except OSError:
        return {}
    return found if isinstance(found, dict) else {}
