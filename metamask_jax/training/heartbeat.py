"""Noticing that another host is gone when the network tells nothing: a cut cable, a frozen machine.

JAX notices too, and then ends the process with a stack of C++ functions. Here every process counts in JAX's
coordination service. When a count stands still, or this process cannot count any more, it ends with a sentence, before
JAX does so without one.
"""

import atexit
import os
import sys
import threading
import time
from typing import Any

_BEAT = 2.0  # seconds between two counts
SILENCE = 40.0  # seconds without one after which a process counts as gone; less than JAX waits
_DONE = "done"


class Heartbeat:
    """Counts in the name of this process, and watches the others, until this one ends."""

    def __init__(self, client: Any, *, index: int, count: int) -> None:
        """Begins.

        Args:
          client: of JAX's coordination service.
          index: of this process.
          count: of all processes.
        """
        self._client, self._index = client, index
        now = time.monotonic()
        self._heard = dict.fromkeys(range(count), now)  # when the last new count of each was seen
        self._last: dict[int, str | None] = dict.fromkeys(range(count))
        self._stopped = threading.Event()
        for work in (self._count, self._watch):  # the first may wait for the network for ever
            threading.Thread(target=work, name="heartbeat", daemon=True).start()
        atexit.register(self.stop)  # before JAX takes its leave, which waits for the others

    def stop(self) -> None:
        """Tells the others not to wait for this process any more."""
        if not self._stopped.is_set():
            self._stopped.set()
            threading.Thread(target=self._set, args=(_DONE,), daemon=True).start()

    def _count(self) -> None:
        number = 0
        while not self._stopped.wait(_BEAT):
            number += 1
            try:
                self._set(str(number))
                for process in self._heard:
                    self._look(process)
            except Exception:  # the service cannot be reached, which `_watch` notices
                continue

    def _set(self, value: str) -> None:
        self._client.key_value_set(_name(self._index), value, allow_overwrite=True)

    def _look(self, process: int) -> None:
        try:
            found = self._client.key_value_try_get(_name(process))
        except Exception as error:
            if "NOT_FOUND" not in str(error):
                raise
            found = None  # it has not begun to count
        if found != self._last[process] or found == _DONE:
            self._last[process], self._heard[process] = found, time.monotonic()

    def _watch(self) -> None:
        while not self._stopped.wait(_BEAT):
            silent = [process for process, heard in self._heard.items() if time.monotonic() - heard > SILENCE]
            if silent:
                who = "the coordinator" if self._index in silent else f"process {silent[0]}"
                print(
                    f"another process of this run has ended or cannot be reached (nothing was heard of {who} for "
                    f"{SILENCE:.0f} s); start the same command again on all of them to resume from the last checkpoint",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(1)  # others wait for this process, and this one in an operation that will never end


def _name(process: int) -> str:
    return f"metamask_jax/alive/{process}"
