"""Pretrains an encoder, or goes on where a stopped run left off.

    metamask-pretrain                                                       # the quickstart: no download, minutes
    metamask-pretrain --config cifar10_resnet18 --workdir runs/cifar10 [--config.train.seed=1 ...]
    metamask-pretrain --workdir runs/rates --seeds 3 --sweep mask.learning_rate=1,10        # six runs, and a table

The same command resumes. Exit codes: 0 done; 2 something about the input is wrong; 1 training failed; 128 + n stopped
by signal n with its state saved (143 for SIGTERM, 130 for SIGINT, 129 for SIGHUP).
"""

import sys
from collections.abc import Sequence

from metamask_jax.cli.common import (
    OVERRIDES,
    Parser,
    guarded,
    join,
    path_name,
    set_up_process,
    split_overrides,
    whole_number,
)
from metamask_jax.config import apply_overrides, load_config
from metamask_jax.errors import ConfigError


def _pretrain(arguments: Sequence[str]) -> int:
    parser = Parser("Pretrains an encoder, or goes on where a stopped run left off.", epilog=OVERRIDES)
    parser.add_config(default="quickstart")
    parser.add_argument(
        "--workdir", type=path_name, default="runs/quickstart", help="where everything is written (%(default)s)"
    )
    parser.add_argument("--accept-changes", action="store_true", help="resume although the configuration has changed")
    parser.add_argument(
        "--restart", action="store_true", help="begin anew; what is in the workdir is kept in a folder there"
    )
    parser.add_argument(
        "--seeds", type=whole_number(1), metavar="N", help="as many runs, from config.train.seed on; one folder each"
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=A,B,C",
        help="one run per value of a configuration key; repeatable: all combinations",
    )
    parser.add_argument(
        "--profile", metavar="START:STOP", help="trace these steps, for XProf, into the folder profile of the workdir"
    )
    parser.add_processes()
    others, overrides = split_overrides(arguments)
    flags = parser.read(others)
    config = apply_overrides(load_config(flags.config), overrides)
    profile = None
    if flags.profile is not None:
        from metamask_jax.training.profile import Steps

        if flags.sweep or flags.seeds:
            raise ConfigError("--profile with --sweep or --seeds; expected a single run")
        profile = Steps.of(flags.profile)

    set_up_process()
    join(flags)
    # Imported after the flags are read, so that a bad one is told at once.
    if flags.sweep or flags.seeds:
        from metamask_jax.cli.sweep import run_sweep

        how = {"accept_changes": flags.accept_changes, "restart": flags.restart}
        return run_sweep(config, flags.workdir, flags.sweep, seeds=flags.seeds, **how)
    if arguments:
        from metamask_jax.evaluate.online import pretrain
        from metamask_jax.kernels.programs import programs_folder
        from metamask_jax.training.settings import Programs

        how = {"accept_changes": flags.accept_changes, "restart": flags.restart}
        pretrain(config, flags.workdir, **how, programs=Programs(programs_folder()), profile=profile)
    else:
        from metamask_jax.cli.quickstart import run_quickstart

        run_quickstart(config, flags.workdir)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return guarded(_pretrain, arguments)


if __name__ == "__main__":
    sys.exit(main())
