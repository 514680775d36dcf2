"""Whole runs: what they leave behind, and that an interruption leaves no trace in it."""

import json
import os
import resource
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metamask_jax.cli.quickstart import run_quickstart
from metamask_jax.core.storage import read_json_lines
from metamask_jax.errors import CheckpointError, ConfigError, Interrupted, TrainingError
from metamask_jax.evaluate.evaluation import evaluate_run
from metamask_jax.evaluate.online import OnlineEvaluator, pretrain
from metamask_jax.training import loop as train
from metamask_jax.training import sampling
from metamask_jax.training.checkpoint import Checkpoints
from metamask_jax.training.optimizers import SCHEDULES
from metamask_jax.training.settings import Programs
from metamask_jax.training.state import init_state
from tests.short_runs import OFTEN, QUICK, SHAPES, config_for, final_state, trajectory
from tests.tiny import tiny_config


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module", autouse=True)
def _programs_that_runs_share():
    """A run that goes on finds the program it was stopped in: to compile it again is a new process's business."""
    shared = Programs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "Programs", lambda: shared)
        yield


@pytest.fixture
def _own_programs(monkeypatch):
    """For a run whose step is not what its configuration says."""
    monkeypatch.setattr(train, "Programs", Programs)


@pytest.fixture(scope="module")
def finished(data_dir, tmp_path_factory):
    """An uninterrupted run of 12 steps."""
    workdir = tmp_path_factory.mktemp("run")
    config = config_for(data_dir)
    result = pretrain(config, workdir)
    return workdir, config, result


def test_leaves_everything_in_the_workdir(finished):
    workdir, _, result = finished
    names = {path.name for path in workdir.iterdir() if not path.name.startswith(".")}
    assert names == {
        *("config.json", "checkpoints", "metrics.jsonl", "masks.jsonl", "tensorboard", "logs"),
        *("result.json", "report.npz", "report.html"),
    }
    assert json.loads((workdir / "result.json").read_text()) == result
    assert result["steps"] == 12
    assert 0.0 <= result["knn_accuracy"] <= 1.0
    lines = trajectory(workdir)
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert [line["step"] for line in lines if "knn_accuracy" in line] == [8, 12]  # two epochs of four, and the end
    # The first step compiles: a rate that counted it would be wrong for a long time.
    timed = ["images_per_second" in line for line in read_json_lines(workdir / "metrics.jsonl")]
    assert timed == [False] + 11 * [True]
    assert "<html" in (workdir / "report.html").read_text()
    assert os.listdir(workdir / "tensorboard")


def test_a_finished_run_started_again_only_reports(finished):
    workdir, config, result = finished
    before = (workdir / "metrics.jsonl").read_text()
    again = pretrain(config, workdir)
    assert {**again, "seconds": 0} == {**result, "seconds": 0}
    assert (workdir / "metrics.jsonl").read_text() == before


def test_interrupted_and_resumed_is_bit_identical(finished, tmp_path, monkeypatch):
    """SIGTERM to ourselves in the middle; the same call goes on and ends with the same bits."""
    workdir, config, _ = finished

    class Impatient(train.Watch):
        def log(self, step, metrics, **when):
            super().log(step, metrics, **when)
            if step == 5:
                os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(train, "Watch", Impatient)
        with pytest.raises(Interrupted, match=r"stopped by SIGTERM after step \d+; the state is saved") as stop:
            pretrain(config, tmp_path)
    assert stop.value.exit_code == 143
    assert not (tmp_path / "result.json").exists()
    pretrain(config, tmp_path)
    found, expected = final_state(tmp_path, config), final_state(workdir, config)
    assert found.step == expected.step == 12
    jax.tree.map(np.testing.assert_array_equal, found.state, expected.state)
    assert trajectory(tmp_path) == trajectory(workdir)


def test_steps_and_size_limit_the_run(data_dir, tmp_path):
    config = config_for(data_dir, train__steps=3, data__size=32, meta__every=2, **QUICK)
    assert pretrain(config, tmp_path)["steps"] == 3
    # Where there was no meta step, there is nothing of it in the log.
    assert [line["step"] for line in trajectory(tmp_path) if "loss_outer" in line] == [1, 3]


