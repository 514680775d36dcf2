"""The report of a run: what it shows, and that whatever is missing or damaged costs its own part only."""

import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from metamask_jax.reporting import plots
from metamask_jax.reporting.report import facts, write_report
from tests.reports import PARTS, Page, arrays

PICTURES = ["Pictures and their views", "Nearest neighbours", "What dimensions respond to"]
TITLES = [
    "Pictures and their views",
    "Nearest neighbours",
    "Accuracy while training",
    "Map of the features",
    "Which classes are confused",
    "What dimensions respond to",
    "Mask at the end",
    "Mask while training",
    "Losses",
    "Gradients and learning rate",
    "Feature spectrum",
    "Correlation",
    "Feature spread",
    "Effective rank",
]
LOGGED = {"Losses", "Gradients and learning rate", "Accuracy while training", "Feature spread", "Effective rank"}


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made but not drawn, which is what takes time."""
    monkeypatch.setattr(plots, "to_svg", lambda figure: f"<svg>{figure}</svg>")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The report of a run that has everything."""
    folder = tmp_path_factory.mktemp("runs") / "a<b>"
    folder.mkdir()
    for write in PARTS.values():
        write(folder)
    return write_report(folder)


def test_report_shows_every_part_of_a_run(report: pathlib.Path) -> None:
    assert report.name == "report.html"
    page = Page(report)
    assert page.headings == ["Test accuracy", *TITLES]
    assert page.after("MetaMask run") == "a<b>"
    assert page.after("kNN accuracy") == "70.0 %"  # the result's, not the last logged
    assert {"95 %: 55.0 to 82.0", "before training 37.5 %", "chance 50.0 %", "before training 3.5"} <= set(page.text)
    assert page.after("Linear accuracy") == "75.0 %"
    assert page.after("Effective rank") == "7.2"
    assert page.after("Steps") == "12"
    assert page.after("Meta<Mask>") == "62.5 %"
    assert page.after("batch_size") == "256"


def test_report_needs_no_other_file(report: pathlib.Path) -> None:
    references = [reference for reference in Page(report).references if not reference.startswith("#")]
    assert len(references) >= 2 + 6 + 2 + 6 + 8  # pictures and views, queries and neighbours, two dimensions
    assert all(reference.startswith("data:image/") for reference in references)
    assert not re.search(r"@import|<script|<link|url\((?!#)", report.read_text())
    assert {path.name for path in report.parent.iterdir()} == {*PARTS, "report.html"}


def test_plots_follow_the_page_into_the_dark(report: pathlib.Path) -> None:
    text = report.read_text()
    assert "@media (prefers-color-scheme: dark)" in text
    plots_only = "".join(re.findall(r"(?s)<svg.*?</svg>", text))
    # Losses and gradients are three plots each, confusions two.
    assert plots_only.count("<svg") == len(TITLES) - len(PICTURES) + 5
    assert "var(--ink)" in plots_only
    assert "var(--grid)" in plots_only
    assert not re.search(r"(?i)#ffffff|#334155|: *white", plots_only)  # of a light page


def test_pictures_say_what_they_show(report: pathlib.Path) -> None:
    text = report.read_text()
    assert 'class="thumb exact other" alt="cat, similarity' in text  # a neighbour of another class is framed
    page = Page(report)
    assert any("4 of these 6 neighbours are of the same class" in line for line in page.text)
    assert page.after("#15") == "· 0.938"
    assert page.after("· 0.938") == "3 of 4 cat"
    assert page.after("· 0") == "constant"


def test_without_labels_there_is_no_talk_of_classes(tmp_path: pathlib.Path) -> None:
    kept = {
        key: value for key, value in arrays().items() if key not in ("class_names", "knn_confusion", "knn_interval")
    }
    kept |= {key: np.full_like(kept[key], -1) for key in kept if key.endswith("_labels")}
    np.savez(tmp_path / "report.npz", **kept)
    page = Page(write_report(tmp_path))
    assert set(PICTURES) | {"Map of the features"} <= set(page.headings)
    assert "Which classes are confused" not in page.headings
    assert not any("of the same class" in line or "coloured by class" in line for line in page.text)


def test_report_of_the_same_run_is_the_same(report: pathlib.Path) -> None:
    first = report.read_bytes()
    assert write_report(report.parent).read_bytes() == first


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("missing", "lost"),
    [
        ("config.json", set()),
        ("metrics.jsonl", LOGGED),
        ("result.json", {"Test accuracy"}),
        ("report.npz", {*TITLES} - LOGGED),
    ],
)
def test_a_missing_file_leaves_out_its_own_part_only(tmp_path: pathlib.Path, missing: str, lost: set[str]) -> None:
    for name, write in PARTS.items():
        if name != missing:
            write(tmp_path)
    page = Page(write_report(tmp_path))
    assert set(page.headings) == {"Test accuracy", *TITLES} - lost
    assert ("Configuration" in page.text) == (missing != "config.json")


@pytest.mark.parametrize("damaged", ["config.json", "result.json", "report.npz"])
def test_a_damaged_file_is_named_and_the_rest_shown(tmp_path: pathlib.Path, damaged: str) -> None:
    PARTS[damaged](tmp_path)
    (tmp_path / damaged).write_bytes((tmp_path / damaged).read_bytes()[:30])
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}')
    page = Page(write_report(tmp_path))
    assert any(text.startswith(f"{damaged} could not be read: ") for text in page.text)
    assert page.headings == ["Losses"]


