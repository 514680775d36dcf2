"""Regenerates tables and figures of the paper.

metamask-experiments list
metamask-experiments F8 [--scale cpu] [--seeds 3] [--only run=MetaMask] [--out runs/experiments]
metamask-experiments report [F8] --scale cpu
metamask-experiments page docs/results.md
"""

import logging
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from metamask_jax.cli.common import Parser, guarded, local_path_name, set_up_process, whole_number
from metamask_jax.core.storage import write_atomically
from metamask_jax.errors import ConfigError
from metamask_jax.experiments import EXPERIMENTS
from metamask_jax.experiments.output import write
from metamask_jax.experiments.page import refreshed, tables_in
from metamask_jax.experiments.runner import Job, collect, only, pace, plan, run_all, run_job
from metamask_jax.experiments.scales import SCALES, Scale, scale_named


def _run(arguments: Sequence[str]) -> int:
    parser = Parser("Regenerates tables and figures of the paper.")
    parser.add_argument("what", help="an experiment, `list`, `report` for what has results and runs nothing, or `page`")
    parser.add_argument(
        "of",
        nargs="?",
        type=local_path_name,
        help="with `page`: the Markdown file to bring up to date; with `report`: one experiment instead of all",
    )
    parser.add_argument("--scale", default="cpu", help=f"one of {', '.join(SCALES)} (%(default)s)")
    parser.add_argument("--seeds", type=whole_number(1), help="how many (the scale's own number)")
    parser.add_argument("--only", action="append", default=[], help="LABEL=VALUE: only cells with that label")
    parser.add_argument(
        "--out", type=local_path_name, default="runs/experiments", help="where runs and results go (%(default)s)"
    )
    parser.add_argument(
        "--data-dir", type=local_path_name, default="~/tensorflow_datasets", help="of prepared datasets (%(default)s)"
    )
    parser.add_argument(
        "--keep",
        type=local_path_name,
        help="folder that keeps what was measured of finished cells, and where they are found",
    )
    parser.add_argument(
        "--tables", type=local_path_name, help="where tables and figures go, one folder per scale (where runs go)"
    )
    parser.add_argument("--jobs", type=whole_number(1), default=1, help="cells at a time (%(default)s)")
    parser.add_argument("--cell", help="run this one cell and write no table")
    parser.add_argument("--print-commands", action="store_true", help="one line per cell, for a scheduler, and stop")
    flags = parser.read(arguments)
    scale = scale_named(flags.scale)
    if flags.what == "page":
        return _page(flags)
    if flags.what == "report":
        return _report(scale, flags)
    if flags.of is not None:
        raise ConfigError(f"{flags.of}; expected a file only after `page`, and an experiment only after `report`")
    if flags.what == "list":
        return _list(scale, flags)
    if flags.what not in EXPERIMENTS:
        raise ConfigError(f"{flags.what}; expected list, report, page or one of {', '.join(EXPERIMENTS)}")
    return _experiment(flags.what, scale, flags)


def _report(scale: Scale, flags: Any) -> int:
    if flags.of is not None and flags.of not in EXPERIMENTS:
        raise ConfigError(f"report {flags.of}; expected one of {', '.join(EXPERIMENTS)}, or nothing for all of them")
    for name in EXPERIMENTS if flags.of is None else [flags.of]:
        _show(name, _jobs(name, scale, flags), scale, flags)
    return 0


def _experiment(name: str, scale: Scale, flags: Any) -> int:
    jobs = only(_jobs(name, scale, flags), dict(_label(text) for text in flags.only))
    if not jobs:
        raise ConfigError(f"--only {' '.join(flags.only)}; no cell of {name} has these labels")
    commands = [_command(name, job, scale, flags) for job in jobs]
    if flags.print_commands:
        print("\n".join(" ".join(("python", *command)) for command in commands))
        return 0
    set_up_process()
    if flags.cell:
        chosen = [job for job in jobs if job.name == flags.cell]
        if not chosen:
            raise ConfigError(f"--cell {flags.cell}; expected one of {', '.join(job.name for job in jobs)}")
        run_job(chosen[0])
        return 0
    logging.getLogger("metamask_jax").setLevel(logging.WARNING)  # the cells' own progress would drown the grid's
    logging.getLogger("metamask_jax.experiments").setLevel(logging.INFO)
    failures = run_all(jobs, commands=commands, workers=flags.jobs)
    _show(name, _jobs(name, scale, flags), scale, flags)
    for failure in failures:
        print(f"failed: {failure}; the same command tries it again", file=sys.stderr)
    return 1 if failures else 0


