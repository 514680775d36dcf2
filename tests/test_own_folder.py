"""From a folder of pictures to a report by one command, whatever it looks like, and on to the other commands."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from metamask_jax.cli import diagnostics, evaluate, pretrain
from metamask_jax.core.storage import read_json_lines

ROOT = pathlib.Path(__file__).parents[1]
# A network that compiles in seconds, and few steps of it.
TINY = (
    "--config.plugins=('tests.tiny',)",
    "--config.encoder.name=tiny",
    "--config.method.head=(8, 6)",
    "--config.loss.drr_head=(10,)",
    "--config.train.steps=3",
    "--config.eval.least_times=0",
    "--config.data.augmentation=eval",
    "--config.log.tensorboard=false",
)
LAYOUTS = {
    "classes": [f"{name}/{i}.png" for name in ("ant", "bee", "cat") for i in range(10)],
    "splits": [
        f"{split}/{name}/{i}.png"
        for split, count in (("Train", 8), ("val", 3))
        for name in ("ant", "bee", "cat")
        for i in range(count)
    ],
    "flat": [f"{i}.png" for i in range(24)],
}


def pictures(root, names):
    """Smooth pictures at paths below a folder."""
    random = np.random.default_rng(0)
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = random.integers(0, 256, (3, 4, 3), np.uint8)
        Image.fromarray(coarse).resize((40, 30), Image.Resampling.BICUBIC).save(path)
    return root


@pytest.fixture(params=LAYOUTS)
def folder(request, tmp_path):
    return pictures(tmp_path / request.param, LAYOUTS[request.param])


def flags(folder, workdir):
    data = f"--config.data.dir={folder.parent / 'data'}"
    return [f"--config=image_folder:{folder},16", f"--workdir={workdir}", data, *TINY]


@pytest.mark.slow
def test_pictures_become_a_report_and_can_be_evaluated(folder, tmp_path, capsys):
    workdir = tmp_path / "run"
    assert pretrain.main(flags(folder, workdir)) == 0
    result = json.loads((workdir / "result.json").read_text())
    assert result["effective_rank"] > 1
    assert (workdir / "report.html").stat().st_size > 10_000
    labelled = folder.name != "flat"
    assert ("knn_accuracy" in result) == labelled
    assert result.get("held_out_images") == (6 if folder.name == "classes" else None)
    capsys.readouterr()
    assert evaluate.main([f"--workdir={workdir}", "--protocol=linear,knn_official"]) == (0 if labelled else 2)
    printed = capsys.readouterr().err.strip().splitlines()
    if labelled:
        entries = json.loads((workdir / "evaluation.json").read_text())["results"]
        assert {(e["train_size"], e["test_size"]) for e in entries} == {(24, 6 if folder.name == "classes" else 9)}
    else:
        assert printed == ["'image_folder' has 0 classes in its train split; expected labels of two or more"]
    assert diagnostics.main([f"--workdir={workdir}", "--trials=1"]) == 0
    assert len(list((workdir / "diagnostics").glob("*.json"))) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["classes"], indirect=True)
def test_killed_while_it_is_evaluated_at_the_end_nothing_is_lost(folder, tmp_path, capsys):
    workdir = tmp_path / "run"
    program = f"""
import os, signal, sys, time
from metamask_jax.cli.pretrain import main
from metamask_jax.evaluate.online import OnlineEvaluator

def die(self, state):
    while not os.path.exists({str(workdir / "checkpoints" / "3")!r}):  # is written while the evaluation goes on
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)

OnlineEvaluator.__call__ = die
main(sys.argv[1:])
"""
    killed = subprocess.run(
        [sys.executable, "-c", program, *flags(folder, workdir)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (workdir / "result.json").exists()
    capsys.readouterr()
    assert pretrain.main(flags(folder, workdir)) == 0
    assert "first step done" not in capsys.readouterr().err  # no step was taken again
    assert 0 <= json.loads((workdir / "result.json").read_text())["knn_accuracy"] <= 1
    assert [line["step"] for line in read_json_lines(workdir / "metrics.jsonl")] == [3]
