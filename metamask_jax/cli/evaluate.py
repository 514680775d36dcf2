"""`run_linear.py`: flags in, results in the workdir, exit code out."""

import ast
import logging
import pathlib
from collections.abc import Sequence
from typing import Any

from metamask_jax.cli.common import Parser, guarded, keep_compiled_programs
from metamask_jax.errors import ConfigError


def evaluate_command(arguments: Sequence[str]) -> int:
    """`run_linear.py`; returns its exit code."""
    return guarded(_evaluate, arguments)


def _evaluate(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="run_linear.py",
        description="Evaluates a pretrained encoder; docs/evaluation.md tells what each protocol does.",
        allow_abbrev=False,
    )
    parser.add_argument("--workdir", required=True, help="of the pretrained run; results go there as well")
    parser.add_argument("--step", default="last", help="a step that was saved, 'best' or 'last' (%(default)s)")
    parser.add_argument("--protocol", default="linear,knn", help="names separated by commas, or 'all' (%(default)s)")
    parser.add_argument("--dataset", help="another set than the one pretrained on")
    parser.add_argument("--data_dir", help="where prepared sets are, if not where they were when pretraining")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="of the dataset; repeatable")
    parser.add_argument("--size", type=int, help="only the first so many training images")
    parser.add_argument("--seed", type=int, help="of everything random (0)")
    parser.add_argument("--augmented_epochs", type=int, help="of linear_augmented")
    parser.add_argument("--finetune_epochs", type=int, help="of finetune")
    flags = parser.parse_args(list(arguments))
    least = {"seed": 0, "augmented_epochs": 1, "finetune_epochs": 1}
    settings = {name: value for name in least if (value := vars(flags)[name]) is not None}
    for name, value in settings.items():
        if value < least[name]:
            raise ConfigError(f"--{name} {value}; expected a whole number >= {least[name]}")
    options = dict(map(_option, flags.option))
    step = flags.step if flags.step in ("best", "last") else _whole(flags.step)

    from metamask_jax.evaluate.evaluation import evaluate_run
    from metamask_jax.evaluate.protocols import Settings
    from metamask_jax.reporting.report import write_report
    from metamask_jax.reporting.tables import markdown_table, terminal_table

    logging.getLogger("absl").setLevel(logging.ERROR)  # orbax warns of having been asked not to write
    keep_compiled_programs()
    new = evaluate_run(
        flags.workdir,
        step=step,
        protocols=flags.protocol.split(","),
        dataset=flags.dataset,
        data_dir=flags.data_dir,
        options=options,
        size=flags.size,
        settings=Settings(**settings),
    )
    print(f"\n{terminal_table(new)}\n")
    print(markdown_table(new, name=pathlib.Path(flags.workdir).resolve().name))
    print(f"results: {pathlib.Path(flags.workdir) / 'evaluation.json'}, report: {write_report(flags.workdir)}")
    return 0


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--step {text}; expected a whole number, 'best' or 'last'") from None


def _option(text: str) -> tuple[str, Any]:
    key, found, value = text.partition("=")
    if not found:
        raise ConfigError(f"--option {text}; expected KEY=VALUE")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value
