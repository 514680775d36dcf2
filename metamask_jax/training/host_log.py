"""The log file of one process of a run: what it said, when, and how it ended, whichever host it was on."""

import logging
import socket
import time
from contextlib import suppress

import jax

from metamask_jax.core.mirror import Mirror
from metamask_jax.errors import one_line
from metamask_jax.version import __version__


class HostLog:
    """Writes `logs/process_0003.log` of a workdir, by process 3; a run that goes on appends to it.

    In it is all that this package logs, and what is noted for this file alone.
    """

    def __init__(self, mirror: Mirror) -> None:
        """Opens the file and notes which process on which host this is."""
        own, count, devices = jax.process_index(), jax.process_count(), jax.local_devices()
        self._file = _File(mirror.continued(f"logs/process_{own:04d}.log"), encoding="utf-8")
        form = logging.Formatter("%(asctime)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%SZ")
        form.converter = time.gmtime
        self._file.setFormatter(form)
        logging.getLogger("metamask_jax").addHandler(self._file)
        self.note(
            f"process {own} of {count} on {socket.gethostname()}: {len(devices)} of {jax.device_count()} devices, "
            f"{devices[0].device_kind}, jax {jax.__version__}, metamask_jax {__version__}"
        )

    def note(self, message: str) -> None:
        """Adds a line."""
        self._file.handle(logging.makeLogRecord({"msg": message}))

    def close(self, error: BaseException | None) -> None:
        """Notes how the run ended, and closes the file."""
        self.note("training has ended" if error is None else f"ended by {type(error).__name__}: {one_line(error)}")
        logging.getLogger("metamask_jax").removeHandler(self._file)
        with suppress(OSError):
            self._file.close()


class _File(logging.FileHandler):
    """A log that cannot be written ends no run, and is not spoken of: the next checkpoint fails for the same reason."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass
