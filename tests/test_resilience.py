"""Real processes: killed at random moments, joined over loopback, started with bad input."""

import random
import re
import shutil
import signal
import time

import jax
import numpy as np
import pytest

from metamask_jax.cli.pretrain import main as pretrain_command
from metamask_jax.training import processes
from tests.runs import assert_refused, ended, free_port, lines, run, start, start_pair, write_config
from tests.short_runs import final_state, trajectory
from tests.tiny import tiny_config

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


JOINED = ("--coordinator=127.0.0.1:1",)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("shared"), OVERRIDES)


@pytest.fixture(autouse=True)
def usual_signals():
    """A shell ignores SIGINT for what it runs in the background, and a child would inherit that from the test run."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_ten_kills_leave_no_trace(shared, uninterrupted, tmp_path, number):
    """Each kill comes a random while after a step of its own tenth of the run, also in the middle of a save."""
    moments = random.Random(0)
    for kill in range(10):
        begun, process = lines(tmp_path), start(shared, tmp_path)
        # At least one step of its own: before that, it may not have come to where it handles signals.
        goal = max(min(4 * kill + 2, 37), begun + 1)
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


@pytest.mark.slow
def test_two_processes_begin_with_the_given_weights(shared, uninterrupted, tmp_path):
    """With a learning rate of zero they still have them after a step."""
    flags = [f"--config.init.from={uninterrupted}", "--config.init.parts=all", "--config.train.steps=1"]
    flags += ["--config.optimizer.learning_rate=0.0", "--config.mask.learning_rate=0.0"]
    processes = start_pair(shared, tmp_path, flags, flags)
    outputs = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "begins with all weights of" in outputs[0]
    config = tiny_config(OVERRIDES)
    found, given = final_state(tmp_path, config).state, final_state(uninterrupted, config).state
    assert found.step == 1
    jax.tree.map(np.testing.assert_array_equal, (found.params, found.mask), (given.params, given.mask))


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
    logs = [(tmp_path / "logs" / f"process_{index:04d}.log").read_text() for index in range(2)]
    assert all("step 40/40" in text and text.endswith("training has ended\n") for text in logs)
    assert re.search(r"process 1 of 2 on .*: 2 of 4 devices, cpu", logs[1])
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
        ([*JOINED, "--processes=2", "--process=5"], "--process 5; expected 0 to 1, since --processes is 2"),
        (
            [*JOINED, "--processes=2", "--process=1", "--distributed=off"],
            "expected none of them with --distributed off",
        ),
        (["--coordinator=here", "--processes=2", "--process=1"], "--coordinator here; expected HOST:PORT"),
        (["--distributed=on"], "--distributed on, but no launcher of several processes was found"),
        (["--distributed=perhaps"], "perhaps"),
        (["--join-timeout=0"], "0; expected a whole number >= 1"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(shared, tmp_path, capsys, flags, message):
    arguments = [f"--config={shared / 'config.py'}", f"--workdir={tmp_path / 'run'}", *flags]
    assert_refused(pretrain_command(arguments), capsys.readouterr().err, message, tmp_path / "run")


def test_the_script_itself_exits_with_2(shared, tmp_path):
    for flags, message in ((["--wrkdir=x"], "--wrkdir=x"), (["--config.data.name=nothing"], "nothing")):
        assert_refused(*run(shared, tmp_path / "run", *flags), message, tmp_path / "run")


@pytest.mark.parametrize("index", [0, 1], ids=["a worker", "the coordinator"])
def test_whoever_does_not_come_is_waited_for_no_longer_than_asked(shared, tmp_path, index):
    joined = (f"--coordinator=127.0.0.1:{free_port()}", "--processes=2", f"--process={index}", "--join-timeout=2")
    code, errors = run(shared, tmp_path / "run", *joined)
    message = "the 2 processes of this run did not all meet at 127.0.0.1:"
    assert_refused(code, errors, message, tmp_path / "run")


def test_tasks_that_slurm_allows_but_has_not_started_are_not_waited_for(monkeypatch):
    """As in a script under sbatch or salloc that does not use srun."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_LOCALID", "0")
    assert processes._launched_processes() == 1
    monkeypatch.setenv("SLURM_STEP_NODELIST", "node[001-004]")
    assert processes._launched_processes() == 4


@pytest.mark.slow
def test_a_workdir_that_refuses_ends_all_processes_with_the_reason(shared, uninterrupted, tmp_path):
    shutil.copytree(uninterrupted, tmp_path, dirs_exist_ok=True)
    changed = ["--config.train.seed=1"]
    for process in start_pair(shared, tmp_path, changed, changed):
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 2, errors
        assert "train.seed: 0 -> 1" in errors
        assert "Traceback" not in errors
        assert len(errors.strip().splitlines()) == 1, errors


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_one_process_saves_and_ends_both_after_the_same_step(shared, tmp_path, number):
    endless = ["--config.train.steps=100000", "--config.checkpoint.every_steps=100000"]
    main, other = start_pair(shared, tmp_path, endless, endless)
    while lines(tmp_path) < 10:
        assert main.poll() is None, main.communicate()[1]
        time.sleep(0.01)
    other.send_signal(number)
    outputs = [process.communicate(timeout=120)[1] for process in (main, other)]
    assert (main.returncode, other.returncode) == (143, 128 + number), outputs
    steps = {re.search(r"after step (\d+); the state is saved", text)[1] for text in outputs}
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == list(steps)


@pytest.mark.slow
def test_every_process_finds_the_step_it_has_compiled_before(shared, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_DEBUG_LOG_MODULES", "jax._src.compiler")
    short = ["--config.train.steps=2"]
    for name in ("first", "second"):
        pair = start_pair(shared, tmp_path / name, short, short)
        outputs = [process.communicate(timeout=300)[1] for process in pair]
        assert [process.returncode for process in pair] == [0, 0], outputs
    assert all("Persistent compilation cache hit for 'jit__fun'" in text for text in outputs)


SLOW_COMPILER = """
import os, sys, time
import jax
compile = jax.stages.Lowered.compile
def compile_slowly(self, *args, **kwargs):
    time.sleep(35.0)
    return compile(self, *args, **kwargs)
if "--process=1" in sys.argv:
    jax.stages.Lowered.compile = compile_slowly
from metamask_jax.cli.pretrain import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_process_that_compiles_for_long_is_waited_for(shared, tmp_path):
    """For longer than the 30 s that a collective operation of CPUs has."""
    short = ["--config.train.steps=2"]
    ended(start_pair(shared, tmp_path, short, short, program=("-c", SLOW_COMPILER)))
    assert lines(tmp_path) == 2
    said = [(tmp_path / "logs" / f"process_{index:04d}.log").read_text() for index in range(2)]
    for text in said:
        assert float(re.search(r"first step done ([\d.]+) s after the start", text)[1]) > 30


@pytest.mark.slow
def test_two_runs_in_one_workdir_do_not_meet(shared, tmp_path):
    first = start(shared, tmp_path, "--config.train.steps=100000")
    while lines(tmp_path) < 3:
        assert first.poll() is None, first.communicate()[1]
        time.sleep(0.01)
    code, errors = run(shared, tmp_path, "--config.train.steps=100000")
    first.send_signal(signal.SIGHUP)
    _, said = first.communicate(timeout=120)
    assert code == 2, errors
    assert f"is in use by process {first.pid} on " in errors
    assert len(errors.strip().splitlines()) == 1, errors
    assert first.returncode == 129, said
    assert "stopped by SIGHUP" in said
