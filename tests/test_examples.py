"""The scripts in examples/ run as they stand, and show the network as the only thing that differs."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[1] / "examples"
OWN_MODELS = sorted(FOLDER.glob("own_model_*.py"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs a script in an empty folder, one after another in the same one; returns the metrics that it prints."""
    folder = tmp_path_factory.mktemp("examples")
    flags = {"XLA_FLAGS": ""} | {"PYTHONPATH": str(FOLDER.parent)}

    def run(name):
        environment = {key: value for key, value in (os.environ | flags).items() if value}
        command = [sys.executable, str(FOLDER / name)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        lines = [re.findall(r"(\w+) (-?[\d.]+)", line) for line in done.stdout.splitlines() if "loss" in line]
        return [{key: float(value) for key, value in line} for line in lines]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("path", OWN_MODELS, ids=lambda path: path.stem)
def test_a_network_of_ones_own_learns(run, path):
    metrics = run(path.name)
    assert len(metrics) == 100
    first, last = (sum(line["loss"] for line in part) for part in (metrics[:10], metrics[-10:]))
    assert last < 0.8 * first
    assert metrics[-1]["mask_std"] > 10 * metrics[0]["mask_std"]


@pytest.mark.slow
def test_a_loop_of_ones_own_trains_on_four_devices(run):
    metrics = run("own_loop_pmap.py")
    assert len(metrics) == 20
    assert metrics[-1]["loss_outer"] < metrics[0]["loss_outer"]


@pytest.mark.parametrize("path", OWN_MODELS, ids=lambda path: path.stem)
def test_an_example_is_short(path):
    assert sum(bool(line.strip()) for line in path.read_text().splitlines()) <= 40


def test_only_the_lines_about_the_network_differ():
    def rest(path):
        text = path.read_text()
        network = text[text.index("class Network") : text.index("def losses")]
        lines = text.replace(network, "").splitlines()[1:]
        return [line for line in lines if not re.match(r"(import|from) (equinox|flax)", line)]

    first, *others = map(rest, OWN_MODELS)
    assert len(others) == 2
    assert all(other == first for other in others)
