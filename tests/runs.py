"""Real processes that train a tiny network: alone, in pairs over loopback, on this machine or in a bucket."""

import os
import pathlib
import socket
import subprocess
import sys

from metamask_jax.core.storage import read_json_lines

ROOT = pathlib.Path(__file__).parent.parent


def write_config(folder, overrides):
    """Makes a folder one that processes share: a config file, and the place of data and compiled programs."""
    overrides = overrides | {"data.dir": str(folder / "data")}
    (folder / "config.py").write_text(
        f"from tests.tiny import tiny_config\n\ndef get_config():\n    return tiny_config({overrides!r})\n"
    )
    return folder


def start(shared, workdir, *flags, devices=1, host=(), environment=(), program=(ROOT / "run_pretrain.py",)):
    """A process of `run_pretrain.py`.

    Args:
      shared: a folder from `write_config`.
      workdir: of the run.
      flags: further ones.
      devices: how many it has.
      host: the beginning of a command line that runs the rest elsewhere.
      environment: further variables.
      program: what Python runs instead.
    """
    variables = os.environ | {
        "PYTHONPATH": str(ROOT),
        "JAX_COMPILATION_CACHE_DIR": str(shared / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("device_count=4", f"device_count={devices}"),
    }
    command = [sys.executable, *program, f"--config={shared / 'config.py'}", f"--workdir={workdir}"]
    return subprocess.Popen(
        [*host, *command, *flags],
        env=variables | dict(environment),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=shared,
    )


def run(shared, workdir, *flags, devices=1, environment=()):
    """Exit code and what was said of a process that is waited for."""
    process = start(shared, workdir, *flags, devices=devices, environment=environment)
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_pair(shared, workdir, *flags, **how):
    """Two processes with two devices each; `flags` has those of the first and those of the second, if any."""
    coordinator = f"--coordinator=127.0.0.1:{free_port()}"
    return [
        start(shared, workdir, coordinator, "--processes=2", f"--process={i}", *more, devices=2, **how)
        for i, more in enumerate(flags or ((), ()))
    ]


def ended(started, timeout=300):
    """What processes have said, when all have ended well."""
    processes = list(started)
    outputs = [process.communicate(timeout=timeout)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    return outputs


def lines(workdir):
    """How many steps a run has logged."""
    return len(read_json_lines(workdir / "metrics.jsonl"))


def assert_refused(code, errors, message, workdir):
    """What is asked of a process that cannot use its input: one sentence, exit code 2, nothing written."""
    assert code == 2, errors
    assert message in errors
    assert "Traceback" not in errors
    assert len(errors.strip().splitlines()) == 1, errors
    assert not workdir.exists()
