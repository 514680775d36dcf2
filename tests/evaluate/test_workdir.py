"""Runs as evaluation finds them, and their features, extracted once."""

import json
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import pytest

from metamask_jax.data.sources import open_configured
from metamask_jax.errors import CheckpointError, ConfigError
from metamask_jax.evaluate import cache, workdir
from metamask_jax.evaluate.features import extract_source, make_extractor
from metamask_jax.training.checkpoint import Checkpoints
from metamask_jax.training.state import init_state


@pytest.fixture
def copy(pretrained: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(pretrained, tmp_path / "run"))


def damage(folder: pathlib.Path) -> None:
    """Overwrites the middle of the largest file."""
    largest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 32] = bytes(range(100, 132))
    largest.write_bytes(bytes(content))


def snapshot(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_comes_back_with_its_config_and_state_and_untouched(copy: pathlib.Path) -> None:
    before = snapshot(copy)
    run = workdir.load_run(copy, step="last")
    assert snapshot(copy) == before
    assert (run.step, run.config.train.steps) == (12, 12)
    expected = Checkpoints.for_reading(copy / "checkpoints").restore(init_state(run.config), step=12).state
    jax.tree.map(np.testing.assert_array_equal, run.state, expected)
    np.testing.assert_allclose(run.mask_weights, 1 / (1 + np.exp(-np.asarray(run.state.mask))), rtol=1e-6)
    assert int(workdir.load_run(copy, step=4).state.step) == 4


def test_best_is_the_step_with_the_highest_accuracy(copy: pathlib.Path) -> None:
    assert workdir.load_run(copy, step="best").step == 12  # the only one that was evaluated
    run = workdir.load_run(copy, step=8)
    shutil.rmtree(copy / "checkpoints")
    checkpoints = Checkpoints(copy / "checkpoints", keep_last=5, keep_every=None, keep_best=False)
    for step, metric in ((1, 0.3), (2, None), (3, 0.7), (4, 0.5)):
        checkpoints.save(step, run.state, config="{}")
        if metric is not None:
            checkpoints.rate(step, metric)
    checkpoints.close()
    assert workdir.load_run(copy, step="best").step == 3


def test_a_missing_workdir_a_foreign_one_and_one_without_checkpoints_are_told_apart(copy: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere does not exist; expected the folder of a pretrained run"):
        workdir.load_run(copy / "nowhere", step="last")
    with pytest.raises(ConfigError, match=r"checkpoints has no config\.json; expected a folder that run_pretrain"):
        workdir.load_run(copy / "checkpoints", step="last")
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(ConfigError, match="has no checkpoint; expected a run that has saved at least one"):
        workdir.load_run(copy, step="last")
    assert not (copy / "checkpoints").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"cannot be used, it is no JSON \(Expecting"),
        ("[1]", "cannot be used"),
        ('{"x": {"y": 1}}', r"config\.x is unknown"),
    ],
)
def test_a_damaged_config_is_named(copy: pathlib.Path, text: str, message: str) -> None:
    (copy / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        workdir.load_run(copy, step="last")


def test_a_step_that_was_not_saved_is_answered_with_those_that_were(copy: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"--step 5; expected 'last', 'best' or a step that was saved: 4, 8, 12"):
        workdir.load_run(copy, step=5)


def test_a_damaged_checkpoint_is_refused_and_left_where_it_is(copy: pathlib.Path) -> None:
    damage(copy / "checkpoints" / "12" / "state")
    before = snapshot(copy)
    with pytest.raises(CheckpointError, match=r"checkpoint 12 .*; the steps saved there are 4, 8, 12"):
        workdir.load_run(copy, step="last")
    assert snapshot(copy) == before
    assert workdir.load_run(copy, step=8).step == 8


def test_another_models_checkpoint_is_refused(copy: pathlib.Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["method"]["head"] = [9, 6]
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"checkpoint 12 has .* for params\.method.*; expected shape"):
        workdir.load_run(copy, step="last")


def test_features_are_extracted_once_for_each_step_and_source(
    copy: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = workdir.load_run(copy, step="last")
    test = open_configured(run.config.data, split="test")
    train = open_configured(run.config.data, split="train")
    expected = extract_source(make_extractor(run.config), run.state.params, run.state.batch_stats, test)
    extracted = []

    def counting(*args: Any, **settings: Any) -> tuple[np.ndarray, np.ndarray]:
        extracted.append(args)
        return extract_source(*args, **settings)

    monkeypatch.setattr(workdir, "extract_source", counting)
    for _ in range(2):
        found = workdir.features(run, test)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert len(extracted) == 1
    others = [
        workdir.features(workdir.load_run(copy, step=8), test),
        workdir.features(run, test.first(64)),
        workdir.features(run, train.first(96)),
    ]
    assert len(extracted) == 4
    assert not any(np.array_equal(h, expected[0]) for h, _ in others)
    np.testing.assert_array_equal(others[1][0], expected[0][:64])
    assert len(list((copy / "features").iterdir())) == 4


def test_features_of_a_large_set_stay_on_disk(copy: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = workdir.load_run(copy, step="last")
    source = open_configured(run.config.data, split="test")
    expected = workdir.features(run, source)
    (path,) = (copy / "features").iterdir()
    content = path.read_bytes()
    path.unlink()
    monkeypatch.setattr(cache, "_IN_MEMORY", 0)
    for _ in range(2):  # extracted, and read
        found = workdir.features(run, source)
        assert isinstance(found[0], np.memmap)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert (list((copy / "features").iterdir()), path.read_bytes()) == ([path], content)
    path.write_bytes(content[:-99])
    np.testing.assert_array_equal(workdir.features(run, source)[0], expected[0])
    # Where nothing can be written, memory has to do.
    path.unlink()
    (copy / "features").rmdir()
    (copy / "features").write_text("in the way")
    np.testing.assert_array_equal(workdir.features(run, source)[0], expected[0])


@pytest.mark.parametrize("how", ["cut", "overwritten", "empty"])
def test_damaged_features_are_extracted_again(copy: pathlib.Path, how: str) -> None:
    run = workdir.load_run(copy, step="last")
    source = open_configured(run.config.data, split="test")
    h, _ = workdir.features(run, source)
    (path,) = (copy / "features").iterdir()
    content = path.read_bytes()
    if how == "overwritten":
        damage(copy / "features")
    else:
        path.write_bytes(content[: len(content) // 2] if how == "cut" else b"")
    assert path.read_bytes() != content
    np.testing.assert_array_equal(workdir.features(run, source)[0], h)
    assert path.read_bytes() == content
    assert cache._read(path) is not None


def test_a_workdir_that_cannot_be_written_is_evaluated_all_the_same(copy: pathlib.Path) -> None:
    run = workdir.load_run(copy, step="last")
    source = open_configured(run.config.data, split="test")
    (copy / "features").write_text("in the way")
    h, _ = workdir.features(run, source)
    assert h.shape == (96, 12)
    assert (copy / "features").read_text() == "in the way"
