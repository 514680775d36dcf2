"""Several runs by one command: all combinations of some values, each with some seeds, one after another.

    metamask-pretrain --workdir runs/rates --seeds 3 --sweep optimizer.learning_rate=0.03,0.1 --sweep loss.alpha=1,10

Runs that differ in rates, lengths, seeds and the like share one compiled program (`training.settings`). Each has a
working directory of its own, named after what it differs in; the same command goes on after an interruption.
"""

import csv
import io
import itertools
import json
import logging
import re
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from metamask_jax.config import apply_overrides, differences
from metamask_jax.core.places import Place, to_place
from metamask_jax.core.storage import read_json_lines, write_atomically
from metamask_jax.errors import ConfigError, TrainingError

_log = logging.getLogger(__name__)
_OUTSIDE_BRACKETS = re.compile(r",(?![^(\[]*[)\]])")  # a comma between values, not one inside of a tuple
_NOT_IN_NAMES = re.compile(r"[^\w.=+()-]+")
_LONGEST_NAME = 200  # file systems take 255 bytes


class Cell(NamedTuple):
    """One run of a sweep.

    Attributes:
      values: what it differs in, as text by key.
      config: its whole configuration, validated.
      workdir: its own.
    """

    values: dict[str, str]
    config: ConfigDict
    workdir: Place

    def is_finished(self, *, accept_changes: bool, restart: bool) -> bool:
        """Whether its result is there; refuses what another configuration has left."""
        from metamask_jax.training.workdir import check_workdir, read_config_json

        config = self.config.copy_and_resolve_references()
        if config.data.size is None and (self.workdir / "config.json").exists():
            config.data.size = read_config_json(self.workdir).data.size  # training fills it in
        check_workdir(self.workdir, config, accept_changes=accept_changes, restart=restart)
        # The report is the last thing that a run writes.
        return not restart and all((self.workdir / name).exists() for name in ("result.json", "report.html"))


def read_sweeps(texts: Sequence[str], *, seeds: int | None, first_seed: int) -> list[dict[str, str]]:
    """All combinations of the values of `KEY=A,B,C`, seed by seed: a stop leaves whole tables of fewer seeds.

    Example:
      >>> read_sweeps(["method.head=(8,4),(8,)"], seeds=None, first_seed=0)
      [{'method.head': '(8,4)'}, {'method.head': '(8,)'}]
    """
    axes: dict[str, list[str]] = {}
    if seeds is not None:
        axes["train.seed"] = [str(first_seed + i) for i in range(seeds)]
    for text in texts:
        key, found, listed = text.partition("=")
        values = [value.strip() for value in _OUTSIDE_BRACKETS.split(listed)]
        key = key.removeprefix("config.")
        if not found or not key or not all(values) or len(set(values)) < len(values):
            raise ConfigError(f"--sweep {text}; expected KEY=A,B,C with different values")
        if key in axes:
            other = "--seeds has it" if key == "train.seed" else "it is there twice"
            raise ConfigError(f"--sweep {text}; expected every key once, but {other}")
        axes[key] = values
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def plan(config: ConfigDict, combinations: Sequence[dict[str, str]], workdir: Place) -> list[Cell]:
    """The runs; refuses a combination that cannot be run before any of them begins."""
    from metamask_jax.training.registry import validate

    cells = []
    for values in combinations:
        valid = validate(apply_overrides(config.copy_and_resolve_references(), values))
        cells.append(Cell(values, valid, workdir / _folder(values)))
    for a, b in itertools.combinations(cells, 2):
        if not differences(a.config, b.config):
            raise ConfigError(
                f"--sweep: {a.workdir.name} and {b.workdir.name} are the same run; expected different ones"
            )
    return cells


