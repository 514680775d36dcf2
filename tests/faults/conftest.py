"""A tiny run, as it comes out if nothing happens to it, and what must be the same whatever does."""

import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from metamask_jax.core.storage import read_json_lines
from metamask_jax.training.checkpoint import Checkpoints
from metamask_jax.training.logging import CLOCKS as TIMED
from tests.faults.nursery import Ended, Nursery, Place

SETTINGS = {
    "train.steps": "6",
    "data.options.train_size": "64",
    "data.options.test_size": "32",
    "data.augmentation": "eval",
    "meta.estimator": "first_order",
    "checkpoint.every_steps": "2",
    "checkpoint.keep_last": "2",
    "log.every_steps": "1",
    "eval.every_epochs": "1",
}
CLOCKS = ("seconds", *TIMED)


class Bench:
    """Commands on one configuration whose processes share data and compiled programs."""

    def __init__(self, folder: pathlib.Path, nursery: Nursery) -> None:
        self.folder, self._nursery = folder, nursery
        settings = SETTINGS | {"data.dir": str(folder / "data")}
        text = f"from tests.tiny import tiny_config\n\ndef get_config():\n    return tiny_config({settings!r})\n"
        (folder / "config.py").write_text(text)

    def run(self, command: str, workdir: pathlib.Path, **strike: Place | None) -> Ended:
        """Runs a command of this package on a workdir, or what it is called here."""
        module, *arguments = {
            "pretrain": ("metamask_jax.cli.pretrain", f"--config={self.folder / 'config.py'}"),
            "evaluate": ("metamask_jax.cli.evaluate", "--protocol=knn_official,knn_euclidean5"),
            "diagnostics": ("metamask_jax.cli.diagnostics", "--only=spectrum,correlation", "--size=32"),
            "report": ("metamask_jax.cli.report",),
            "experiments": ("tests.faults.one_cell", f"--data-dir={self.folder / 'data'}"),
        }[command]
        where = "out" if command == "experiments" else "workdir"
        return self._nursery.run(module, *arguments, f"--{where}={workdir}", watched=workdir, **strike)


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("bench")
    flags = os.environ["XLA_FLAGS"].replace("device_count=4", "device_count=1")
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    with Nursery(folder, XLA_FLAGS=flags, **cache) as nursery:
        yield Bench(folder, nursery)


@pytest.fixture(scope="session")
def finished(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run that nothing has happened to."""
    workdir = tmp_path_factory.mktemp("finished") / "run"
    ended = bench.run("pretrain", workdir)
    assert ended.code == 0, ended.said
    return workdir


def places(ended: Ended) -> list[Place]:
    """Every change that a command has made to files; of the removal of an old checkpoint, one.

    What is left of that removal after a kill is never removed in the same way again.
    """
    seen: dict[str, int] = {}
    found = []
    for change in ended.changes:
        if ".removed." not in change or (change.startswith("os.rmdir") and change.endswith("/metadata")):
            found.append((change, seen.setdefault(change, 0)))
            seen[change] += 1
    return found


def spread(found: list[Place], wanted: int) -> list[Place]:
    """So many of them, evenly, the first and the last among them; all if the environment asks for everything."""
    if os.environ.get("METAMASK_FAULTS") == "all":
        return found
    return [found[round(place)] for place in np.linspace(0, len(found) - 1, min(wanted, len(found)))]


def saved_steps(workdir: pathlib.Path) -> list[int]:
    """The checkpoints that are whole by their name."""
    return sorted(int(path.name) for path in workdir.glob("checkpoints/*") if path.name.isdecimal())


def assert_nothing_lost(found: pathlib.Path, expected: pathlib.Path) -> None:
    """Two folders hold the same, bit for bit, but for one old checkpoint that a run was about to remove."""
    ours, theirs = essence(found), essence(expected)
    old = {name for name in ours.keys() - theirs.keys() if name == "checkpoints/2/metadata/metadata"}
    assert {name: value for name, value in ours.items() if name not in old} == theirs
    for folder in found.rglob("checkpoints"):
        checkpoints = Checkpoints.for_reading(folder)
        for step in checkpoints.steps():
            checkpoints.restore({}, step=step)  # which compares every array with its digest
        checkpoints.close()


def essence(folder: pathlib.Path) -> dict[str, Any]:
    """What is in a folder, bit for bit, but for clocks; what a run has left of its inner workings is not part of it."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        inner = {"tensorboard", "logs"} & set(path.parts) or path.name in ("report.html", ".lock")
        inner = inner or path.name.startswith("..lock")
        if path.is_dir() or inner:
            continue
        if "checkpoints" in path.parts:
            if path.parts[-2:] == ("metadata", "metadata"):  # which has a digest of the arrays, compared when read
                found[name] = json.loads(path.read_bytes())["digest"]
        elif path.suffix == ".jsonl":
            found[name] = without_clocks(read_json_lines(path))
        elif path.suffix == ".json":
            found[name] = without_clocks(json.loads(path.read_bytes()))
        elif path.suffix == ".npz":
            with np.load(path) as arrays:
                found[name] = {key: (value.shape, value.tobytes()) for key, value in arrays.items()}
        else:
            found[name] = path.read_bytes()
    return found


def without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_clocks(item) for key, item in value.items() if key not in CLOCKS}
    return [without_clocks(item) for item in value] if isinstance(value, list) else value