def test_another_configuration_is_refused_with_its_differences(finished):
    workdir, _, _ = finished
    other = tiny_config(SHAPES | OFTEN | {"train.seed": "1", "log.every_steps": "5"})
    with pytest.raises(ConfigError, match=r"another configuration \(train\.seed: 0 -> 1\); expected the same one"):
        pretrain(other, workdir)


def test_a_full_disk_leaves_the_last_good_checkpoint(finished, tmp_path, monkeypatch):
    """From step 7 on no file may grow beyond a few bytes; with room again, the run ends as if nothing had been."""
    workdir, config, _ = finished
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Full(train.Watch):
        def log(self, step, metrics, **when):
            super().log(step, metrics, **when)
            if step == 7:
                resource.setrlimit(resource.RLIMIT_FSIZE, (64, limit[1]))

    with monkeypatch.context() as patch:
        patch.setattr(train, "Watch", Full)
        try:
            with pytest.raises(TrainingError, match=r"cannot go on \(.*the newest whole checkpoint is of step [36]"):
                pretrain(config, tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert final_state(tmp_path, config).step in (3, 6)
    pretrain(config, tmp_path)
    jax.tree.map(np.testing.assert_array_equal, final_state(tmp_path, config).state, final_state(workdir, config).state)
    assert trajectory(tmp_path) == trajectory(workdir)


def test_a_damaged_newest_checkpoint_costs_a_few_steps_and_nothing_else(finished, tmp_path, caplog):
    workdir, config, _ = finished
    shutil.copytree(workdir, tmp_path, dirs_exist_ok=True)
    for path in (tmp_path / "checkpoints" / "12").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    pretrain(config, tmp_path)
    assert "checkpoint 12" in caplog.text
    assert "set aside" in caplog.text
    jax.tree.map(np.testing.assert_array_equal, final_state(tmp_path, config).state, final_state(workdir, config).state)
    assert trajectory(tmp_path) == trajectory(workdir)


def damage_all(workdir):
    for path in (workdir / "checkpoints").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_without_a_whole_checkpoint_nothing_happens_until_restart(finished, tmp_path):
    workdir, config, _ = finished
    shutil.copytree(workdir, tmp_path, dirs_exist_ok=True)
    damage_all(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"none of the checkpoints \[.*\] can be read; expected .*--restart"):
            pretrain(config, tmp_path)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    pretrain(config, tmp_path, restart=True)
    assert trajectory(tmp_path) == trajectory(tmp_path / "previous-1") == trajectory(workdir)
    for name in ("masks.jsonl", "config.json", "result.json", "report.html"):
        assert (tmp_path / "previous-1" / name).read_bytes() == (workdir / name).read_bytes()
    assert (tmp_path / "previous-1" / "checkpoints" / "12").is_dir()


@pytest.mark.parametrize("left", ["nothing", "4.damaged"])
def test_a_log_whose_checkpoints_are_gone_is_not_emptied(finished, tmp_path, left):
    workdir, config, _ = finished
    shutil.copytree(workdir, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("checkpoints"))
    (tmp_path / "checkpoints" / left).mkdir(parents=True)
    message = (
        "metrics up to step 12, no checkpoint" if left == "nothing" else r"only damaged checkpoints \(4\.damaged\)"
    )
    with pytest.raises(CheckpointError, match=message + r".*--restart"):
        pretrain(config, tmp_path)
    assert trajectory(tmp_path) == trajectory(workdir)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"train": {"steps"', b"\xff\xfe"])
def test_a_config_json_that_cannot_be_read_is_one_sentence(finished, tmp_path, content):
    _, config, _ = finished
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.json cannot be used, ") as refusal:
        pretrain(config, tmp_path)
    assert "\n" not in str(refusal.value)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_an_error_in_an_evaluation_costs_nothing(finished, tmp_path, monkeypatch):
    """The evaluation after step 8 fails; the step is saved, and the same command evaluates it and goes on."""
    workdir, config, _ = finished

    def fail(self, state):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(OnlineEvaluator, "__call__", fail)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="out of memory"):
                pretrain(config, tmp_path)
            assert final_state(tmp_path, config).step == 8
    pretrain(config, tmp_path)
    assert trajectory(tmp_path) == trajectory(workdir)
    jax.tree.map(np.testing.assert_array_equal, final_state(tmp_path, config).state, final_state(workdir, config).state)


def test_one_nan_is_skipped_and_counted_and_training_goes_on(data_dir, tmp_path, monkeypatch):
    # Four steps an epoch: the seventh step begins at 1.5.
    monkeypatch.setitem(SCHEDULES, "spike", lambda progress, epochs: jnp.where(progress == 1.5, jnp.nan, 1.0))
    often = {"checkpoint__every_steps": 1, "checkpoint__keep_last": 12}
    config = config_for(data_dir, optimizer__schedule="spike", **often, **QUICK)
    assert pretrain(config, tmp_path)["skipped"] == 1
    lines = trajectory(tmp_path)
    assert [line["skipped"] for line in lines] == [0] * 6 + [1] * 6
    assert lines[6]["learning_rate"] is None
    assert all(np.isfinite(line["loss"]) for line in lines[7:])
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep_last=12, keep_every=None, keep_best=False)
    before, after, later = (checkpoints.restore(init_state(config), step=step).state for step in (6, 7, 8))
    for field in ("params", "batch_stats", "mask", "opt_state", "mask_opt_state", "method_state"):
        jax.tree.map(np.testing.assert_array_equal, getattr(after, field), getattr(before, field))
    assert not np.array_equal(later.mask, after.mask)


