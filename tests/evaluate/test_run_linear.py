"""The command: results where they belong, and one sentence for whatever is wrong."""

import dataclasses
import inspect
import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from metamask_jax.cli.evaluate import main
from metamask_jax.config import from_json, to_json
from metamask_jax.data import splits
from metamask_jax.data.in_memory import ArraySource
from metamask_jax.errors import DataError
from metamask_jax.evaluate import evaluation
from metamask_jax.evaluate.protocols import Settings
from tests.test_checkpoint import damage

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def workdir(pretrained: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(pretrained, tmp_path / "run"))


def results(workdir: pathlib.Path) -> dict[tuple[int, str, str], dict]:
    entries = json.loads((workdir / "evaluation.json").read_text())["results"]
    return {(entry["step"], entry["protocol"], entry["features"]): entry for entry in entries}


def test_results_are_printed_kept_and_reported(workdir: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--workdir={workdir}", "--protocol=linear,knn"]) == 0
    printed = capsys.readouterr().out
    found = results(workdir)
    assert [key[1:] for key in found] == [
        *((name, kind) for name in ("knn_official", "knn_k200", "knn_euclidean5") for kind in ("h", "h*m")),
        ("linear", "h"),
    ]
    entry = found[12, "linear", "h"]
    assert entry["same_for"] == ["h*m"]
    assert (entry["dataset"], entry["train_size"], entry["test_size"]) == ("confounded_shapes", 256, 96)
    assert np.sum(entry["confusion"]) == 96
    assert entry["interval"][0] < entry["top1"] < entry["interval"][1]
    assert max(entry["held_out"].values()) == entry["held_out"][f"l2={entry['chosen']['l2']:g}"]
    row = f"| run | 12 | confounded_shapes | 256 | 0 | h*m | {100 * found[12, 'knn_official', 'h*m']['top1']:.2f} |"
    (line,) = (line for line in (workdir / "evaluation.md").read_text().splitlines() if line.startswith(row))
    assert line.endswith("| = h |"), "one number holds for both kinds of features"
    assert max(map(len, printed[: printed.index("results: ")].splitlines())) <= 80
    assert f"linear {' ' * 4}" in printed
    (line,) = (line for line in printed.splitlines() if line.startswith("linear "))
    assert f"{entry['top1']:.2%} [" in line
    assert line.split()[-4:] == ["=", "h", "=", "h"]
    assert "Evaluation, top-1" in (workdir / "report.html").read_text()


def test_later_results_join_earlier_ones(workdir: pathlib.Path) -> None:
    def evaluate(protocol: str, step: int, size: int | None) -> int:
        evaluation.evaluate_run(workdir, step=step, protocols=[protocol], size=size)
        return len(json.loads((workdir / "evaluation.json").read_text())["results"])

    assert evaluate("knn", 12, None) == 6
    assert evaluate("linear_10", 12, None) == 7
    assert evaluate("knn_official", 8, None) == 9
    assert evaluate("linear_10", 12, None) == 9  # the same again takes its place
    assert evaluate("knn_official", 12, 100) == 11


def test_a_result_that_holds_for_both_kinds_of_features_takes_the_place_of_both() -> None:
    """Results kept by earlier versions have one entry for each kind, whatever the protocol."""
    shared = {"step": 1, "dataset": "d", "train_size": 9, "test_size": 9, "seed": 0}
    old = [shared | {"protocol": p, "features": f} for p in ("knn_k200", "linear") for f in ("h", "h*m")]
    new = shared | {"protocol": "linear", "features": "h", "same_for": ["h*m"], "top1": 0.5}
    assert evaluation.merge(old, [new]) == [*old[:2], new]


def test_defaults_are_those_of_the_command() -> None:
    defaults = inspect.signature(evaluation.evaluate_run).parameters
    assert (defaults["step"].default, ",".join(defaults["protocols"].default)) == ("last", "linear,knn")
    assert defaults["settings"].default == Settings()
    assert all(defaults[name].default is None for name in ("dataset", "data_dir", "options", "size", "registry"))


def pictures(folder: pathlib.Path, classes: tuple[str, ...]) -> list[str]:
    """Flags for twelve training and twelve test pictures, in folders by class, or all in one where there is none."""
    random = np.random.default_rng(0)
    for i in range(24):
        path = folder / ("train", "test")[i % 2] / (classes[i // 2 % len(classes)] if classes else "") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    return ["--dataset=image_folder", f"--option=path={folder}", "--option=image_size=32"]


def test_a_run_can_be_probed_on_another_dataset(workdir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    flags = pictures(tmp_path / "pictures", ("cat", "dog", "owl"))
    assert main([f"--workdir={workdir}", "--protocol=linear,knn_official", *flags]) == 0
    entry = results(workdir)[12, "linear", "h"]
    assert (entry["dataset"], entry["train_size"], entry["test_size"]) == ("image_folder", 12, 12)
    assert list(entry["per_class"]) == ["cat", "dog", "owl"]


def test_pictures_without_classes_are_refused(
    workdir: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"--workdir={workdir}", *pictures(tmp_path / "pictures", ())]) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]  # after tfds' progress
    assert message == "'image_folder' has 0 classes in its train split; expected labels of two or more"


def test_what_is_wrong_is_one_sentence_and_exit_code_2(
    workdir: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    one = f"--workdir={workdir}"
    before = sorted(path.name for path in workdir.iterdir())
    for flags, message in (
        (["--workdir=nowhere"], "--workdir nowhere does not exist; expected"),
        ([f"--workdir={tmp_path / 'empty'}"], "has no config.json; expected a folder that run_pretrain.py has written"),
        ([one, "--step=5"], "--step 5; expected 'last', 'best' or a step that was saved: 4, 8, 12"),
        ([one, "--step=x"], "--step x; expected a whole number, 'best' or 'last'"),
        ([one, "--protocol=liner"], "--protocol liner; expected one or more of 'all', 'knn', 'knn_official'"),
        (
            [one, "--size=100", "--protocol=knn_k200,knn"],
            "100 training images here; expected at least 200 for --protocol knn_k200",
        ),
        ([one, "--size=1000"], "--size 1000; expected 1 to 256"),
        ([one, "--size=2", "--protocol=linear"], "show 2 of its"),
        ([one, "--dataset=nothing"], "nothing"),
        ([one, "--option=x"], "--option x; expected KEY=VALUE"),
        ([one, "--finetune_epochs=0"], "--finetune-epochs 0; expected a whole number >= 1"),
        ([one, "--bogus"], "unrecognized arguments: --bogus; see --help"),
        ([], "one of the arguments --workdir --encoder is required; see --help"),
    ):
        assert main(flags) == 2, flags
        errors = capsys.readouterr().err.strip().splitlines()
        assert len(errors) == 1, errors
        assert message in errors[0]
    after = sorted(path.name for path in workdir.iterdir() if path.name != "features")
    assert after == before


def test_a_member_of_a_group_that_needs_more_pictures_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    few = ArraySource(
        name="few",
        images=np.zeros((9, 4, 4, 3), np.uint8),
        labels=np.arange(9, dtype=np.int32) % 2,
        num_classes=2,
        class_names=("a", "b"),
        factors={},
    )
    names = evaluation.expand(["linear", "knn"])
    with caplog.at_level("INFO", "metamask_jax"):
        assert evaluation._fitting(few, names, asked_for=["linear", "knn"]) == [
            "knn_official",
            "knn_euclidean5",
            "linear",
        ]
    assert "'few' has 9 training images here: --protocol knn_k200, which needs 200, is left out" in caplog.text
    with pytest.raises(DataError, match="expected at least 200 for --protocol knn_k200: --protocol knn_official"):
        evaluation._fitting(few, names, asked_for=["linear", "knn_k200"])
    with pytest.raises(DataError, match="expected at least 5 for --protocol knn_official"):
        evaluation._fitting(few.first(3), evaluation.expand(["knn"]), asked_for=["knn"])


def test_damage_is_named_and_nothing_is_overwritten(workdir: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workdir / "evaluation.json").write_text('{"results": [')
    assert main([f"--workdir={workdir}"]) == 2
    assert "evaluation.json cannot be read; expected earlier results" in capsys.readouterr().err
    assert (workdir / "evaluation.json").read_text() == '{"results": ['
    damage(workdir / "checkpoints", 12)
    assert main([f"--workdir={workdir}"]) == 2
    assert "checkpoint 12 " in capsys.readouterr().err
    (workdir / "config.json").write_text("{")
    assert main([f"--workdir={workdir}"]) == 2
    assert "config.json cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(("train", "test"), [(3, 2), (1, 1)])
def test_classes_that_do_not_match_are_refused(
    workdir: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    train: int,
    test: int,
) -> None:
    opened = splits.open_source

    def altered(name: str, *, split: str, **kwargs: object) -> object:
        count = {"train": train, "test": test}[split]
        return dataclasses.replace(
            opened(name, split=split, **kwargs),
            num_classes=count,
            class_names=tuple(map(str, range(count))),  # type: ignore
        )

    monkeypatch.setattr(splits, "open_source", altered)
    assert main([f"--workdir={workdir}"]) == 2
    message = capsys.readouterr().err
    if train == test:
        assert f"has {train} classes in its train split; expected labels of two or more" in message
    else:
        assert "has 3 classes to train on and 2 to test on; expected the same ones" in message


def test_images_without_labels_are_refused(
    workdir: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = splits.open_source

    def altered(name: str, **kwargs: object) -> object:
        source = opened(name, **kwargs)  # type: ignore
        return dataclasses.replace(source, labels=np.full_like(source.labels, -1))

    monkeypatch.setattr(splits, "open_source", altered)
    assert main([f"--workdir={workdir}"]) == 2
    assert "has labels -1 to -1 in its train split; expected a label of every image" in capsys.readouterr().err


def test_the_script_itself_exits_with_2(workdir: pathlib.Path) -> None:
    config = from_json((workdir / "config.json").read_text())
    config.encoder.name = "conv"
    (workdir / "config.json").write_text(to_json(config))
    done = subprocess.run(
        [sys.executable, ROOT / "run_linear.py", f"--workdir={workdir}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "checkpoint 12 has" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
