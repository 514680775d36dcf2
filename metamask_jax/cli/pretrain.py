"""Pretrains an encoder, or goes on where a stopped run left off.

    metamask-pretrain                                                       # the quickstart: no download, minutes
    metamask-pretrain --config cifar10_resnet18 --workdir runs/cifar10 [--config.train.seed=1 ...]

The same command resumes. Exit codes: 0 done; 2 something about the input is wrong; 1 training failed; 128 + n stopped
by signal n with its state saved (143 for SIGTERM, 130 for SIGINT, 129 for SIGHUP).
"""

import sys
from collections.abc import Sequence

from metamask_jax.cli.common import OVERRIDES, Parser, guarded, path_name, set_up_process, split_overrides, whole_number
from metamask_jax.config import apply_overrides, load_config


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
        "--distributed",
        choices=("auto", "on", "off"),
        default="auto",
        help="whether this is one of several processes; auto asks the launcher's environment (%(default)s)",
    )
    parser.add_argument(
        "--join-timeout", type=whole_number(1), default=300, help="seconds to wait for the others (%(default)s)"
    )
    parser.add_argument("--coordinator", help="host:port of process 0 of several; SLURM and TPU pods need no flags")
    parser.add_argument("--processes", type=whole_number(1), help="how many processes take part")
    parser.add_argument("--process", type=whole_number(0), help="which of them this is, from 0")
    others, overrides = split_overrides(arguments)
    flags = parser.read(others)
    config = apply_overrides(load_config(flags.config), overrides)

    # Imported after the flags are read, so that a bad one is told at once.
    from metamask_jax.training.processes import join_processes

    set_up_process()
    join_processes(
        coordinator=flags.coordinator,
        process_count=flags.processes,
        process_index=flags.process,
        distributed=flags.distributed,
        timeout=flags.join_timeout,
    )
    if arguments:
        from metamask_jax.evaluate.online import pretrain

        pretrain(config, flags.workdir, accept_changes=flags.accept_changes, restart=flags.restart)
    else:
        from metamask_jax.cli.quickstart import run_quickstart

        run_quickstart(config, flags.workdir)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return guarded(_pretrain, arguments)


if __name__ == "__main__":
    sys.exit(main())