@pytest.mark.usefixtures("_own_programs")
def test_endless_nan_stops_with_advice(data_dir, tmp_path, monkeypatch):
    augment = sampling.make_augmentation
    monkeypatch.setattr(
        sampling,
        "make_augmentation",
        lambda *args, **kwargs: lambda images, keys: augment(*args, **kwargs)(images, keys) * float("nan"),
    )
    config = config_for(data_dir, guard__max_skipped=3, **QUICK)
    with pytest.raises(TrainingError, match=r"3 steps in a row were not finite.*try a smaller"):
        pretrain(config, tmp_path)
    assert [line["skipped"] for line in trajectory(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize("outer", ["labels", "batch"])
def test_the_quickstart_compares_five_rows_and_puts_them_into_the_report(outer, data_dir, tmp_path, capsys):
    judge = {"meta__outer": outer, "meta__labels": "20", "meta__scope": "head", "mask__learning_rate": "100"}
    rows = run_quickstart(config_for(data_dir, train__steps=2, eval__every_epochs=0, **judge, **QUICK), tmp_path)
    assert [row["name"] for row in rows] == [
        *("raw pixels, half size", "untrained encoder", "SimCLR + BT, mask fixed"),
        *("MetaMask, features h", "MetaMask, masked h*m"),
    ]
    assert all(0.0 <= row[kind] <= 1.0 for row in rows for kind in ("knn", "linear"))
    found = evaluate_run(tmp_path / "metamask", protocols=["knn_official"])
    assert [entry["features"] for entry in found] == ["h", "h*m"]
    assert [entry["top1"] for entry in found] == pytest.approx([row["knn"] for row in rows[-2:]])
    printed = capsys.readouterr().out
    assert printed.startswith("Quickstart: ")
    assert "minutes" in printed.splitlines()[0]
    said = printed.replace("\n", " ")
    assert f"nearest neighbours tell the class of {rows[-1]['knn']:.1%} of the test pictures" in said
    assert f"changed the neighbours by {100 * (rows[-1]['knn'] - rows[-2]['knn']):+.1f} points" in said
    assert ("judged by the labels of a few pictures" in said) == (outer == "labels")
    assert all(
        words in printed for words in ("image_folder:PATH,SIZE", "examples/own_model", "run_linear.py --workdir")
    )
    assert str(tmp_path / "metamask" / "report.html") in printed
    assert "untrained encoder" in (tmp_path / "metamask" / "report.html").read_text()
