"""One page about several runs."""

import json

import pytest

from metamask_jax.cli import report
from tests.reports import PARTS, Page


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs that differ in one setting, and one that has only just begun."""
    root = tmp_path_factory.mktemp("runs")
    folders = [root / name for name in ("base", "mask<1>", "young")]
    for folder in folders[:2]:
        folder.mkdir()
        for write in PARTS.values():
            write(folder)
    config = json.loads((folders[1] / "config.json").read_text())
    config["train"]["seed"] = 7
    config["data"]["dir"] = "elsewhere"
    (folders[1] / "config.json").write_text(json.dumps(config))
    result = json.loads((folders[1] / "result.json").read_text())
    (folders[1] / "result.json").write_text(json.dumps(result | {"knn_accuracy": 0.75}))
    data = {"dataset": "cifar10", "train_size": 5000, "step": 7, "seed": 0}
    entry = {"protocol": "linear", "features": "h", "top1": 0.5, "interval": [0.4, 0.6], "top5": None} | data
    (folders[0] / "evaluation.json").write_text(json.dumps({"results": [entry]}))
    folders[2].mkdir()
    PARTS["config.json"](folders[2])
    return folders


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "comparison.html"
    assert report.main(["--compare", *map(str, runs), "--out", str(out)]) == 0
    return out


def test_runs_stand_side_by_side(page):
    shown = Page(page)
    assert shown.headings[:3] == ["Numbers", "Evaluation, top-1", "What was set differently"]
    assert "Accuracy while training" in shown.headings
    assert shown.headings[-2:] == ["base", "mask<1>"]  # maps of those that have one
    row = shown.text.index("mask<1>")
    assert shown.text[row : row + 4] == ["mask<1>", "75.0 %", "55.0 to 82.0", "before 37.5 %"]
    row = shown.text.index("linear of h")
    dash = "\N{EM DASH}"
    assert shown.text[row + 1 : row + 7] == ["cifar10", "50.0 %", "40.0 to 60.0", "5000 images", dash, dash]
    assert 'class="best">75.0 %' in page.read_text()


def test_only_settings_that_matter_and_differ_are_shown(page):
    shown = Page(page)
    start = shown.text.index("train.seed")
    assert shown.text[start : start + 4] == ["train.seed", "0", "7", "0"]
    assert "data.dir" not in shown.text
    assert "train.batch_size" not in shown.text


def test_the_page_needs_no_other_file(page):
    assert all(reference.startswith(("data:image/", "#")) for reference in Page(page).references)


def test_folders_of_one_name_are_told_apart_by_their_parents(runs, tmp_path):
    twins = [tmp_path / parent / "run" for parent in ("a", "b")]
    for folder in twins:
        folder.mkdir(parents=True)
        PARTS["config.json"](folder)
    out = tmp_path / "comparison.html"
    assert report.main(["--compare", *map(str, twins), "--out", str(out)]) == 0
    text = out.read_text()
    assert "All these runs have the same settings." in text
    assert "Nothing was logged yet." in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "one of the arguments --workdir --compare is required"),
        (["--compare", "nowhere"], "--compare nowhere has no config.json; expected the folder of a run"),
        (["--compare", "RUN", "--out", "RUN"], "; expected a place that can be written, but: "),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(runs, capsys, flags, message):
    assert report.main([str(runs[0]) if flag == "RUN" else flag for flag in flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
