"""Signals that ask a run to stop: it saves its state first."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

GRACE = 60.0  # seconds that a run has for its last save before another signal ends it at once
_HURRY = 3  # so many signals end it at once, whenever they come: launchers are known to send two
_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def caught_signals(*, leave: frozenset[signal.Signals] = frozenset()) -> Iterator[list[int]]:
    """Collects SIGTERM, SIGINT and SIGHUP instead of dying of them.

    The third one acts as usual, and so does one that comes later than `GRACE` seconds after the first. Signals that
    are ignored, as SIGHUP is under `nohup`, stay so.

    Args:
      leave: signals that somebody else handles; the others are passed on to it as the first of these.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # only the main thread may handle signals
        return
    first = [0.0]

    def handle(number: int, frame: Any) -> None:
        del frame
        now = time.monotonic()
        if not received:
            first[0] = now
        received.append(number)
        if len(received) >= _HURRY or now - first[0] > GRACE:
            signal.signal(number, before[number])
            signal.raise_signal(number)
        elif leave:
            signal.raise_signal(min(leave))

    before: dict[int, Any] = {
        number: signal.signal(number, handle)
        for number in _STOP
        if number not in leave and signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
