"""A trace of some steps, for XProf: where the time of a step goes, on the devices and on the host."""

import re
from types import TracebackType
from typing import Any, NamedTuple, Self

import jax

from metamask_jax.core.mirror import Mirror
from metamask_jax.core.places import Place
from metamask_jax.errors import ConfigError


class Steps(NamedTuple):
    """Steps to trace, both ends included."""

    first: int
    last: int

    @classmethod
    def of(cls, text: str) -> "Steps":
        """Reads `START:STOP`.

        Example:
          >>> Steps.of("10:12")
          Steps(first=10, last=12)
        """
        match = re.fullmatch(r"(\d{1,12}):(\d{1,12})", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigError(f"--profile {text}; expected START:STOP with 1 <= START <= STOP, such as 10:12")
        return cls(int(match[1]), int(match[2]))

    def check(self, total_steps: int) -> None:
        """Refuses steps that a run does not have."""
        if self.last > total_steps:
            raise ConfigError(f"--profile {self.first}:{self.last}; expected steps up to {total_steps}, the run's last")


class Profiler:
    """Traces the steps of this process into the folder `profile` of a workdir; a context manager.

    Only what was dispatched in between is in the trace: the devices are waited for at both ends.
    """

    def __init__(self, steps: Steps | None, workdir: Place) -> None:
        """Traces nothing yet; nothing at all if `steps` is None."""
        self._steps, self._workdir = steps, workdir
        self._mirror: Mirror | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def before(self, step: int, state: Any) -> None:
        """Begins the trace if it begins with this step."""
        if self._steps is not None and step == self._steps.first:
            jax.block_until_ready(state)
            self._mirror = Mirror(self._workdir / "profile")
            jax.profiler.start_trace(self._mirror.folder)

    def after(self, step: int, metrics: Any) -> None:
        """Ends the trace if it ends with this step."""
        if self._steps is not None and step == self._steps.last and self._mirror is not None:
            jax.block_until_ready(metrics)
            self._stop()

    def _stop(self) -> None:
        mirror, self._mirror = self._mirror, None
        if mirror is not None:
            jax.profiler.stop_trace()
            mirror.close()
