"""The pretrained encoders that come with the package: whole, small, and as good as their cards say."""

import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from metamask_jax import load_encoder
from metamask_jax.cli import evaluate
from metamask_jax.core.encoder_folders import BOX, encoder_folder
from metamask_jax.export import zoo_names
from tests.data.test_real_data import data_dir_with

ROW = re.compile(r"(?m)^\| (\w+) \| (\w+) \| (\d+) \| h(?:, h\*m)? \| (\d+\.\d\d) \| \d\d\.\d\d to \d\d\.\d\d \|")


def card_of(name: str) -> str:
    folder = encoder_folder(f"zoo:{name}")
    assert folder is not None
    return (folder / "README.md").read_text()


def test_there_is_an_encoder_in_the_box() -> None:
    assert zoo_names()


@pytest.mark.parametrize("name", zoo_names())
def test_every_encoder_in_the_box_is_whole_and_small_and_its_card_has_accuracies(name: str) -> None:
    encoder = load_encoder(f"zoo:{name}")
    h = encoder.apply(encoder.params, encoder.preprocessing(np.zeros((2, 48, 40, 3), np.uint8)))  # any size will do
    assert h.shape == (2, len(encoder.params["mask"]))
    protocols = {protocol for protocol, *_ in ROW.findall(card_of(name))}
    assert {"linear", "knn_k200"} <= protocols
    assert f'load_encoder("zoo:{name}")' in card_of(name)
    assert sum(file.stat().st_size for file in (BOX / name).iterdir()) < 8e6


def test_the_box_needs_no_network(tmp_path: pathlib.Path) -> None:
    program = f"""
import socket
def refuse(*args, **kwargs):
    raise OSError("no network here")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from metamask_jax import load_encoder
print(load_encoder("zoo:{zoo_names()[0]}").preprocessing.image_size)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("32\n", 0), done.stderr
    assert done.stderr == ""  # nothing for a notebook to show either


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo_names())
def test_the_accuracies_of_a_card_are_measured_again_to_a_tenth_of_a_point(name, tmp_path, capsys) -> None:
    rows = ROW.findall(card_of(name))
    data = data_dir_with(rows[0][1])
    flags = ["--protocol", "knn,linear", "--data-dir", data, "--out", str(tmp_path)]
    assert evaluate.main(["--encoder", f"zoo:{name}", *flags]) == 0, capsys.readouterr().err
    entries = json.loads((tmp_path / "evaluation.json").read_text())["results"]
    found = {
        (entry["protocol"], entry["dataset"], str(entry["train_size"])): 100 * entry["top1"]
        for entry in entries
        if entry["features"] == "h"
    }
    for protocol, dataset, size, accuracy in rows:
        assert found[protocol, dataset, size] == pytest.approx(float(accuracy), abs=0.1), protocol
