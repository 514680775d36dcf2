"""What is watched of a run, beside the files that tests/test_pretrain.py looks at."""

import logging
import sys
from types import SimpleNamespace

import pytest

from metamask_jax.config import apply_overrides, default_config
from metamask_jax.core.storage import read_json_lines
from metamask_jax.errors import ConfigError
from metamask_jax.evaluate.online import pretrain
from metamask_jax.training.logging import Watch
from metamask_jax.training.monitor import rounding_warning


def test_wandb_that_is_not_installed_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    config = apply_overrides(default_config(), {"log.wandb_project": "masks"})
    with pytest.raises(ConfigError, match=r"wandb_project='masks', but wandb is not installed"):
        pretrain(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_goes_on_in_the_same_wandb_run(tmp_path, monkeypatch):
    calls = []

    class Run:
        def log(self, values, step):
            calls.append((step, values["loss"]))

        def finish(self, exit_code):
            calls.append(exit_code)

    def init(**settings):
        calls.append((settings["id"], settings["resume"]))
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    config = apply_overrides(default_config(), {"log.wandb_project": "masks", "log.tensorboard": "False"})
    for step in (1, 2):
        with Watch(config, tmp_path, start_step=step - 1, total_steps=2) as watch:
            watch.log(step, {"loss": 0.5})
    (first, *_), (second, *_) = calls[0], calls[3]
    assert first == second
    assert calls == [(first, "allow"), (1, 0.5), 0, (first, "allow"), (2, 0.5), 0]


def test_no_bar_is_drawn_while_the_step_is_compiled(tmp_path, monkeypatch, capsys):
    """XLA writes to the same terminal then, and would tear it."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    config = apply_overrides(default_config(), {"log.tensorboard": "False"})
    with Watch(config, tmp_path, start_step=0, total_steps=3) as watch:
        watch.say("begins")
        assert "0/3" not in capsys.readouterr().err
        watch.start_clock(1)
        watch.log(2, {"loss": 0.5})
    assert "2/3" in capsys.readouterr().err


def test_tensorboard_does_not_delay_the_first_step(tmp_path):
    with Watch(default_config(), tmp_path, start_step=0, total_steps=2) as watch:
        assert not (tmp_path / "tensorboard").exists()
        watch.log(1, {"loss": 1.0})
        assert (tmp_path / "tensorboard").exists()


def test_rates_and_the_time_left_are_those_of_training_alone(tmp_path, monkeypatch, caplog):
    """Nine minutes of compiling, two steps per second, then five minutes of evaluation."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    config = apply_overrides(default_config(), {"log.tensorboard": "False", "train.batch_size": "32"})
    with (
        caplog.at_level(logging.INFO, "metamask_jax"),
        Watch(config, tmp_path, start_step=0, total_steps=100) as watch,
    ):
        now[0] = 540.0
        watch.start_clock(1)
        watch.log(1, {"loss": 1.0})
        now[0] = 545.0
        watch.log(11, {"loss": 1.0})
        now[0] = 850.0
        watch.log(21, {"loss": 1.0}, done=550.0)
        watch.start_clock(21)
        now[0] = 855.0
        watch.log(31, {"loss": 1.0})
    rates = [line.get("images_per_second") for line in read_json_lines(tmp_path / "metrics.jsonl")]
    assert rates == [None, 64.0, 64.0, 64.0]
    assert [message.endswith("left") for message in caplog.messages] == [False, True, True, True]
    assert caplog.messages[1].endswith("64 img/s  500 ms/step  0:44 left")


@pytest.mark.parametrize(
    ("platform", "settings", "culprit"),
    [
        ("cpu", {"train.dtype": "bfloat16"}, "config.train.dtype='bfloat16'"),
        ("tpu", {}, "config.train.precision='default' on a TPU"),
        ("tpu", {"train.precision": "highest"}, None),
        ("cpu", {}, None),
        ("tpu", {"mask.learn": "False"}, None),
        ("tpu", {"meta.estimator": "exact", "train.dtype": "bfloat16"}, None),
    ],
)
def test_differences_that_rounding_drowns_are_warned_of(platform, settings, culprit):
    config = apply_overrides(default_config(), {"meta.estimator": "finite_difference"} | settings)
    warning = rounding_warning(config, platform)
    assert warning is None if culprit is None else culprit in warning
