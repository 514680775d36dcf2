"""Commands as processes of their own that start in no time: each is forked from one that has imported everything.

Killing such a process, or taking its disk away, is as real as it gets; only the imports are not done again every time.
"""

import collections
import errno
import importlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

ROOT = pathlib.Path(__file__).parents[2]
Place = tuple[str, int]  # a line of `Ended.changes`, and which of those that are equal, from 0
_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate")
_OF_A_PROCESS = ((r"\.[0-9a-f]{6}\.\d+\.[0-9a-f]{8}\.tmp", ".tmp"), (r"tfevents\.\d+", "tfevents"))
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Ended(NamedTuple):
    """How a command ended.

    Attributes:
      code: its exit code, negative for the signal that killed it.
      said: what it wrote to stderr.
      changes: what it did to files below the watched folder, one line each, in order.
    """

    code: int
    said: str
    changes: list[str]


class Nursery:
    """The process that the commands are forked from; a context manager."""

    def __init__(self, folder: pathlib.Path, **environment: str) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def run(
        self,
        command: str,
        *arguments: str,
        watched: pathlib.Path,
        kill_at: Place | None = None,
        full_at: Place | None = None,
    ) -> Ended:
        """Runs a command to its end.

        Args:
          command: a module that has a `main`.
          arguments: of the command line.
          watched: the folder below which changes to files are counted.
          kill_at: SIGKILL comes just before this change.
          full_at: from this change on there is no space left for anything that makes a file or opens one to write.
        """
        said, changes = self._folder / "said", self._folder / "changes"
        for path in (said, changes):
            path.write_text("")
        request = {"command": command, "arguments": arguments, "watched": str(watched.resolve())}
        request |= {"kill_at": kill_at, "full_at": full_at, "said": str(said), "changes": str(changes)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return Ended(code, said.read_text(errors="replace"), changes.read_text().splitlines())


def _serve() -> None:
    """Forks a process for every request, and answers with its exit code."""
    import jax
    import matplotlib.pyplot  # noqa: F401
    import orbax.checkpoint  # noqa: F401
    import tensorboardX  # noqa: F401
    import tqdm  # noqa: F401

    for name in ("pretrain", "evaluate", "diagnostics", "report", "experiments", "export"):
        importlib.import_module(f"metamask_jax.cli.{name}")
    for name in ("evaluate.online", "evaluate.evaluation", "reporting.report", "experiments.measures"):
        importlib.import_module(f"metamask_jax.{name}")
    importlib.import_module("tests.tiny")
    assert not jax._src.xla_bridge._backends, "a backend does not survive a fork"
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            answers.close()
            sys.exit(_obey(json.loads(line)))
        status = os.waitpid(child, 0)[1]
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answers.flush()


def _obey(request: dict[str, Any]) -> int:
    for stream, path in ((0, os.devnull), (1, os.devnull), (2, request["said"])):
        handle = os.open(path, os.O_RDWR | os.O_APPEND)
        os.dup2(handle, stream)
        os.close(handle)
    _watch(request)
    return int(importlib.import_module(request["command"]).main(request["arguments"]))


def _watch(request: dict[str, Any]) -> None:
    """Counts changes to files by Python's own audit events, and strikes when it is time."""
    watched, seen, full = request["watched"], collections.Counter[str](), False
    kill_at, full_at = (place and tuple(place) for place in (request["kill_at"], request["full_at"]))
    log = os.open(request["changes"], os.O_WRONLY | os.O_APPEND)

    def hook(event: str, arguments: Sequence[Any]) -> None:
        nonlocal full
        if (event != "open" and event not in _CHANGES) or (event == "open" and not arguments[2] & _WRITING):
            return
        names = [name for name in _names(event, arguments) if name.startswith(watched)]
        if not names:
            return
        change = " ".join((event, *(_plain(os.path.relpath(name, watched)) for name in names)))
        place = (change, seen[change])
        seen[change] += 1
        if place == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(log, f"{change}\n".encode())
        full = full or place == full_at
        if full and event in ("open", "os.mkdir", "os.link", "os.symlink"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), names[0])

    sys.addaudithook(hook)


def _names(event: str, arguments: Sequence[Any]) -> list[str]:
    """The files that an event is about, as absolute names."""
    two = event in ("os.rename", "os.link", "os.symlink")
    folders = {"os.mkdir": arguments[2:], "os.remove": arguments[1:], "os.rmdir": arguments[1:]}.get(event, ())
    paths = [path for path in arguments[: 1 + two] if isinstance(path, str | bytes | os.PathLike)]
    folder = os.readlink(f"/proc/self/fd/{folders[0]}") if folders and folders[0] >= 0 else ""
    return [os.path.abspath(os.path.join(folder, os.fsdecode(path))) for path in paths]


def _plain(name: str) -> str:
    """A name without what differs from one process to the next."""
    for pattern, instead in _OF_A_PROCESS:
        name = re.sub(pattern, instead, name)
    return name


if __name__ == "__main__":
    _serve()