def _jobs(name: str, scale: Scale, flags: Any) -> list[Job]:
    experiment, count = EXPERIMENTS[name], scale.seeds if flags.seeds is None else flags.seeds
    return plan(
        experiment,
        scale,
        seeds=range(experiment.first_seed, experiment.first_seed + count),
        out=pathlib.Path(flags.out) / scale.name,
        data_dir=flags.data_dir,
        keep=pathlib.Path(flags.keep) / scale.name if flags.keep else None,
    )


def _command(name: str, job: Job, scale: Scale, flags: Any) -> list[str]:
    seeds = scale.seeds if flags.seeds is None else flags.seeds
    return [
        *(
            "-m",
            "metamask_jax.cli.experiments",
            name,
            f"--scale={scale.name}",
            f"--seeds={seeds}",
            f"--out={flags.out}",
        ),
        *((f"--keep={flags.keep}",) if flags.keep else ()),
        *(f"--data-dir={flags.data_dir}", f"--cell={job.name}"),
    ]


def _label(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found:
        raise ConfigError(f"--only {text}; expected LABEL=VALUE")
    return key, value


def _show(name: str, jobs: list[Job], scale: Scale, flags: Any) -> None:
    """Prints and writes what there is; nothing if no cell is finished."""
    results = collect(jobs)
    if not results.items:
        return
    experiment = EXPERIMENTS[name]
    folder = pathlib.Path(flags.tables or flags.out) / scale.name / name
    seeds = scale.seeds if flags.seeds is None else flags.seeds
    missing = len(jobs) - len(results.items)
    stated = experiment.stated.get(scale.name, scale.stated)
    text = write(
        experiment.report(results),
        folder,
        title=f"{name}: {experiment.title} ({experiment.source})",
        stated=stated + (f"; {missing} of {len(jobs)} cells are missing" if missing else ""),
        command=f"python -m metamask_jax.cli.experiments {name} --scale {scale.name} --seeds {seeds}",
    )
    print(f"\n{text}\nwritten to {folder}")


def _page(flags: Any) -> int:
    """Brings the tables of a page up to date with the CSV files in the folder of the same name beside it."""
    if flags.of is None or not pathlib.Path(flags.of).is_file():
        raise ConfigError(f"page {flags.of or ''}; expected a Markdown file, such as docs/results.md")
    path = pathlib.Path(flags.of)
    before = path.read_text()
    after = refreshed(before, path.with_suffix(""))
    if after != before:
        write_atomically(path, after)
    print(f"{path} {'is up to date now' if after != before else 'was up to date'}: {len(tables_in(after))} tables")
    return 0


def _list(scale: Scale, flags: Any) -> int:
    plans = {name: _jobs(name, scale, flags) for name in EXPERIMENTS}
    paces = pace(job for jobs in plans.values() for job in jobs)
    unit = "epochs" if scale.config().train.steps is None else "steps"
    print(f"{'':5}{'cells':>6}{'left':>6}{unit + ' left':>14}{'time left':>11}  what")
    for name, experiment in EXPERIMENTS.items():
        left = [job for job in plans[name] if job.missing()]
        print(
            f"{name:5}{len(plans[name]):6}{len(left):6}{sum(job.length for job in left):14,}{_time(left, paces):>11}"
            f"  {experiment.title} ({experiment.source})"
        )
    return 0


def _time(jobs: list[Job], paces: dict[bool, float]) -> str:
    """What the cells would take one after another, if finished ones of their kind tell."""
    if any(job.config.mask.learn not in paces for job in jobs):
        return "?"
    return f"{sum(job.length * paces[job.config.mask.learn] for job in jobs) / 60:.0f} min"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return guarded(_run, arguments)


if __name__ == "__main__":
    sys.exit(main())
