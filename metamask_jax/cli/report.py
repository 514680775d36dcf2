"""Writes report.html of a run anew, from what its workdir has.

metamask-report --workdir runs/cifar10
"""

import pathlib
import sys
from collections.abc import Sequence

from metamask_jax.cli.common import Parser, guarded, path_name
from metamask_jax.errors import ConfigError


def _report(arguments: Sequence[str]) -> int:
    parser = Parser("Writes report.html of a run anew, from what its workdir has.")
    parser.add_argument("--workdir", type=path_name, required=True, help="of the run, finished or not")
    workdir = pathlib.Path(parser.read(arguments).workdir)
    if not (workdir / "config.json").is_file():
        raise ConfigError(f"--workdir {workdir} has no config.json; expected the folder of a run")

    from metamask_jax.reporting.report import write_report

    try:
        print(f"wrote {write_report(workdir)}")
    except OSError as error:
        raise ConfigError(f"--workdir {workdir}; expected a folder that can be written, but: {error}") from error
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return guarded(_report, arguments)


if __name__ == "__main__":
    sys.exit(main())
