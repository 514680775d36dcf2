"""Evaluation while a run goes on: what it measures, and what is refused before the first step."""

import json
import logging

import numpy as np
import pytest
from PIL import Image

from metamask_jax.errors import ConfigError, DataError
from metamask_jax.evaluate.online import OnlineEvaluator, pretrain
from metamask_jax.reporting.arrays import read_arrays
from metamask_jax.training.monitor import Monitor
from metamask_jax.training.state import init_state
from tests.tiny import tiny_config


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def pictures(root, files):
    """Smooth pictures at paths below a folder."""
    random = np.random.default_rng(0)
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        coarse = random.integers(0, 256, (4, 5, 3), np.uint8)
        Image.fromarray(coarse.repeat(9, axis=0).repeat(9, axis=1)).save(root / name)
    return root


def classes(count, split=""):
    return [f"{split}{name}/{i}.png" for name in ("ant", "bee") for i in range(count)]


def config_for(folder, data_dir, **overrides):
    dotted = {key.replace("__", "."): str(value) for key, value in overrides.items()}
    return tiny_config(
        {
            "data.name": "image_folder",
            "data.dir": str(data_dir),
            "data.options.path": str(folder),
            "data.augmentation": "eval",
            "train.steps": "2",
            "log.tensorboard": "false",
        }
        | dotted
    )


def test_classes_without_a_test_split_go_from_pictures_to_report(tmp_path, data_dir, caplog):
    folder = pictures(tmp_path / "pictures", classes(10))
    with caplog.at_level(logging.INFO, "metamask_jax"):
        result = pretrain(config_for(folder, data_dir), tmp_path / "run")
    assert 0 <= result["knn_accuracy"] <= 1
    assert result["held_out_images"] == 4
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert 0 <= result["knn_accuracy_before"] <= 1
    assert (tmp_path / "run" / "report.html").exists()
    shown = read_arrays(tmp_path / "run" / "report.npz")
    with np.load(tmp_path / "run" / "report.npz") as written:
        assert set(shown) == set(written)  # the report draws everything that was written for it
    assert shown["class_names"].tolist() == ["ant", "bee"]
    assert shown["knn_confusion"].sum() == result["held_out_images"]
    assert np.trace(shown["knn_confusion"]) / shown["knn_confusion"].sum() == result["knn_accuracy"]


def test_pictures_without_labels_go_to_a_report_with_rank_and_spectrum(tmp_path, data_dir):
    folder = pictures(tmp_path / "pictures", [f"{i}.png" for i in range(20)])
    result = pretrain(config_for(folder, data_dir), tmp_path / "run")
    assert result["effective_rank"] > 1
    assert "knn_accuracy" not in result
    shown = read_arrays(tmp_path / "run" / "report.npz")
    assert len(shown["singular_values"]) == 12
    assert {"sample_views", "neighbor_images", "map_points", "dimension_images"} <= set(shown)
    assert {"class_names", "knn_confusion"}.isdisjoint(shown)
    assert (tmp_path / "run" / "report.html").exists()


def test_a_held_out_part_is_announced_before_the_first_step(tmp_path, data_dir, caplog):
    folder = pictures(tmp_path / "pictures", classes(10))
    with caplog.at_level(logging.INFO, "metamask_jax"):
        OnlineEvaluator(config_for(folder, data_dir)).check()
    assert "4 of its 20 labelled pictures, 20% of every class, are held out" in caplog.text


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        ({"eval__k": 17}, ConfigError, r"config\.eval\.k=17; expected at most 16"),
        ({"eval__k": 4, "eval__size": 3}, ConfigError, r"config\.eval\.k=4; expected at most 3"),
        ({"eval__k": 1, "eval__size": 1}, ConfigError, r"config\.eval\.size=1; expected at least 2"),
        ({"method__name": "supervised", "method__num_classes": 2}, DataError, "would learn the labels"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_the_first_step(tmp_path, data_dir, overrides, error, message):
    folder = pictures(tmp_path / "pictures", classes(10))
    with pytest.raises(error, match=message):
        OnlineEvaluator(config_for(folder, data_dir, **overrides)).check()


def test_a_single_picture_is_refused_before_the_first_step(tmp_path, data_dir):
    folder = pictures(tmp_path / "pictures", ["1.png"])
    with pytest.raises(ConfigError, match="'image_folder' has 1 picture to evaluate; expected at least 2"):
        OnlineEvaluator(config_for(folder, data_dir)).check()


def test_supervised_training_with_test_pictures_of_its_own_is_fine(tmp_path, data_dir):
    folder = pictures(tmp_path / "pictures", classes(10, "train/") + classes(3, "test/"))
    evaluator = OnlineEvaluator(config_for(folder, data_dir, method__name="supervised", method__num_classes=2))
    evaluator.check()
    assert [len(source) for source in evaluator.splits] == [20, 6]


def test_an_evaluation_of_held_out_pictures_says_how_many(tmp_path, data_dir):
    config = config_for(pictures(tmp_path / "pictures", classes(10)), data_dir)
    values = OnlineEvaluator(config)(init_state(config))
    assert set(values) == {"effective_rank", "knn_accuracy", "held_out_images"}


@pytest.mark.parametrize(
    ("every_epochs", "least_times", "steps"),
    [(0, 0, [40]), (2, 0, [20, 40]), (0, 3, [14, 28, 40]), (2, 4, [10, 20, 30, 40]), (1, 2, [10, 20, 30, 40])],
)
def test_short_runs_can_ask_for_a_number_of_evaluations(every_epochs, least_times, steps):
    overrides = {"eval.every_epochs": str(every_epochs), "eval.least_times": str(least_times)}
    monitor = Monitor(tiny_config(overrides), lambda state: {})
    due = [step for step in range(1, 41) if monitor.due(step, steps_per_epoch=10, total_steps=40)]
    assert due == steps