def test_an_evaluation_gets_a_table_of_its_own(tmp_path: pathlib.Path) -> None:
    data = {"dataset": "cifar10", "train_size": 5000, "step": 7, "seed": 0}
    results = [
        {"protocol": "linear", "features": "h", "top1": 0.5, "interval": [0.4, 0.625], "top5": 0.9} | data,
        {"protocol": "linear", "features": "h*m", "top1": 0.25} | data,
        {"protocol": "finetune", "features": "h", "top1": 0.75} | data,
    ]
    (tmp_path / "evaluation.json").write_text(json.dumps({"results": results}))
    page = Page(write_report(tmp_path))
    assert page.headings == ["Evaluation, top-1"]
    start = page.text.index("linear")
    assert page.text[start + 1 : start + 9] == [
        *("50.0 %", "40.0 to 62.5", "top-5 90.0 %", "25.0 %", "finetune", "75.0 %", "\N{EM DASH}"),
        "cifar10, 5000 images · step 7",  # once, since all rows have it
    ]
    (tmp_path / "evaluation.json").write_text('{"results": [{"protocol": "linear"}]}')
    page = Page(write_report(tmp_path))
    assert page.headings == []
    assert any(text.startswith("evaluation.json could not be read: ") for text in page.text)


def test_a_result_that_holds_for_both_kinds_of_features_says_so(tmp_path: pathlib.Path) -> None:
    data = {"dataset": "cifar10", "train_size": 5000, "step": 7, "seed": 0}
    results = [
        {"protocol": "linear", "features": "h", "same_for": ["h*m"], "top1": 0.5} | data,
        {"protocol": "knn_k200", "features": "h", "top1": 0.25} | data,
        {"protocol": "knn_k200", "features": "h*m", "top1": 0.75} | data,
    ]
    (tmp_path / "evaluation.json").write_text(json.dumps({"results": results}))
    text = Page(write_report(tmp_path)).text
    start = text.index("linear")
    assert text[start + 1 : start + 6] == ["50.0 %", "= h", "knn_k200", "25.0 %", "75.0 %"]


def test_rows_of_several_sets_say_each_which_it_is(tmp_path: pathlib.Path) -> None:
    entry = {"protocol": "linear", "features": "h", "top1": 0.5, "train_size": 5000, "step": 7, "seed": 0}
    results = [entry | {"dataset": name} for name in ("cifar10", "stl10")]
    (tmp_path / "evaluation.json").write_text(json.dumps({"results": results}))
    page = Page(write_report(tmp_path))
    assert page.text[page.text.index("linear") :][:2] == ["linear", "cifar10, 5000 images · step 7"]
    assert page.text.count("stl10, 5000 images · step 7") == 1


def test_what_a_run_is_does_not_claim_a_mask_that_was_not_learned() -> None:
    config = {"data.name": "cifar10", "encoder.name": "conv", "meta.estimator": "exact"}
    assert facts(config) == ["cifar10", "encoder conv", "mask learned, exact"]
    judged = config | {"meta.outer": "labels"}
    assert facts(judged)[-1] == "mask learned, exact, judged by labels"
    for unlearned in (config, judged):
        assert facts(unlearned | {"mask.learn": False}) == ["cifar10", "encoder conv", "mask not learned"]


@pytest.mark.parametrize("skipped", [0, 3])
def test_skipped_steps_are_told_if_there_are_any(tmp_path: pathlib.Path, skipped: int) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 2.5, "skipped": skipped}) + "\n")
    text = Page(write_report(tmp_path)).text
    assert ("Skipped steps" in text) == (skipped > 0)


def test_an_empty_workdir_gives_a_page_that_says_so(tmp_path: pathlib.Path) -> None:
    page = Page(write_report(tmp_path))
    assert page.headings == []
    assert "Nothing was logged yet." in page.text


def test_cut_off_lines_and_values_that_are_not_finite_are_left_out(tmp_path: pathlib.Path) -> None:
    lines = ['{"step": 1, "loss": 2.5}', '{"step": 2, "loss": NaN}', '{"step": 3, "loss": Infinity}', '{"step": 4, "lo']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    page = Page(write_report(tmp_path))
    assert page.after("Final loss") == "2.5"
    assert page.headings == ["Losses"]


def test_arrays_that_are_empty_or_not_finite_are_left_out(tmp_path: pathlib.Path) -> None:
    np.savez(
        tmp_path / "report.npz",
        mask_steps=np.array([]),
        mask_trajectory=np.array([]),
        mask_final=np.full(8, 0.5),
        singular_values=np.full(8, np.nan),
        correlation=np.zeros((8, 8)),
    )
    assert Page(write_report(tmp_path)).headings == ["Mask at the end", "Correlation"]


def test_a_run_without_mask_learning_has_no_meta_gradient_to_show(tmp_path: pathlib.Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0, "loss_method": 1.0}\n')
    assert Page(write_report(tmp_path)).headings == ["Losses"]


def test_a_workdir_that_does_not_exist_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"workdir='.*nowhere'; expected an existing directory"):
        write_report(tmp_path / "nowhere")


def test_neither_report_nor_evaluation_imports_what_is_heavy_before_it_is_needed() -> None:
    modules = "metamask_jax.reporting.report, metamask_jax.evaluate, metamask_jax.evaluate.diagnostics"
    code = f"import sys, {modules}; print({{'matplotlib', 'orbax', 'scipy.stats'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
