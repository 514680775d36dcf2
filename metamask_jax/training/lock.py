"""One run per working directory: a lock that tells who holds it, and that a crash does not leave locked.

The lock is a file that only one process can create, on NFS and in a bucket too, and that is whole at once. It says who
made it, and a thread of that process touches it every few seconds. A lock whose process is gone, or that nobody touches
any more, is taken over.
"""

import contextlib
import logging
import os
import pathlib
import secrets
import socket
import threading
import time
from types import TracebackType
from typing import Any, Self

from metamask_jax.core.places import Place
from metamask_jax.core.storage import machine
from metamask_jax.errors import ConfigError, TrainingError
from metamask_jax.training.lock_files import LockFile, lock_file

_log = logging.getLogger(__name__)
_BEAT = 10.0  # seconds between two touches
_SILENCE = 120.0  # seconds without a touch after which the process of another machine counts as gone


class WorkdirLock:
    """The right to write into a working directory; a context manager."""

    def __init__(self, workdir: Place) -> None:
        """Takes the lock of a folder that exists.

        Raises:
          ConfigError: another run has it; the message says which.
          OSError: the folder cannot be written.
        """
        self._workdir, self._file = workdir, lock_file(workdir / ".lock")
        self._mine = _myself() | {"token": secrets.token_hex(8)}
        self._stopped, removed = threading.Event(), False
        while not self._file.create(self._mine) or (removed and not self._file.settled(self._mine)):
            _wait_until_free(workdir, self._file)
            removed = True
        self._thread = threading.Thread(target=self._beat, name="workdir lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Refuses to go on if another run has taken over, as it may when this machine slept for minutes."""
        found = self._file.read(patient=True)
        if found is not None and found.get("token") != self._mine["token"]:
            raise TrainingError(
                f"{_who(found)} has taken over {self._workdir} while this run stood still; expected one run at a "
                "time, so this one ends"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            found = self._file.read()
            if found is not None and found.get("token") == self._mine["token"]:
                self._file.remove(found)

    def _beat(self) -> None:
        while not self._stopped.wait(_BEAT):
            self._file.beat(self._mine)


def check_free(workdir: Place) -> None:
    """Refuses a working directory that a run on this machine is writing to at this moment; changes nothing."""
    found = lock_file(workdir / ".lock").read()
    if found is not None and _is_here(found) and _is_alive(found):
        raise _held(workdir, found)


def _wait_until_free(workdir: Place, file: LockFile) -> None:
    """Removes a lock that nobody holds any more, waiting where it takes time to know that.

    Raises:
      ConfigError: somebody holds it.
    """
    found, pulse, said = file.read(), file.pulse(), False
    while found is not None and pulse is not None:
        if _is_here(found):
            if _is_alive(found):
                raise _held(workdir, found)
            break
        if (age := file.silence(pulse)) > _SILENCE:
            break
        if not said:
            _log.info(
                "%s is locked by %s; if nothing is heard of it for another %.0f s, it is taken over",
                *(workdir, _who(found), _SILENCE - age),
            )
            said = True
        time.sleep(min(1.0, _SILENCE / 10))
        if (now := file.pulse()) != pulse:
            if now is None:
                return  # given back
            raise _held(workdir, found)
    if found is not None:
        file.remove(found)
        _log.warning("the lock of %s was left by %s, which has ended; it is taken over", workdir, _who(found))


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


def _held(workdir: Place, found: dict[str, Any]) -> ConfigError:
    return ConfigError(
        f"--workdir {workdir} is in use by {_who(found)}; expected one run at a time: wait for that one, stop it, or "
        "take another workdir"
    )


def _who(found: dict[str, Any]) -> str:
    if not found:
        return "a process that has not said who it is"
    return f"process {found.get('pid')} on {found.get('host')}, started {found.get('since')}"
