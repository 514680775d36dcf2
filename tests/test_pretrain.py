"""Whole runs: what they leave behind, and that an interruption leaves no trace in it."""

import json
import os
import signal

import jax
import numpy as np
import pytest

from metamask_jax import train, train_step
from metamask_jax.checkpoint import Checkpoints
from metamask_jax.config import ConfigError
from metamask_jax.quickstart import run_quickstart
from metamask_jax.train import Interrupted, TrainingError, pretrain
from metamask_jax.train_step import init_state
from metamask_jax.watch import read_json_lines
from tests.tiny import tiny_config

SHAPES = {"data.options.train_size": "64", "data.options.test_size": "32"}
OFTEN = {"log.every_steps": "1", "checkpoint.every_steps": "3", "eval.every_epochs": "2"}


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def config_for(data_dir, **overrides):
    dotted = {key.replace("__", "."): str(value) for key, value in overrides.items()}
    return tiny_config(SHAPES | OFTEN | {"data.dir": str(data_dir)} | dotted)


def final_state(workdir, config):
    checkpoints = Checkpoints(workdir / "checkpoints", keep_last=9, keep_every=None, keep_best=False)
    return checkpoints.restore_latest(init_state(config))


def trajectory(workdir):
    """Everything logged but the clock."""
    return [
        {key: value for key, value in line.items() if key != "images_per_second"}
        for line in read_json_lines(workdir / "metrics.jsonl")
    ]


@pytest.fixture(scope="session")
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
        *("config.json", "checkpoints", "metrics.jsonl", "masks.jsonl", "tensorboard"),
        *("result.json", "report.npz", "report.html"),
    }
    assert json.loads((workdir / "result.json").read_text()) == result
    assert result["steps"] == 12
    assert 0.0 <= result["knn_accuracy"] <= 1.0
    lines = trajectory(workdir)
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert [line["step"] for line in lines if "knn_accuracy" in line] == [8, 12]  # two epochs of four, and the end
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
        def log(self, step, metrics):
            super().log(step, metrics)
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
    config = config_for(data_dir, train__steps=3, data__size=32, meta__every=2)
    assert pretrain(config, tmp_path)["steps"] == 3
    # Where there was no meta step, there is nothing of it in the log.
    assert [line["step"] for line in trajectory(tmp_path) if "loss_outer" in line] == [1, 3]


def test_another_configuration_is_refused_with_its_differences(finished):
    workdir, _, _ = finished
    other = tiny_config(SHAPES | OFTEN | {"train.seed": "1", "log.every_steps": "5"})
    with pytest.raises(ConfigError, match=r"another configuration \(train\.seed: 0 -> 1\); expected the same one"):
        pretrain(other, workdir)


def test_a_batch_the_devices_cannot_share_is_refused(data_dir, tmp_path):
    with pytest.raises(ConfigError, match=r"batch_size=18; expected a multiple of 4, the number of devices"):
        pretrain(config_for(data_dir, train__batch_size=18), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_workdir_that_is_a_file_is_refused(data_dir, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="expected a folder that can be written"):
        pretrain(config_for(data_dir), tmp_path / "file" / "run")


def test_endless_nan_stops_with_advice(data_dir, tmp_path, monkeypatch):
    augment = train_step.make_augmentation
    monkeypatch.setattr(
        train_step,
        "make_augmentation",
        lambda *args, **kwargs: lambda images, keys: augment(*args, **kwargs)(images, keys) * float("nan"),
    )
    config = config_for(data_dir, guard__max_skipped=3)
    with pytest.raises(TrainingError, match=r"3 steps in a row were not finite.*try a smaller"):
        pretrain(config, tmp_path)
    assert [line["skipped"] for line in trajectory(tmp_path)] == [1, 2, 3]


def test_the_quickstart_compares_four_rows_and_puts_them_into_the_report(data_dir, tmp_path, capsys):
    rows = run_quickstart(config_for(data_dir, train__steps=2, eval__every_epochs=0), tmp_path)
    assert [row["name"] for row in rows] == [
        *("raw pixels, half size", "untrained encoder", "SimCLR + BT, mask fixed", "MetaMask")
    ]
    assert all(0.0 <= row[kind] <= 1.0 for row in rows for kind in ("knn", "linear"))
    printed = capsys.readouterr().out
    assert "MetaMask" in printed
    assert str(tmp_path / "metamask" / "report.html") in printed
    assert "untrained encoder" in (tmp_path / "metamask" / "report.html").read_text()
