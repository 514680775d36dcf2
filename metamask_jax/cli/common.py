"""What the run_*.py scripts share: flags in, exit code out, one sentence for whatever is wrong."""

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from metamask_jax.config import apply_overrides, load_config
from metamask_jax.errors import ConfigError
from metamask_jax.kernels.process import keep_freed_memory

_QUICKSTART = "configs/quickstart.py"
_OVERRIDE = "--config."


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one sentence."""

    def error(self, message: str) -> NoReturn:
        """Raises instead of printing the usage."""
        raise ConfigError(f"{message}; see --help")


def pretrain_command(arguments: Sequence[str]) -> int:
    """`run_pretrain.py`; returns its exit code."""
    return guarded(_pretrain, arguments)


def _pretrain(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="run_pretrain.py",
        description="Pretrains an encoder, or goes on where a stopped run left off.",
        epilog=f"Any configuration key can be set by {_OVERRIDE}KEY=VALUE, such as {_OVERRIDE}train.seed=1.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", default=_QUICKSTART, help=f"a config file, FILE.py or FILE.py:ARGUMENT ({_QUICKSTART})"
    )
    parser.add_argument("--workdir", default="runs/quickstart", help="where everything is written (%(default)s)")
    parser.add_argument("--accept-changes", action="store_true", help="resume although the configuration has changed")
    parser.add_argument("--coordinator", help="host:port of process 0 of several; SLURM and TPU pods need no flags")
    parser.add_argument("--processes", type=int, help="how many processes take part")
    parser.add_argument("--process", type=int, help="which of them this is, from 0")
    overrides = dict(_override(text) for text in arguments if text.startswith(_OVERRIDE))
    flags = parser.parse_args([text for text in arguments if not text.startswith(_OVERRIDE)])
    config = apply_overrides(load_config(flags.config), overrides)

    from metamask_jax.evaluate.online import pretrain
    from metamask_jax.training import distributed as parallel

    keep_compiled_programs()
    parallel.join_processes(coordinator=flags.coordinator, process_count=flags.processes, process_index=flags.process)
    if not arguments:
        from metamask_jax.cli.quickstart import run_quickstart

        run_quickstart(config, flags.workdir)
    else:
        pretrain(config, flags.workdir, accept_changes=flags.accept_changes)
    return 0


def keep_compiled_programs() -> None:
    """Lets the next start of the same configuration skip the compiler; JAX's own variable still decides where."""
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", os.path.expanduser("~/.cache/metamask_jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _override(text: str) -> tuple[str, str]:
    key, found, value = text.removeprefix(_OVERRIDE).partition("=")
    if not found:
        raise ConfigError(f"{text}; expected {_OVERRIDE}KEY=VALUE")
    return key, value


def guarded(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Runs a command and turns what we raise on purpose into one sentence and an exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("metamask_jax").setLevel(logging.INFO)
    logging.getLogger("absl").setLevel(logging.ERROR)  # orbax and tfds warn of what is meant
    keep_freed_memory()
    try:
        return command(arguments)
    except ConfigError as error:  # told apart first: a bad flag should not have to wait for the other imports
        code, message = 2, str(error)
    except Exception as error:
        code, message = _judge(error)
    print(message, file=sys.stderr, flush=True)
    if "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized():
        # An orderly exit would wait for the other processes, which wait for this one.
        os._exit(code)
    return code


def _judge(error: Exception) -> tuple[int, str]:
    """Exit code and message of an exception; one that nobody expected keeps its traceback."""
    import jax

    from metamask_jax.errors import CheckpointError, DataError, Interrupted, TrainingError

    if isinstance(error, DataError | CheckpointError):
        return 2, str(error)
    if isinstance(error, TrainingError):
        return 1, str(error)
    if isinstance(error, Interrupted):
        return error.exit_code, str(error)
    if isinstance(error, jax.errors.JaxRuntimeError) and jax.process_count() > 1:
        reason = str(error).strip().splitlines()[0][:200]
        return 1, (
            f"another process of this run has ended or cannot be reached ({reason}); "
            "start the same command again on all of them to resume from the last checkpoint"
        )
    return 1, "".join(traceback.format_exception(error))
