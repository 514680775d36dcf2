"""What the commands share: flags in, exit code out, one sentence for whatever is wrong."""

import argparse
import errno
import logging
import os
import re
import signal
import sys
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from metamask_jax.cli.terminal import FittedFormatter, fitted
from metamask_jax.config import config_names
from metamask_jax.core.places import is_url, to_place, url_problem
from metamask_jax.errors import CheckpointError, ConfigError, DataError, Interrupted, TrainingError, one_line, shown

OVERRIDES = "Any configuration key can be set by --config.KEY=VALUE, such as --config.train.seed=1."
PROGRAMS = "~/.cache/metamask_jax"  # where compiled programs are kept
_OVERRIDE = "--config."
# What a disk says that is full, broken or not ours to write: nothing is wrong with the program.
_DISK = (*(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO), *(errno.EROFS, errno.EACCES, errno.ESTALE))
_LONGEST_PATH = 4000  # bytes, a little less than Linux takes: files in a folder have names, too


class Parser(argparse.ArgumentParser):
    """An argument parser that calls the command what the user typed and whose complaints are one sentence."""

    def __init__(self, description: str, epilog: str | None = None) -> None:
        super().__init__(prog=typed_command(), description=description, epilog=epilog, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raises instead of printing the usage."""
        message = re.sub(r"^argument (\S+):", r"\1", message)
        message = re.sub(r"invalid choice: (.*) \(choose from (.*)\)", r"\1; expected one of \2", message)
        raise ConfigError(message if "; expected " in message else f"{message}; see --help")

    def read(self, arguments: Iterable[str]) -> argparse.Namespace:
        """Parses flags; in the name of a flag, `_` is as good as `-`."""
        return self.parse_args([_hyphenated(text) for text in arguments])

    def add_config(self, default: str | None) -> None:
        """Adds `--config`, which `load_config` reads."""
        self.add_argument(
            "--config",
            default=default,
            help=f"one of {', '.join(config_names())}, or a file of your own, FILE.py; NAME:ARGUMENT or "
            f"FILE.py:ARGUMENT for those that take an argument ({default or 'the defaults'})",
        )

    def add_run(self) -> None:
        """Adds `--workdir` and `--step`, which `load_run` reads."""
        self.add_argument("--workdir", type=path_name, required=True, help="of the pretrained run")
        self.add_argument(
            "--step", type=saved_step, default="last", help="a saved step, 'last' or 'best' (%(default)s)"
        )

    def add_processes(self) -> None:
        """Adds the flags of one of several processes, which `join` reads."""
        self.add_argument(
            "--distributed",
            choices=("auto", "on", "off"),
            default="auto",
            help="whether this is one of several processes; auto asks the launcher's environment (%(default)s)",
        )
        self.add_argument(
            "--join-timeout", type=whole_number(1), default=300, help="seconds to wait for the others (%(default)s)"
        )
        self.add_argument("--coordinator", help="host:port of process 0 of several; SLURM and TPU pods need no flags")
        self.add_argument("--processes", type=whole_number(1), help="how many processes take part")
        self.add_argument("--process", type=whole_number(0), help="which of them this is, from 0")


def join(flags: argparse.Namespace) -> None:
    """Connects this process with the others of its run, if the flags or the launcher name any."""
    from metamask_jax.training.processes import join_processes

    join_processes(
        coordinator=flags.coordinator,
        process_count=flags.processes,
        process_index=flags.process,
        distributed=flags.distributed,
        timeout=flags.join_timeout,
    )


def typed_command() -> str:
    """How this process was started: `metamask-pretrain`, `python run_pretrain.py` or `python -m ...`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None:
        return f"python -m {spec.name.removesuffix('.__main__')}"
    script = os.path.basename(sys.argv[0])
    return f"python {script}" if script.endswith(".py") else script


def whole_number(least: int) -> Callable[[str], int]:
    """The `type` of a flag for whole numbers from `least` on."""

    def read(text: str) -> int:
        if not text.removeprefix("-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text}; expected a whole number >= {least}")
        return int(text)

    return read


def path_name(text: str) -> str:
    """The `type` of a flag for a file or folder, here or in a bucket; it need not be there."""
    written = os.fsencode(text)
    controls = any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text)
    if not text.strip() or controls or len(written) > _LONGEST_PATH or max(map(len, written.split(b"/"))) > 255:
        raise argparse.ArgumentTypeError(f"{shown(text)}; expected the name of a file or folder")
    if is_url(text) and (problem := url_problem(text)):
        raise argparse.ArgumentTypeError(problem)
    return text


def local_path_name(text: str) -> str:
    """The `type` of a flag for a file or folder on this machine."""
    if is_url(text):
        raise argparse.ArgumentTypeError(f"{text}; expected a path on this machine, such as a mounted bucket's")
    return path_name(text)


