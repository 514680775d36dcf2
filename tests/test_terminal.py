"""What is read in a terminal: lines that fit, and commands that run as they are printed."""

import importlib.util
import io
import logging
import pathlib
import shlex
import subprocess
import sys

import pytest

from metamask_jax.cli import pretrain, quickstart, terminal
from metamask_jax.config import apply_overrides, default_config
from metamask_jax.training.logging import Watch

ROOT = pathlib.Path(__file__).parent.parent
SENTENCE = "a sentence of many words that goes on for longer than the sixty columns of a narrow window"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_break_between_words_in_a_terminal_and_nowhere_else(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    shown = terminal.fitted(f"{SENTENCE}\n  {SENTENCE}", Terminal())
    assert shown.split() == f"{SENTENCE} {SENTENCE}".split()
    assert max(map(len, shown.splitlines())) <= 60
    assert [line.startswith("  ") for line in shown.splitlines()] == [False, False, True, True]
    assert terminal.fitted(SENTENCE, io.StringIO()) == SENTENCE
    assert terminal.fitted("x" * 100, Terminal()) == "x" * 100  # a path can still be copied


def test_what_is_wrong_is_told_in_lines_that_break_between_words(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert pretrain.main(["--config", "image_folder:nowhere,64"]) == 2
    lines = sys.stderr.getvalue().splitlines()
    assert len(lines) > 1
    assert " ".join(lines).endswith("expected image_folder:PATH,SIZE, such as ~/photos,64")


@pytest.mark.parametrize(("columns", "shown"), [("80", "loss 512.125  kNN 22.5%  23 img/s"), ("200", "mask ±0.0100")])
def test_the_bar_shows_what_matters_most_if_there_is_little_room(columns, shown, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stderr", Terminal())
    metrics = {"loss": 512.125, "loss_drr": 93.01, "loss_method": 4.334, "mask_std": 0.01, "images_per_second": 23}
    config = apply_overrides(default_config(), {"log.tensorboard": "False"})
    with Watch(config, tmp_path, start_step=0, total_steps=306) as watch:
        watch._bar.ncols, watch._bar.dynamic_ncols = int(columns), None
        monkeypatch.setattr(watch, "_rate", lambda step, now: None)
        watch.start_clock(1)
        watch.log(10, metrics | {"knn_accuracy": 0.225})
        watch.log(20, metrics)
    last = sys.stderr.getvalue().rstrip().split("\r")[-1]
    assert shown in last
    assert "kNN 22.5%" in last  # as it was when it was last measured
    assert len(last) <= int(columns)


def test_what_is_said_of_unreadable_pictures_does_not_tear_a_progress_bar(tmp_path, monkeypatch, caplog):
    from PIL import Image

    from metamask_jax.data import open_source
    from metamask_jax.data.builders import base

    (tmp_path / "photos").mkdir()
    for i in range(3):
        Image.new("RGB", (20, 20), (80 * i, 0, 0)).save(tmp_path / "photos" / f"{i}.png")
    (tmp_path / "photos" / "broken.png").write_bytes(b"no picture")
    said_while_drawing: list[str] = []
    prepare = base.RecordBuilder.download_and_prepare

    def recorded(self, **settings):
        prepare(self, **settings)
        said_while_drawing.extend(caplog.messages)

    monkeypatch.setattr(base.RecordBuilder, "download_and_prepare", recorded)
    monkeypatch.chdir(tmp_path.parent)
    with caplog.at_level(logging.INFO):
        open_source(
            "image_folder", split="pretrain", data_dir=str(tmp_path), path=str(tmp_path / "photos"), image_size=16
        )
    assert said_while_drawing == [f"preparing image_folder in {tmp_path.name}"]  # as seen from here
    assert "skipped 1 unreadable of 4 files" in caplog.text


def test_commands_to_try_next_are_spelt_so_that_they_run_from_here(monkeypatch, tmp_path):
    command = "python run_linear.py --workdir runs/quickstart/metamask"
    monkeypatch.chdir(ROOT)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{pathlib.Path(sys.executable).parent}:/usr/bin")
    assert terminal.runnable(command) == command
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # as after `make quickstart`, without activating .venv
    monkeypatch.setattr(sys, "executable", str(ROOT / ".venv" / "bin" / "python"))
    assert terminal.runnable(command) == f".venv/bin/{command}"
    monkeypatch.setattr(sys, "executable", "/opt/envs/mine/bin/python3")
    assert terminal.runnable(command) == f"/opt/envs/mine/bin/python3{command.removeprefix('python')}"
    monkeypatch.chdir(tmp_path)  # as after `pip install`, without a checkout
    assert terminal.runnable(command).split()[1:3] == ["-m", "metamask_jax.cli.evaluate"]


@pytest.mark.parametrize("checkout", [True, False])
def test_what_quickstart_prints_to_try_next_is_there(checkout, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT if checkout else tmp_path)
    for command in quickstart._NEXT:
        _, first, *others = shlex.split(terminal.runnable(command))
        if checkout:
            assert (ROOT / first).is_file()
        else:
            assert first == "-m"
            assert importlib.util.find_spec(others[0]) is not None


@pytest.mark.parametrize("script", ["run_pretrain.py", "run_linear.py"])
def test_a_python_that_lacks_the_libraries_is_one_sentence(script):
    done = subprocess.run([sys.executable, "-S", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "No module named 'ml_collections'; expected a Python with this package: after " + (
        "`make quickstart`, `. .venv/bin/activate`\n"
    )
