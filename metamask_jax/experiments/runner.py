"""Runs the cells of a grid: finished ones are skipped, failed ones are reported and the rest goes on."""

import json
import logging
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from metamask_jax.core.storage import write_atomically
from metamask_jax.experiments.base import Cell, Experiment, Label, Result, Results
from metamask_jax.experiments.identity import folder_name
from metamask_jax.experiments.scales import Scale
from metamask_jax.training.registry import validate
from metamask_jax.training.settings import Programs

_log = logging.getLogger("metamask_jax.experiments")


class Job(NamedTuple):
    """One cell with one seed.

    Attributes:
      name: for people and the command line.
      cell: what to run.
      config: with the seed, validated.
      workdir: where; experiments that need the same run share it.
      kept: the file that keeps what was measured when the workdir is gone, if any does.
    """

    name: str
    cell: Cell
    config: ConfigDict
    workdir: pathlib.Path
    kept: pathlib.Path | None = None

    @property
    def length(self) -> int:
        """Length of the training: in steps, or in epochs where the configuration gives those."""
        train = self.config.train
        return int(train.epochs if train.steps is None else train.steps)

    def missing(self) -> list[str]:
        """The measures that are not there yet."""
        kept = self._kept()
        return [name for name in self.cell.measures if name not in kept and not self._path(name).exists()]

    def values(self) -> dict[str, dict[str, Any]]:
        """What was measured, by measure; those of the workdir before those that are kept."""
        own = {n: json.loads(self._path(n).read_text()) for n in self.cell.measures if self._path(n).exists()}
        return self._kept() | own

    def write(self, measure: str, values: dict[str, Any]) -> None:
        """Notes a measure beside the run."""
        self._path(measure).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path(measure), json.dumps(values))

    def keep(self) -> None:
        """Keeps what was measured outside of the workdir, for a day when that is gone."""
        if self.kept is not None and (values := self.values()) != self._kept():
            self.kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.kept, json.dumps(values, indent=1, sort_keys=True) + "\n")

    def _kept(self) -> dict[str, dict[str, Any]]:
        if self.kept is None or not self.kept.exists():
            return {}
        values: dict[str, dict[str, Any]] = json.loads(self.kept.read_text())
        return values

    def _path(self, measure: str) -> pathlib.Path:
        return self.workdir / "measures" / f"{measure}.json"


def plan(
    experiment: Experiment,
    scale: Scale,
    *,
    seeds: Sequence[int],
    out: pathlib.Path,
    data_dir: str,
    keep: pathlib.Path | None = None,
) -> list[Job]:
    """All jobs of an experiment, seed by seed, so that every stop leaves whole tables of fewer seeds.

    Args:
      experiment: what to run.
      scale: at which size.
      seeds: of the runs.
      out: folder of the runs.
      data_dir: of prepared datasets.
      keep: folder that keeps the measures of finished cells, for when the runs themselves are gone.
    """
    jobs = []
    cells = [(cell, validate(cell.config)) for cell in experiment.cells(scale)]  # once: a seed makes no difference
    for seed in seeds:
        for cell, valid in cells:
            config = valid.copy_and_resolve_references()
            config.train.seed = seed
            config.data.dir = data_dir
            name = "-".join(str(value) for value in (*cell.labels.values(), f"seed{seed}")).replace(" ", "_")
            folder = folder_name(config)
            jobs.append(Job(name, cell, config, out / "cells" / folder, keep and keep / f"{folder}.json"))
    return jobs


def only(jobs: list[Job], labels: dict[str, Label]) -> list[Job]:
    """The jobs whose labels, as text, are the given ones."""
    return [j for j in jobs if all(str(j.cell.labels.get(key)) == str(value) for key, value in labels.items())]


def run_job(job: Job, programs: Programs | None = None) -> None:
    """Pretrains, going on where an earlier attempt stopped, and takes the measures that are missing.

    Args:
      job: what to run.
      programs: shared by the jobs of this process.
    """
    from metamask_jax.evaluate.online import pretrain
    from metamask_jax.experiments.measures import measure
    from metamask_jax.reporting.report import write_report

    if not (job.workdir / "result.json").exists():
        pretrain(job.config, job.workdir, programs=programs)
    elif not (job.workdir / "report.html").exists():  # an earlier attempt was killed in between
        write_report(job.workdir)
    for name in job.missing():
        job.write(name, measure(name, job.workdir))
    job.keep()


def run_all(jobs: list[Job], *, commands: list[list[str]], workers: int) -> list[str]:
    """Runs the jobs that are not finished.

    Args:
      jobs: all of them.
      commands: of each job, to run it in a process of its own.
      workers: how many at a time; 1 runs them in this process.

    Returns:
      One sentence for each job that failed.
    """
    waiting = [pair for pair in zip(jobs, commands, strict=True) if pair[0].missing()]
    _log.info("%d of %d cells are finished", len(jobs) - len(waiting), len(jobs))
    attempt = _in_another_process if workers > 1 else partial(_in_this_process, programs=Programs())
    began, failures = time.monotonic(), []
    with ThreadPoolExecutor(workers) if workers > 1 else _Inline() as pool:
        for done, ((job, _), failure) in enumerate(zip(waiting, pool.map(attempt, waiting), strict=True), start=1):
            minutes = (time.monotonic() - began) / done * (len(waiting) - done) / 60
            _log.info("[%d/%d] %s: %s, %.0f min left", done, len(waiting), job.name, failure or "done", minutes)
            if failure:
                failures.append(f"{job.name}: {failure}")
    return failures


def _in_this_process(pair: tuple[Job, list[str]], programs: Programs) -> str | None:
    """Runs a job; returns what went wrong, so that the rest of the grid goes on."""
    from metamask_jax.errors import Interrupted

    try:
        run_job(pair[0], programs)
    except Interrupted:  # not this cell's failure: someone wants the grid to stop
        raise
    except Exception as error:
        _log.debug("", exc_info=error)
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return None


def _in_another_process(pair: tuple[Job, list[str]]) -> str | None:
    found = subprocess.run([sys.executable, *pair[1]], capture_output=True, text=True, check=False)
    return found.stderr.strip().splitlines()[-1] if found.returncode else None


class _Inline:
    """An executor of one worker that is this thread, where JAX and its signals are."""

    map = staticmethod(map)

    def __enter__(self) -> "_Inline":
        return self

    def __exit__(self, *args: object) -> None:
        pass


def pace(jobs: Iterable[Job]) -> dict[bool, float]:
    """Seconds per unit of length of the finished runs, compilation included, without and with mask learning."""
    found: dict[bool, list[float]] = {}
    for job in jobs:
        path = job.workdir / "result.json"
        if path.exists():
            found.setdefault(job.config.mask.learn, []).append(json.loads(path.read_text())["seconds"] / job.length)
    return {learned: statistics.median(times) for learned, times in found.items()}


def collect(jobs: list[Job]) -> Results:
    """What the finished jobs measured."""
    results = []
    for job in jobs:
        if not job.missing():
            values = {
                f"{name}.{key}": value for name, measured in job.values().items() for key, value in measured.items()
            }
            results.append(Result(job.cell.labels, job.config.train.seed, values))
    return Results(results)
