"""Several runs by one command: what is run, what is skipped, and what is refused before anything begins."""

import csv
import json
import signal

import pytest

from metamask_jax.cli import pretrain as command
from metamask_jax.cli.sweep import plan, read_sweeps, run_sweep
from metamask_jax.errors import ConfigError, Interrupted
from metamask_jax.evaluate import online
from tests.test_settings import compilations
from tests.tiny import tiny_config

SMALL = {"data.options.train_size": "64", "data.options.test_size": "32", "eval.every_epochs": "0"}


@pytest.fixture
def config(tmp_path):
    quick = {"train.steps": "2", "mask.learn": "false", "data.augmentation": "eval", "data.dir": str(tmp_path / "data")}
    return tiny_config(SMALL | quick)


def test_sweeps_are_all_combinations_seed_by_seed():
    found = read_sweeps(["loss.alpha=1,2", "method.head=(8,4),(8,)"], seeds=2, first_seed=3)
    assert len(found) == 8
    assert found[0] == {"train.seed": "3", "loss.alpha": "1", "method.head": "(8,4)"}
    assert [cell["train.seed"] for cell in found] == ["3"] * 4 + ["4"] * 4


@pytest.mark.parametrize(
    ("sweeps", "seeds", "message"),
    [
        (["loss.alpha"], None, r"--sweep loss.alpha; expected KEY=A,B,C"),
        (["loss.alpha=1,,2"], None, "expected KEY=A,B,C with different values"),
        (["loss.alpha=1,1"], None, "with different values"),
        (["loss.alpha=1", "loss.alpha=2"], None, "every key once, but it is there twice"),
        (["train.seed=1,2"], 3, "but --seeds has it"),
        (["loss.alpha=1,-2"], None, r"config\.loss\.alpha=-2"),
        (["loss.alpah=1"], None, r"loss\.alpha"),
        (["loss.alpha=1,1.0"], None, "are the same run"),
    ],
)
def test_what_cannot_be_run_is_one_sentence_before_anything_begins(config, tmp_path, sweeps, seeds, message):
    with pytest.raises(ConfigError, match=message):
        run_sweep(config, str(tmp_path / "runs"), sweeps, seeds=seeds)
    assert not (tmp_path / "runs").exists()


def test_folders_say_what_a_run_differs_in(config, tmp_path):
    cells = plan(config, read_sweeps(["method.head=(8,4)"], seeds=1, first_seed=0), tmp_path)
    assert [cell.workdir.name for cell in cells] == ["method.head=(8_4)+seed=0"]


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on_and_compiles_once(config, tmp_path, monkeypatch, capsys):
    pretrain, started = online.pretrain, []

    def interrupted(cell, workdir, **how):
        started.append(workdir.name)
        if len(started) == 2:
            raise Interrupted(signal.SIGTERM, 1)
        return pretrain(cell, workdir, **how)

    monkeypatch.setattr(online, "pretrain", interrupted)
    arguments = (config, str(tmp_path / "runs"), ["optimizer.learning_rate=0.1,0.2"])
    with pytest.raises(Interrupted):
        run_sweep(*arguments, seeds=2)
    with compilations() as compiled:
        assert run_sweep(*arguments, seeds=2) == 0
    names = [f"optimizer.learning_rate={rate}+seed={seed}" for seed in (0, 1) for rate in (0.1, 0.2)]
    assert started == [names[0], names[1], *names[1:]]
    assert compiled.count("jit(_fun)") == 1  # the step; the others are small
    rows = list(csv.DictReader((tmp_path / "runs" / "sweep.csv").open()))
    result = json.loads((tmp_path / "runs" / names[3] / "result.json").read_text())
    assert float(rows[3]["knn"]) == result["knn_accuracy"]
    assert float(rows[3]["knn_low"]) <= float(rows[3]["knn"]) <= float(rows[3]["knn_high"])
    assert len({row["loss"] for row in rows}) == 4
    assert "over 2 seeds" in capsys.readouterr().out

    other = config.copy_and_resolve_references()
    other.loss.alpha = 3.0
    with pytest.raises(ConfigError, match="was started with another configuration"):
        run_sweep(other, *arguments[1:], seeds=2)


def test_the_command_has_the_flags(capsys):
    assert command.main(["--sweep", "loss.alpha"]) == 2
    assert "expected KEY=A,B,C" in capsys.readouterr().err
    assert command.main(["--seeds", "0"]) == 2
    assert "--seeds 0; expected a whole number >= 1" in capsys.readouterr().err
