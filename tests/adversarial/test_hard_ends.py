"""What ends a command from outside, at a moment when there is nothing to save: one sentence, and no file."""

import errno
import os
import pathlib
import resource
import signal
import subprocess
import sys
import types

import jax
import pytest

from metamask_jax.cli.common import guarded

ROOT = pathlib.Path(__file__).parents[2]


def raising(error):
    def command(arguments):
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "stopped by SIGINT; what was saved before is as it was"),
        (MemoryError(), 1, "there is not enough memory (MemoryError); expected more of it, or a smaller config."),
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.\n\nand much more"),
            *(1, "there is not enough memory (RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes."),
        ),
        (OSError(errno.ENOSPC, "No space left on device", "x"), 1, "[Errno 28] No space left on device: 'x'; the same"),
        (OSError(errno.EROFS, "Read-only file system", "x"), 1, "[Errno 30] Read-only file system: 'x'; the same"),
    ],
    ids=["SIGINT", "memory", "JAX's memory", "full disk", "read-only disk"],
)
def test_what_nobody_can_help_is_one_sentence(error, code, message, capsys, cases):
    cases(1)
    assert guarded(raising(error), []) == code
    said = capsys.readouterr().err
    assert said.startswith(message)
    assert said.count("\n") == 1


def test_threads_that_come_too_late_with_their_errors_are_not_heard(capsys, monkeypatch):
    heard = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)
    guarded(lambda arguments: 0, [])
    guarded(lambda arguments: 0, [])
    late, other = (types.SimpleNamespace(exc_value=RuntimeError(text)) for text in ("Event loop is closed", "other"))
    sys.unraisablehook(late)
    sys.unraisablehook(other)
    assert heard == [other]


def test_a_mistake_of_ours_keeps_its_traceback(capsys):
    assert guarded(raising(FileNotFoundError(errno.ENOENT, "No such file", "x")), []) == 1
    assert "Traceback" in capsys.readouterr().err


def pretrain(tmp_path, *flags, first="", limit=None):
    """A process that pretrains a tiny network; `first` is what it does before, `limit` how much memory it may have."""
    config = tmp_path / "config.py"
    settings = {"data.dir": str(tmp_path / "data"), "data.options.train_size": "64", "data.options.test_size": "32"}
    text = f"from tests.tiny import tiny_config\n\ndef get_config():\n    return tiny_config({settings!r})\n"
    config.write_text(text)
    program = f"import os, signal, sys, threading\nfrom metamask_jax.cli import pretrain\n{first}\n"
    command = [sys.executable, "-c", f"{program}sys.exit(pretrain.main(sys.argv[1:]))", f"--config={config}"]
    ended = subprocess.run(
        [*command, f"--workdir={tmp_path / 'run'}", *flags],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        text=True,
        stderr=subprocess.PIPE,
        preexec_fn=limit and (lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))),
        check=False,
        timeout=300,
    )
    assert not (tmp_path / "run").exists()
    return ended.returncode, [line for line in ended.stderr.splitlines() if not line.startswith("preparing ")]


@pytest.mark.slow
def test_a_memory_limit_is_one_sentence(tmp_path, cases):
    cases(1)
    code, (message,) = pretrain(tmp_path, "--config.method.head=(16384, 16384)", limit=2 * 2**30)
    assert (code, message[:26]) == (1, "there is not enough memory")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.3, 1.0])
def test_an_interrupt_at_the_start_is_one_sentence(tmp_path, seconds, cases):
    cases(1)
    # A shell ignores SIGINT for what it runs in the background, and a child would inherit that from the test run.
    first = "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    first += f"threading.Timer({seconds}, os.kill, (os.getpid(), signal.SIGINT)).start()"
    code, said = pretrain(tmp_path, first=first)
    assert (code, said) == (128 + signal.SIGINT, ["stopped by SIGINT; what was saved before is as it was"])
