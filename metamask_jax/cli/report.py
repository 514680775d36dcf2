"""Writes report.html of a run anew, from what its workdir has, or one page that compares several runs.

metamask-report --workdir runs/cifar10
metamask-report --compare runs/base runs/mask --out comparison.html
"""

import sys
from collections.abc import Sequence

from metamask_jax.cli.common import Parser, guarded, path_name
from metamask_jax.core.places import to_place
from metamask_jax.errors import ConfigError


def _report(arguments: Sequence[str]) -> int:
    parser = Parser("Writes report.html of a run anew, from what its workdir has, or one page about several runs.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--workdir", type=path_name, help="of the run, finished or not")
    what.add_argument("--compare", nargs="+", type=path_name, metavar="DIR", help="working directories of several runs")
    parser.add_argument(
        "--out", type=path_name, default="comparison.html", help="where the comparison is written (%(default)s)"
    )
    flags = parser.read(arguments)
    folders = [to_place(name) for name in flags.compare or [flags.workdir]]
    flag = "--compare" if flags.compare else "--workdir"
    for folder in folders:
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{flag} {folder} has no config.json; expected the folder of a run")

    from metamask_jax.reporting.compare import write_comparison
    from metamask_jax.reporting.report import write_report

    try:
        print(f"wrote {write_comparison(folders, flags.out) if flags.compare else write_report(folders[0])}")
    except OSError as error:
        where = f"--out {flags.out}" if flags.compare else f"--workdir {flags.workdir}"
        raise ConfigError(f"{where}; expected a place that can be written, but: {error}") from error
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return guarded(_report, arguments)


if __name__ == "__main__":
    sys.exit(main())
