"""Evaluates a pretrained encoder from its workdir: nearest neighbours, linear and MLP probes, fine-tuning.

    metamask-evaluate --workdir runs/cifar10 [--step best] [--protocol all] [--dataset cifar100] [--size 5000]
    metamask-evaluate --encoder FOLDER --protocol knn                       # an exported one, or zoo:NAME
    metamask-evaluate --compare runs/base-0 runs/base-1 runs/mask-0 runs/mask-1

Results go to evaluation.json, evaluation.md and report.html in the workdir; docs/evaluation.md tells what they mean.
"""

import ast
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from metamask_jax.cli.common import (
    Parser,
    guarded,
    join,
    local_path_name,
    path_name,
    saved_step,
    set_up_process,
    whole_number,
)
from metamask_jax.cli.terminal import say
from metamask_jax.core.places import to_place
from metamask_jax.errors import ConfigError

if TYPE_CHECKING:
    from metamask_jax.evaluate.workdir import Run

_COMPARE = "--compare"
_SETTINGS = ("seed", "augmented_epochs", "finetune_epochs")  # flags that are fields of `protocols.Settings`


def _evaluate(arguments: Sequence[str]) -> int:
    if _COMPARE in arguments:
        return _compare(arguments)
    parser = Parser(
        "Evaluates a pretrained encoder; docs/evaluation.md tells what each protocol does.",
        f"{_COMPARE} DIR DIR ... prints one table of runs evaluated before, with paired intervals over seeds.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--workdir", type=path_name, help="of the pretrained run")
    what.add_argument(
        "--encoder", help="an exported one instead: a folder of metamask-export --format hf, or zoo:NAME from the box"
    )
    parser.add_argument("--out", type=path_name, help="where results of --encoder go (runs/ and its name)")
    parser.add_argument("--step", type=saved_step, default="last", help="a saved step, 'last' or 'best' (%(default)s)")
    parser.add_argument("--protocol", default="linear,knn", help="names separated by commas, or 'all' (%(default)s)")
    parser.add_argument("--dataset", help="another set than the one pretrained on")
    parser.add_argument(
        "--data-dir", type=local_path_name, help="where prepared sets are, if not where they were when pretraining"
    )
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="of the dataset; repeatable")
    parser.add_argument("--size", type=whole_number(1), help="only the first so many training images")
    parser.add_argument("--seed", type=whole_number(0), help="of everything random (0)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="of the encoder, if not that of the run")
    parser.add_argument("--augmented-epochs", type=whole_number(1), help="of linear_augmented")
    parser.add_argument("--finetune-epochs", type=whole_number(1), help="of finetune")
    parser.add_processes()
    flags = parser.read(arguments)
    options = dict(map(_option, flags.option))
    settings = {name: value for name in _SETTINGS if (value := vars(flags)[name]) is not None}

    # Imported after the flags are read, so that a bad one is told at once.
    from metamask_jax.evaluate.evaluation import evaluate_run
    from metamask_jax.evaluate.protocols import Settings
    from metamask_jax.export.card import needs_path
    from metamask_jax.reporting.report import write_report
    from metamask_jax.reporting.tables import terminal_table
    from metamask_jax.training.distributed import is_main

    set_up_process()
    join(flags)
    run = flags.workdir if flags.encoder is None else _exported(flags.encoder, flags.out)
    if not isinstance(run, str) and flags.dataset is None and needs_path(run.config) and "path" not in options:
        raise ConfigError(
            f"--encoder {flags.encoder} was trained on a folder of pictures, which it does not name; "
            "expected --option path=FOLDER"
        )
    workdir = to_place(run if isinstance(run, str) else run.workdir)
    new = evaluate_run(
        run,
        step=flags.step,
        protocols=flags.protocol.split(","),
        dataset=flags.dataset,
        data_dir=flags.data_dir,
        options=options,
        size=flags.size,
        dtype=flags.dtype,
        settings=Settings(**settings),
    )
    if not is_main():
        return 0
    print(f"\n{terminal_table(new)}\n")
    say(f"results: {workdir / 'evaluation.json'}, as a Markdown table: {workdir / 'evaluation.md'}")
    say(f"report: {write_report(workdir)}")
    return 0


def _exported(source: str, out: str | None) -> "Run":
    """An exported encoder as a run, with a folder of its own for the results."""
    from metamask_jax.core.encoder_folders import encoder_folder
    from metamask_jax.export.folders import exported_run

    folder = encoder_folder(source)
    if folder is None:
        raise ConfigError(
            f"--encoder {source}; expected a folder that metamask-export --format hf has written, or zoo:NAME"
        )
    run = exported_run(folder)
    workdir = to_place(out or f"runs/{folder.resolve().name}")
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {workdir}; expected a folder that can be written, but: {error}") from error
    return run._replace(workdir=workdir)


def _compare(arguments: Sequence[str]) -> int:
    parser = Parser(
        "Compares runs that were evaluated before; those that differ only in their seed are taken together."
    )
    parser.add_argument(_COMPARE, nargs="+", required=True, type=path_name, metavar="DIR", help="working directories")
    flags = parser.read(arguments)

    from metamask_jax.experiments.comparison import compare
    from metamask_jax.experiments.output import markdown

    table = compare(flags.compare)
    print(f"{table.caption}\n\n{markdown(table)}")
    return 0


def _option(text: str) -> tuple[str, Any]:
    key, found, value = text.partition("=")
    if not found:
        raise ConfigError(f"--option {text}; expected KEY=VALUE")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return guarded(_evaluate, arguments)


if __name__ == "__main__":
    sys.exit(main())