def saved_step(text: str) -> int | str:
    """The `type` of a flag for the step of a checkpoint."""
    if text.isdecimal():
        return int(text)
    if text not in ("best", "last"):
        raise argparse.ArgumentTypeError(f"{text}; expected a whole number, 'best' or 'last'")
    return text


def split_overrides(arguments: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Takes flags such as `--config.train.seed=1` apart from the others.

    Returns:
      The other flags, and the values as text, by key.
    """
    flags: list[str] = []
    overrides: dict[str, str] = {}
    for text in arguments:
        if not text.startswith(_OVERRIDE):
            flags.append(text)
            continue
        key, found, value = text.removeprefix(_OVERRIDE).partition("=")
        if not found:
            raise ConfigError(f"{text}; expected {_OVERRIDE}KEY=VALUE")
        overrides[key] = value
    return flags, overrides


def set_up_process() -> None:
    """What every command that computes calls first, once its flags are known to be good."""
    from metamask_jax.kernels.process import collect_rarely, keep_freed_memory

    keep_freed_memory()
    collect_rarely()
    keep_compiled_programs()


def keep_compiled_programs() -> None:
    """Lets the next start of the same configuration skip the compiler; JAX's own variable still decides where."""
    import jax

    from metamask_jax.kernels.programs import keep_programs

    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if folder is not None:
        if is_url(folder):
            to_place(folder)  # which refuses what JAX would take for a local folder
    else:
        keep_programs(PROGRAMS)
        # The smallest too: dozens of them, each faster to read than to compile.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def guarded(command: Callable[[Sequence[str]], int], arguments: Sequence[str] | None) -> int:
    """Runs a command and turns what we raise on purpose into one sentence and an exit code.

    Args:
      command: takes the arguments and returns its exit code.
      arguments: of the command line; None for those of this process.

    Returns:
      The exit code: 0 done, 2 something about the input is wrong, 1 failed, 128 + n stopped by signal n.
    """
    logging.basicConfig(level=logging.WARNING)
    for handler in logging.root.handlers:
        if type(handler) is logging.StreamHandler:  # that of the line above, or one that a library has made before
            handler.setFormatter(FittedFormatter())
    logging.getLogger("metamask_jax").setLevel(logging.INFO)
    # Orbax and tfds warn of what is meant, and log with a traceback each what they raise anyway; asyncio does so for
    # every further file of a checkpoint that cannot be written.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    _silence_closed_loops()
    try:
        return command(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # at a moment when there is nothing to save
        code, message = 128 + signal.SIGINT, "stopped by SIGINT; what was saved before is as it was"
    except Exception as error:
        code, message = _judge(error)
    print(fitted(message, sys.stderr), file=sys.stderr, flush=True)
    if "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized():
        # An orderly exit would wait for the other processes, which wait for this one.
        os._exit(code)
    return code


def _silence_closed_loops() -> None:
    """Leaves out what tensorstore has to say of the further files of a checkpoint of which one could not be written.

    It tells an event loop that has ended with the first error, which is reported; each would be a traceback.
    """
    report = sys.unraisablehook
    if getattr(report, "leaves_out_closed_loops", False):
        return

    def hook(unraisable: Any) -> None:
        if not (isinstance(unraisable.exc_value, RuntimeError) and "loop is closed" in str(unraisable.exc_value)):
            report(unraisable)

    hook.leaves_out_closed_loops = True  # type: ignore[attr-defined]
    sys.unraisablehook = hook


def _judge(error: Exception) -> tuple[int, str]:
    """Exit code and message of an exception; one that nobody expected keeps its traceback."""
    if isinstance(error, ConfigError | DataError | CheckpointError):
        return 2, str(error)
    if isinstance(error, TrainingError):
        return 1, str(error)
    if isinstance(error, Interrupted):
        return error.exit_code, str(error)
    if isinstance(error, OSError) and error.errno in _DISK:
        return 1, f"{one_line(error)}; the same command goes on once that is mended"
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in one_line(error):
        return 1, (
            f"there is not enough memory ({one_line(error)}); expected more of it, or a smaller "
            "config.train.batch_size, config.encoder.width or config.eval.size"
        )
    if "jax" in sys.modules:
        jax = sys.modules["jax"]
        if isinstance(error, jax.errors.JaxRuntimeError) and jax.process_count() > 1:
            reason = str(error).strip().splitlines()[0][:200]
            return 1, (
                f"another process of this run has ended or cannot be reached ({reason}); "
                "start the same command again on all of them to resume from the last checkpoint"
            )
    return 1, "".join(traceback.format_exception(error))


def _hyphenated(text: str) -> str:
    if not text.startswith("--"):
        return text
    name, equals, value = text.partition("=")
    return name.replace("_", "-") + equals + value
