"""Real processes: killed at random moments, joined over loopback, started with bad input."""

import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from metamask_jax.cli.pretrain import main as pretrain_command
from metamask_jax.core.storage import read_json_lines
from tests.test_pretrain import final_state, trajectory
from tests.tiny import tiny_config

ROOT = pathlib.Path(__file__).parent.parent
OVERRIDES = {
    "train.steps": "40",
    # A ReLU has no derivative at zero. In 40 steps some unit of some picture comes as close to it as rounding goes, and
    # its share of one gradient, a thousandth, is then there or not, depending on the machine and the number of devices.
    "encoder.name": "smooth",
    "method.head": "(6,)",
    # Statistics of fewer images amplify rounding so much that machines differ in whether 40 steps agree to 1e-5.
    "train.batch_size": "128",
    "data.options.train_size": "256",
    "data.options.test_size": "32",
    "log.every_steps": "1",
    "log.tensorboard": "false",
    "checkpoint.every_steps": "2",
    "eval.every_epochs": "0",
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A folder with the config file, the data and the compiled programs that all the processes share."""
    folder = tmp_path_factory.mktemp("shared")
    overrides = OVERRIDES | {"data.dir": str(folder / "data")}
    (folder / "config.py").write_text(
        f"from tests.tiny import tiny_config\n\ndef get_config():\n    return tiny_config({overrides!r})\n"
    )
    return folder


def start(shared, workdir, *flags, devices=1):
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "JAX_COMPILATION_CACHE_DIR": str(shared / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": os.environ["XLA_FLAGS"].replace("device_count=4", f"device_count={devices}"),
    }
    return subprocess.Popen(
        [sys.executable, ROOT / "run_pretrain.py", f"--config={shared / 'config.py'}", f"--workdir={workdir}", *flags],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def run(shared, workdir, *flags, devices=1):
    process = start(shared, workdir, *flags, devices=devices)
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors


@pytest.fixture(scope="module")
def uninterrupted(shared):
    workdir = shared / "uninterrupted"
    code, errors = run(shared, workdir)
    assert code == 0, errors
    return workdir


def assert_same_run(workdir, uninterrupted):
    config = tiny_config(OVERRIDES)
    found, expected = final_state(workdir, config), final_state(uninterrupted, config)
    assert found.step == expected.step == 40
    jax.tree.map(np.testing.assert_array_equal, found.state, expected.state)
    assert trajectory(workdir) == trajectory(uninterrupted)


def lines(workdir):
    return len(read_json_lines(workdir / "metrics.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_ten_kills_leave_no_trace(shared, uninterrupted, tmp_path, number):
    """Each kill comes a random while after a step of its own tenth of the run, also in the middle of a save."""
    moments = random.Random(0)
    for kill in range(10):
        process = start(shared, tmp_path)
        goal = min(4 * kill + 2, 37)
        while lines(tmp_path) < goal and process.poll() is None:
            time.sleep(0.002)
        time.sleep(moments.uniform(0.0, 0.03))
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
        if process.returncode == 0:
            break  # it was done before the signal came
        assert process.returncode == (-9 if number == signal.SIGKILL else 143), errors
    assert kill >= 5
    code, errors = run(shared, tmp_path)
    assert code == 0, errors
    assert "resuming from the checkpoint" in errors
    assert_same_run(tmp_path, uninterrupted)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_pair(shared, workdir):
    coordinator = f"--coordinator=127.0.0.1:{free_port()}"
    return [start(shared, workdir, coordinator, "--processes=2", f"--process={i}", devices=2) for i in range(2)]


def assert_same_trajectory(workdir, uninterrupted, *, steps):
    """The losses of all steps to 1e-5; norms and extremes of small vectors, where rounding weighs more, to 1e-4."""
    found, expected = trajectory(workdir), trajectory(uninterrupted)
    assert [line["step"] for line in found] == [line["step"] for line in expected] == list(range(1, 41))
    for ours, theirs in zip(found[steps], expected[steps], strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            tolerance = 1e-5 if name.startswith("loss") else 1e-4
            assert ours[name] == pytest.approx(value, rel=tolerance), (ours["step"], name)


@pytest.mark.slow
def test_two_processes_follow_the_trajectory_of_one(shared, uninterrupted, tmp_path):
    processes = start_pair(shared, tmp_path)
    outputs = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "step 40/40" in outputs[0]
    assert "step 40/40" not in outputs[1]  # only the main process talks
    assert_same_trajectory(tmp_path, uninterrupted, steps=slice(None))


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_devices(shared, uninterrupted, tmp_path):
    """Two devices, then four, then one: the same trajectory as one device all the way."""
    for devices, goal in ((2, 10), (4, 25)):
        process = start(shared, tmp_path, devices=devices)
        while lines(tmp_path) < goal and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 143, errors
        assert f"on {devices} cpu device(s)" in errors
    code, errors = run(shared, tmp_path)
    assert code == 0, errors
    assert_same_trajectory(tmp_path, uninterrupted, steps=slice(None))


@pytest.mark.slow
def test_a_dead_process_ends_the_other_and_the_restart_resumes(shared, uninterrupted, tmp_path):
    main, other = start_pair(shared, tmp_path)
    while lines(tmp_path) < 10:
        assert main.poll() is None, main.communicate()[1]
        time.sleep(0.01)
    other.kill()
    other.communicate()
    _, errors = main.communicate(timeout=120)
    assert main.returncode == 1, errors
    assert "another process of this run" in errors
    assert "Traceback" not in errors

    processes = start_pair(shared, tmp_path)
    outputs = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "resuming from the checkpoint" in outputs[0]
    assert [line["step"] for line in trajectory(tmp_path)] == list(range(1, 41))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config.trian.steps=3"], "config.trian.steps is unknown; the nearest key is config.train.steps"),
        (["--config.train.steps=many"], "config.train.steps='many'; expected a value of type int"),
        (["--config.train.steps"], "--config.train.steps; expected --config.KEY=VALUE"),
        (["--config.data.name=nothing"], "nothing"),
        (["--wrkdir=x"], "unrecognized arguments: --wrkdir=x; see --help"),
        (["--processes=2"], "--coordinator, --processes and --process belong together"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(shared, tmp_path, capsys, flags, message):
    arguments = [f"--config={shared / 'config.py'}", f"--workdir={tmp_path / 'run'}", *flags]
    assert_refused(pretrain_command(arguments), capsys.readouterr().err, message, tmp_path / "run")


def test_the_script_itself_exits_with_2(shared, tmp_path):
    for flags, message in ((["--wrkdir=x"], "--wrkdir=x"), (["--config.data.name=nothing"], "nothing")):
        assert_refused(*run(shared, tmp_path / "run", *flags), message, tmp_path / "run")


def assert_refused(code, errors, message, workdir):
    assert code == 2, errors
    assert message in errors
    assert "Traceback" not in errors
    assert len(errors.strip().splitlines()) == 1, errors
    assert not workdir.exists()
