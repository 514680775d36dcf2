"""Evaluated working directories in one table."""

import json
import pathlib
from typing import Any

import pytest

from metamask_jax.cli.evaluate import main
from metamask_jax.config import to_json
from metamask_jax.experiments.comparison import compare
from tests.tiny import tiny_config


def entry(top1: float, **changes: Any) -> dict[str, Any]:
    found = {"step": 8, "dataset": "shapes", "train_size": 50, "test_size": 20, "protocol": "linear", "features": "h"}
    return found | {"seed": 0, "top1": top1, "same_for": []} | changes


def write(root: pathlib.Path, name: str, results: list[dict[str, Any]], **overrides: Any) -> str:
    folder = root / name
    folder.mkdir()
    config = tiny_config({key.replace("__", "."): str(value) for key, value in overrides.items()})
    (folder / "config.json").write_text(to_json(config))
    if results:
        (folder / "evaluation.json").write_text(json.dumps({"results": results}))
    return str(folder)


def test_seeds_are_taken_together_and_differences_paired(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = []
    for seed, (base, alpha) in enumerate([(0.50, 0.53), (0.60, 0.64), (0.40, 0.45)]):
        old = entry(0.1, step=4)  # of an earlier step, which does not count
        folders.append(write(tmp_path, f"base-{seed}", [entry(base, same_for=["h*m"]), old], train__seed=seed))
        folders.append(write(tmp_path, f"alpha_{seed}", [entry(alpha)], train__seed=seed, loss__alpha=3))
    assert main(["--compare", *folders]) == 0
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert lines[0] == ["protocol", "features", "dataset", "training images", "base", "alpha", "alpha - base"]
    assert lines[2] == [
        "linear", "h", "shapes", "50", "50.00 ± 10.00 (3)", "54.00 ± 9.54 (3)", "+4.00 [+1.52, +6.48]",
    ]  # fmt: skip
    assert lines[3] == ["linear", "h*m", "shapes", "50", "50.00 ± 10.00 (3)", "", ""]


def test_one_run_each_has_no_interval_and_what_is_missing_is_left_blank(tmp_path: pathlib.Path) -> None:
    one = write(tmp_path, "one", [entry(0.5), entry(0.4, protocol="knn_k200")])
    other = write(tmp_path, "other", [entry(0.75)], loss__alpha=3)
    rows = compare([one, other]).rows
    assert [row[4:] for row in rows] == [["50.00 (1)", "75.00 (1)", "+25.00"], ["40.00 (1)", "", ""]]


def test_what_cannot_be_compared_is_one_sentence(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, empty = write(tmp_path, "run", [entry(0.5)]), write(tmp_path, "empty", [])
    for flags, message in (
        ([run, run], "is the same run as another one, seed 0 included; expected every run once"),
        ([run, empty], "empty has no results; expected runs evaluated before, without --compare"),
        ([run, str(tmp_path / "nowhere")], "nowhere does not exist; expected the folder of a pretrained run"),
        ([], "--compare expected at least one argument"),
    ):
        assert main(["--compare", *flags]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1
