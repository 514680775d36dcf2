"""The diagnostics of a whole run: their files, their figures, and what is said of bad input."""

import json
import pathlib
import shutil

import numpy as np
import pytest
from PIL import Image

from metamask_jax.cli.diagnostics import main
from metamask_jax.core.storage import to_plain
from metamask_jax.evaluate.diagnostics.subject import Subject
from metamask_jax.evaluate.diagnostics.suite import DIAGNOSTICS
from metamask_jax.evaluate.workdir import load_run


@pytest.fixture(scope="module")
def diagnosed(pretrained: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, str]:
    """A run with all its diagnostics, and what the command printed."""
    workdir = pathlib.Path(shutil.copytree(pretrained, tmp_path_factory.mktemp("diagnosed") / "run"))
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("builtins.print", lambda *words, **_: lines.append(" ".join(map(str, words))))
        assert main(["--workdir", str(workdir), "--trials", "2"]) == 0
    return workdir, "\n".join(lines)


def values(workdir: pathlib.Path, name: str) -> dict:
    return json.loads((workdir / "diagnostics" / f"{name}.json").read_text())


def test_every_diagnostic_leaves_numbers_a_picture_and_a_line(diagnosed: tuple[pathlib.Path, str]) -> None:
    workdir, printed = diagnosed
    files = {path.name for path in (workdir / "diagnostics").iterdir()}
    assert files == {f"{name}.{kind}" for name in DIAGNOSTICS for kind in ("json", "png")}
    for name in DIAGNOSTICS:
        assert values(workdir, name)["step"] == 12
        with Image.open(workdir / "diagnostics" / f"{name}.png") as picture:
            assert min(picture.size) > 400
            pixels = np.asarray(picture.convert("RGB")) @ (2**16, 2**8, 1)
            assert len(np.unique(pixels)) > 50, "something is drawn"
        assert any(line.startswith(name) for line in printed.splitlines())


def test_numbers_of_a_run_are_those_of_the_functions(diagnosed: tuple[pathlib.Path, str]) -> None:
    workdir, _ = diagnosed
    dim = 12
    masks = values(workdir, "random_masks")
    assert masks["rates"].count(0.5) == 2
    assert masks["rates"].count(0.0) == masks["rates"].count(1.0) == 1
    assert masks["accuracies"][0] == masks["unmasked"]
    below = values(workdir, "below_average")
    assert below["accuracies"][0] == masks["unmasked"], "rate zero masks nothing, whoever the candidates are"
    assert 0 < below["linear"]["below_count"] < dim
    known = values(workdir, "information")
    assert len(known["about_class"]) == len(known["mask_weights"]) == dim
    assert {"hue_ground", "texture", "light_strength"} <= set(known["about_factor"])
    assert set(known["rank_correlation"]["with_factor"]) == set(known["about_factor"])
    phi = values(workdir, "variance")
    assert phi["head"] is True
    assert phi["h"]["masked"]["whole"] == pytest.approx(sum(phi["h"]["masked"]["per_dimension"]))
    assert len(phi["g(h)"]["masked"]["per_dimension"]) == 6
    bounds = values(workdir, "bounds")
    assert bounds["masked"]["negatives"] == 2 * 16 - 2
    for side in (bounds["masked"], bounds["unmasked"]):
        assert side["bounds"]["lower"] < side["contrast"]["1.0"] < side["bounds"]["upper"]
    entropy = bounds["between"]["linear probe on h + log(M/D)"]
    assert entropy == pytest.approx(bounds["linear_cross_entropy"] + np.log(30 / dim))


def test_the_projection_is_that_of_training_in_inference_mode(pretrained: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run = load_run(shutil.copytree(pretrained, tmp_path / "run"), step="last")
    subject = Subject(run, size=64, classifier="knn", trials=1)
    h = subject.test[0] * subject.weights
    params, stats = run.state.params["method"], run.state.batch_stats["method"]
    z = h.astype(np.float64)
    for i in (1, 2):
        z = z @ params[f"fc{i}"]["kernel"] + params[f"fc{i}"]["bias"]
        scale = params[f"bn{i}"]["scale"] / np.sqrt(stats[f"bn{i}"]["var"] + 1e-5)
        z = (z - stats[f"bn{i}"]["mean"]) * scale + params[f"bn{i}"]["bias"]
        z = np.maximum(z, 0) if i == 1 else z
    np.testing.assert_allclose(subject.project(h), z, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(subject.project(h.reshape(2, 32, -1)), z.reshape(2, 32, -1), rtol=1e-4, atol=1e-4)


def test_views_differ_but_are_the_same_each_time(pretrained: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run = load_run(shutil.copytree(pretrained, tmp_path / "run"), step="last")
    first, second = (Subject(run, size=40, classifier="knn", trials=1).views for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert first.shape == (2, 40, 12)
    assert not np.allclose(first[0], first[1])


def test_only_what_is_asked_for_is_made(pretrained: pathlib.Path, tmp_path: pathlib.Path) -> None:
    workdir = shutil.copytree(pretrained, tmp_path / "run")
    assert main(["--workdir", str(workdir), "--only", "classes,spectrum", "--step", "4", "--size", "50"]) == 0
    assert {path.stem for path in (workdir / "diagnostics").iterdir()} == {"classes", "spectrum"}
    assert values(workdir, "spectrum")["step"] == 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--workdir", "{workdir}", "--only", "spectrum,magic"], "--only magic; expected some of spectrum, alignment"),
        (["--workdir", "{workdir}", "--trials", "0"], "--trials 0; expected a whole number >= 1"),
        (["--workdir", "{workdir}", "--step", "5"], "--step 5; expected 'last', 'best' or a step that was saved"),
        (["--workdir", "{workdir}/none"], "does not exist; expected the folder of a pretrained run"),
        (["--workdir", "{workdir}", "--classifier", "svm"], "--classifier 'svm'; expected one of"),
        ([], "--workdir"),
    ],
)
def test_bad_input_is_one_sentence(
    pretrained: pathlib.Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main([argument.replace("{workdir}", str(pretrained)) for argument in arguments]) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert sentence in message
    assert not (pretrained / "diagnostics").exists()


def test_numbers_that_json_does_not_know_become_null() -> None:
    found = to_plain({"a": np.array([1.5, np.nan]), 0.5: np.float32(np.inf), "b": (np.int32(3), np.bool_(True), "x")})
    assert found == {"a": [1.5, None], "0.5": None, "b": [3, True, "x"]}
    assert json.loads(json.dumps(found, allow_nan=False)) == found
