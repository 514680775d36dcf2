"""What is watched of a run, beside the files that tests/test_pretrain.py looks at."""

import contextlib
import logging
import re
import sys
from types import SimpleNamespace

import jax
import pytest

from metamask_jax.config import apply_overrides, default_config
from metamask_jax.core.storage import read_json_lines
from metamask_jax.errors import ConfigError, TrainingError
from metamask_jax.evaluate.online import pretrain
from metamask_jax.training import roofline
from metamask_jax.training.logging import Silence, Watch
from metamask_jax.training.loop import _peak, train
from metamask_jax.training.monitor import rounding_warning
from tests.tiny import tiny_config


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
    seconds = [line.get("step_seconds") for line in read_json_lines(tmp_path / "metrics.jsonl")]
    assert seconds == [None, 0.5, 0.5, 0.5]
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


def test_how_much_of_a_chip_is_used_is_logged_where_the_chip_is_known(tmp_path, monkeypatch, caplog):
    """The CPUs of a tiny run pass for TPUs of little power."""
    chip = roofline.CHIPS["v5e"]._replace(flops=1e6)
    monkeypatch.setattr(roofline, "CHIPS", {"v5e": chip})
    monkeypatch.setitem(roofline.KINDS, jax.local_devices()[0].device_kind, "v5e")
    sizes = {"data.options.train_size": "64", "data.options.test_size": "32", "data.dir": str(tmp_path / "data")}
    config = tiny_config({"train.steps": "3", "log.every_steps": "1", "eval.every_epochs": "0"} | sizes)
    caplog.set_level(logging.INFO, logger="metamask_jax")
    train(config, tmp_path / "run")
    timed = [line for line in read_json_lines(tmp_path / "run" / "metrics.jsonl") if "step_seconds" in line]
    flops = [line["mfu"] * line["step_seconds"] * chip.flops for line in timed]
    assert flops == pytest.approx([flops[0]] * 2, rel=0.01)
    assert flops[0] > 1000
    assert re.search(r"MFU [\d.]+%", caplog.text)


def test_what_is_computed_twice_or_not_counted_is_no_mfu(monkeypatch):
    compiled = SimpleNamespace(cost_analysis=lambda: {"flops": 197e12})
    assert _peak(tiny_config(), compiled) is None  # of a CPU nothing is known
    monkeypatch.setitem(roofline.KINDS, jax.local_devices()[0].device_kind, "v5e")
    for settings, name in (
        ({}, "mfu"),
        ({"train.remat": "True"}, "hfu"),
        ({"meta.estimator": "exact_recomputed"}, "hfu"),
        ({"meta.estimator": "exact_recomputed", "mask.learn": "False"}, "mfu"),
    ):
        assert _peak(tiny_config(settings), compiled) == (name, 1.0)
    assert _peak(tiny_config({"train.accumulate": "2"}), compiled) is None
    assert _peak(tiny_config(), SimpleNamespace(cost_analysis=lambda: None)) is None


def test_a_chip_has_the_name_that_its_compiler_gives_it():
    assert set(roofline.KINDS.values()) <= set(roofline.CHIPS)
    assert roofline.peak("TPU v4", flops=275e12) == ("mfu", 1.0)
    assert roofline.peak("TPU v5 lite", flops=197e12, recomputes=True) == ("hfu", 1.0)
    assert roofline.peak("TPU v5 lite", flops=0.0) is None  # a compiler that does not count
    assert roofline.peak("NVIDIA GeForce", flops=1.0) is None


def test_a_process_keeps_a_log_of_its_own_and_goes_on_with_it(tmp_path, monkeypatch):
    for step in (1, 2):
        with (
            pytest.raises(TrainingError) if step == 2 else contextlib.nullcontext(),
            Silence(default_config(), tmp_path, start_step=step - 1, total_steps=2) as watch,
        ):
            watch.start_clock(step - 1)
            watch.log(step, {"loss": 1.0})
            watch.say("said to nobody")
            logging.getLogger("metamask_jax.somebody").warning("beware")
            if step == 2:
                raise TrainingError("too bad")
    lines = (tmp_path / "logs" / "process_0000.log").read_text().splitlines()
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in lines)
    texts = [line.split(" ", 1)[1] for line in lines]
    assert texts[0].startswith("process 0 of 1 on ")
    assert [text.split("  ")[0] for text in texts[1:5]] == [
        "step 1/2",
        "said to nobody",
        "beware",
        "training has ended",
    ]
    assert texts[-1] == "ended by TrainingError: too bad"
    assert "ms/step" in texts[1]


def test_a_log_that_cannot_be_written_says_nothing(tmp_path, capsys):
    with Silence(default_config(), tmp_path, start_step=0, total_steps=2) as watch:
        watch._host_log._file.setStream(open("/dev/full", "w"))  # noqa: SIM115
        watch.say("lost")
    assert capsys.readouterr().err == ""
