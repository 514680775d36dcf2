"""The configuration for a folder of one's own pictures, and the one key for their size."""

import pathlib

import numpy as np
import pytest

from metamask_jax.config import apply_overrides, from_json, load_config, to_json
from metamask_jax.data.sources import open_configured
from metamask_jax.errors import ConfigError
from metamask_jax.training.registry import validate


def folder_of(root: pathlib.Path, count: int) -> pathlib.Path:
    """Files that are called like pictures."""
    root.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        (root / f"{i}.jpg").touch()
    return root


@pytest.mark.parametrize(
    ("count", "batch_size", "epochs"), [(2, 2, 300), (5, 2, 150), (20, 8, 150), (88, 64, 300), (10_000, 64, 20)]
)
def test_the_batch_is_never_larger_than_the_set(tmp_path, monkeypatch, count, batch_size, epochs):
    config = validate(load_config(f"image_folder:{folder_of(tmp_path, count)}"))
    assert (config.train.batch_size, config.train.epochs) == (batch_size, epochs)
    assert config.eval.k <= count // 2


@pytest.mark.parametrize(("size", "encoder"), [("", "conv"), (",32", "conv"), (",64", "conv"), (",96", "resnet18")])
def test_the_encoder_goes_by_the_size(tmp_path, size, encoder):
    config = validate(load_config(f"image_folder:{folder_of(tmp_path, 4)}{size}"))
    assert config.encoder.name == encoder
    assert config.data.image_size == int(size[1:] or 64)
    assert config.data.options.to_dict() == {"path": str(tmp_path), "shorter_side": 2 * config.data.image_size}


def test_a_path_may_hold_a_comma_a_colon_and_begin_at_home(tmp_path, monkeypatch):
    folder = folder_of(tmp_path / "a,b:c", 4)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (folder, "~/a,b:c"):
        assert load_config(f"image_folder:{path}").data.options.path == str(folder)
        assert load_config(f"image_folder:{path},48").data.image_size == 48


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("nowhere,32", r"PATH='.*nowhere' is not a folder; expected image_folder:PATH,SIZE"),
        ("{folder},8", "SIZE=8; expected a whole number of pixels, 16 to 1024"),
        ("{folder}/one", "holds one picture to train on; expected at least 2"),
        ("{folder}/none", "holds no pictures"),
    ],
)
def test_what_is_wrong_with_the_argument_is_one_sentence(tmp_path, argument, message):
    folder_of(tmp_path, 3)
    folder_of(tmp_path / "one", 1)
    folder_of(tmp_path / "none", 0)
    with pytest.raises(ConfigError, match=message):
        load_config(f"image_folder:{argument.format(folder=tmp_path)}")


def configured(picture_folder, data_dir, **overrides):
    config = load_config(f"image_folder:{picture_folder},24")
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    return validate(apply_overrides(config, {"data.dir": data_dir} | dotted))


def test_one_key_says_how_large_pictures_are(picture_folder, data_dir):
    source = open_configured(configured(picture_folder, data_dir).data, split="pretrain")
    assert source.gather(np.arange(2))[0].shape == (2, 24, 24, 3)


def test_configurations_that_give_both_sizes_still_load(picture_folder, data_dir):
    config = from_json(to_json(configured(picture_folder, data_dir, data__options__image_size="40")))
    assert open_configured(config.data, split="train").streaming.image_size == 40


def test_sets_with_a_size_of_their_own_keep_it(data_dir):
    settings = {"data.dir": data_dir, "data.options.train_size": "60", "data.options.test_size": "20"}
    config = apply_overrides(load_config("quickstart"), settings)
    assert (config.data.image_size, open_configured(config.data, split="pretrain").images.shape[1]) == (28, 32)
