"""One run per working directory: a lock that tells who holds it, and that a crash does not leave locked.

The lock is a file that only one process can create, on NFS too, and that is whole at once. It says who made it, and a
thread of that process touches it every few seconds. A lock whose process is gone, or that nobody touches any more, is
taken over.
"""

import contextlib
import json
import logging
import os
import pathlib
import secrets
import socket
import threading
import time
from types import TracebackType
from typing import Any, Self

from metamask_jax.core.storage import create_exclusively, machine
from metamask_jax.errors import ConfigError, TrainingError

_log = logging.getLogger(__name__)
_BEAT = 10.0  # seconds between two touches
_SILENCE = 120.0  # seconds without a touch after which the process of another machine counts as gone


class WorkdirLock:
    """The right to write into a working directory; a context manager."""

    def __init__(self, workdir: pathlib.Path) -> None:
        """Takes the lock of a folder that exists.

        Raises:
          ConfigError: another run has it; the message says which.
          OSError: the folder cannot be written.
        """
        self._path = workdir / ".lock"
        self._mine = _myself() | {"token": secrets.token_hex(8)}
        self._stopped = threading.Event()
        while not create_exclusively(self._path, json.dumps(self._mine)):
            _wait_until_free(workdir, self._path)
        self._thread = threading.Thread(target=self._beat, name="workdir lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Refuses to go on if another run has taken over, as it may when this machine slept for minutes."""
        found = _read(self._path)
        if found is not None and found.get("token") != self._mine["token"]:
            raise TrainingError(
                f"{_who(found)} has taken over {self._path.parent} while this run stood still; expected one run at a "
                "time, so this one ends"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        found = _read(self._path)
        if found is not None and found.get("token") == self._mine["token"]:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _beat(self) -> None:
        while not self._stopped.wait(_BEAT):
            with contextlib.suppress(OSError):  # a disk that fails is for the next save to report
                os.utime(self._path)


def check_free(workdir: pathlib.Path) -> None:
    """Refuses a working directory that a run on this machine is writing to at this moment; changes nothing."""
    found = _read(workdir / ".lock")
    if found is not None and _is_here(found) and _is_alive(found):
        raise _held(workdir, found)


def _wait_until_free(workdir: pathlib.Path, path: pathlib.Path) -> None:
    """Removes a lock that nobody holds any more, waiting where it takes time to know that.

    Raises:
      ConfigError: somebody holds it.
    """
    found, touched, said = _read(path), _touched(path), False
    while found is not None and touched is not None:
        if _is_here(found):
            if _is_alive(found):
                raise _held(workdir, found)
            break
        if (age := _now(path.parent) - touched) > _SILENCE:
            break
        if not said:
            _log.info(
                "%s is locked by %s; if nothing is heard of it for another %.0f s, it is taken over",
                *(workdir, _who(found), _SILENCE - age),
            )
            said = True
        time.sleep(min(1.0, _SILENCE / 10))
        if (now := _touched(path)) != touched:
            if now is None:
                return  # given back
            raise _held(workdir, found)
    if found is not None:
        _remove(path, found)
        _log.warning("the lock of %s was left by %s, which has ended; it is taken over", workdir, _who(found))


def _remove(path: pathlib.Path, expected: dict[str, Any]) -> None:
    """Removes a stale lock, but not one that another process has put in its place meanwhile."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    if (moved := _read(aside)) is not None and moved != expected:
        with contextlib.suppress(OSError):
            os.link(aside, path)  # never over a third one
    aside.unlink(missing_ok=True)


def _read(path: pathlib.Path) -> dict[str, Any] | None:
    """What a lock says; an empty dict if that cannot be read, None if there is no lock."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _touched(path: pathlib.Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _now(folder: pathlib.Path) -> float:
    """The time by the clock of the file system, which is another machine's on NFS."""
    path = folder / f".clock.{secrets.token_hex(8)}"
    try:
        path.touch()
        return path.stat().st_mtime
    finally:
        path.unlink(missing_ok=True)


def _myself() -> dict[str, Any]:
    pid = os.getpid()
    return {
        "host": socket.gethostname(),
        "machine": machine(),
        "pid": pid,
        "born": _born(pid),
        "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def _born(pid: int) -> str | None:
    """When a process started, in ticks: another one may have got its number. None where that is not known."""
    fields = _status(pid)
    return fields[19] if len(fields) > 19 else None


def _status(pid: int) -> list[str]:
    """What Linux tells of a process, from its state on; nothing elsewhere."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _is_here(found: dict[str, Any]) -> bool:
    return found.get("machine") == machine()


def _is_alive(found: dict[str, Any]) -> bool:
    try:
        pid = int(found["pid"])
        os.kill(pid, 0)
    except PermissionError:
        return True  # another user's
    except (OSError, KeyError, ValueError, TypeError, OverflowError):
        return False
    ended = _status(pid)[:1] in (["Z"], ["X"])  # only its parent has not noticed yet
    return not ended and found.get("born") in (None, _born(pid))


def _held(workdir: pathlib.Path, found: dict[str, Any]) -> ConfigError:
    return ConfigError(
        f"--workdir {workdir} is in use by {_who(found)}; expected one run at a time: wait for that one, stop it, or "
        "take another workdir"
    )


def _who(found: dict[str, Any]) -> str:
    if not found:
        return "a process that has not said who it is"
    return f"process {found.get('pid')} on {found.get('host')}, started {found.get('since')}"