def run_sweep(
    config: ConfigDict,
    workdir: str,
    sweeps: Sequence[str],
    *,
    seeds: int | None,
    accept_changes: bool = False,
    restart: bool = False,
) -> int:
    """Runs what is not finished yet, and prints a table of all.

    Args:
      config: what the runs share.
      workdir: gets one folder per run, and `sweep.csv`.
      sweeps: one `KEY=A,B,C` per key.
      seeds: how many, from `config.train.seed` on; None is that one alone.
      accept_changes: go on even though the configuration is not the one the runs were started with.
      restart: begin all of them anew.

    Returns:
      The exit code: 1 if a run failed; the others are run all the same.
    """
    from metamask_jax.evaluate.online import pretrain
    from metamask_jax.kernels.programs import programs_folder
    from metamask_jax.training import processes
    from metamask_jax.training.distributed import is_main
    from metamask_jax.training.settings import Programs

    combinations = read_sweeps(sweeps, seeds=seeds, first_seed=config.train.seed)
    cells = plan(config, combinations, to_place(workdir))
    how: dict[str, Any] = {"accept_changes": accept_changes, "restart": restart}
    with processes.shared_refusals():
        done = [cell.is_finished(**how) for cell in cells] if is_main() else []
    done = json.loads(processes.exchange(json.dumps(done))[0])
    programs, failures = Programs(programs_folder()), []
    for number, (cell, finished) in enumerate(zip(cells, done, strict=True), start=1):
        _log.info("run %d of %d, %s%s", number, len(cells), cell.workdir.name, ": finished before" if finished else "")
        if finished:
            continue
        try:
            pretrain(cell.config, cell.workdir, **how, programs=programs)
        except TrainingError as error:
            failures.append(f"{cell.workdir.name}: {error}")
    if is_main():
        _print_table(cells, to_place(workdir))
        for failure in failures:
            print(failure)
    return 1 if failures else 0


def _folder(values: dict[str, str]) -> str:
    """A name that says what a run differs in, such as `optimizer.learning_rate=0.1+seed=2`."""
    named = {"seed" if key == "train.seed" else key: value for key, value in values.items()}
    seed = {"seed": named.pop("seed")} if "seed" in named else {}
    name = "+".join(f"{key}={value}" for key, value in (named | seed).items())
    name = _NOT_IN_NAMES.sub("_", name)
    if len(name) > _LONGEST_NAME:
        raise ConfigError(f"--sweep: a run would be called {name[:60]}...; expected values of fewer letters")
    return name


def _print_table(cells: Sequence[Cell], workdir: Place) -> None:
    rows = [row for cell in cells if (row := _row(cell)) is not None]
    if not rows:
        return
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(workdir / "sweep.csv", text.getvalue())
    lines = [columns, *([_cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print()
    for line in lines:
        print("  ".join(entry.rjust(width) for entry, width in zip(line, widths, strict=True)))
    print(*_over_seeds(rows), sep="\n")
    print(f"\ntable: {workdir / 'sweep.csv'}; to compare linear probes: evaluate each run, then --compare them")


def _row(cell: Cell) -> dict[str, Any] | None:
    """What a finished run came to; the interval is Wilson's, over test pictures."""
    from metamask_jax.evaluate.metrics import wilson_interval
    from metamask_jax.evaluate.online import OnlineEvaluator

    path = cell.workdir / "result.json"
    if not path.exists():
        return None
    result = json.loads(path.read_text())
    losses = [line["loss"] for line in read_json_lines(cell.workdir / "metrics.jsonl") if "loss" in line]
    row = {**cell.values, "loss": losses[-1] if losses else None}
    if "knn_accuracy" in result:
        accuracy, images = result["knn_accuracy"], len(OnlineEvaluator(cell.config).splits[1])
        low, high = wilson_interval(round(accuracy * images), images)
        row |= {"knn": accuracy, "knn_low": low, "knn_high": high}
    return row | {"seconds": result["seconds"]}


def _over_seeds(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Mean kNN and its 95 % interval over seeds (Student's t) of each combination that has several."""
    from scipy.stats import t

    groups: dict[str, list[float]] = {}
    measured = ("train.seed", "loss", "knn", "knn_low", "knn_high", "seconds")
    for row in rows:
        if "knn" in row and "train.seed" in row:
            name = ", ".join(f"{key}={value}" for key, value in row.items() if key not in measured) or "all"
            groups.setdefault(name, []).append(row["knn"])
    lines = []
    for name, values in groups.items():
        if len(values) > 1:
            half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
            lines.append(f"{name}: kNN {statistics.fmean(values):.1%} +- {half:.1%} over {len(values)} seeds")
    return ["", *lines] if lines else []


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
