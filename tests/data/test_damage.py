"""Data on disk that are no longer what was written: noticed at opening, decoded again where that is possible."""

import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from metamask_jax.data import checksums, open_source, prepared
from metamask_jax.errors import DataError

SHAPES = {"train_size": 24, "test_size": 8}


@pytest.fixture(scope="module")
def prepared_dir(tmp_path_factory):
    """A folder that one start has prepared and decoded."""
    data_dir = tmp_path_factory.mktemp("whole") / "data"
    open_source("confounded_shapes", split="train", data_dir=str(data_dir), **SHAPES)
    return data_dir


@pytest.fixture
def own_dir(prepared_dir, tmp_path):
    return pathlib.Path(shutil.copytree(prepared_dir, tmp_path / "data"))


def open_shapes(data_dir, split="train"):
    return open_source("confounded_shapes", split=split, data_dir=str(data_dir), **SHAPES)


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path, position):
    """Changes one bit; a position below zero counts from the end."""
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(bytes(content))


def remove(path):
    path.unlink()


def empty(path):
    path.write_bytes(b"")


DAMAGE = [
    *((name, how) for name in ("images.npy", "values.npz", "description.json", "checksums.json") for how in
      (truncate, remove, empty)),
    *((name, lambda path: flip(path, path.stat().st_size // 2)) for name in ("images.npy", "values.npz")),
    ("images.npy", lambda path: flip(path, -1)),
    ("images.npy", lambda path: flip(path, 30)),
    ("description.json", lambda path: flip(path, 25)),
    ("checksums.json", lambda path: flip(path, 40)),
    ("checksums.json", lambda path: path.write_text("[]")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "damage"), DAMAGE)
def test_damaged_arrays_are_decoded_again_with_a_warning(prepared_dir, own_dir, name, damage, caplog):
    folder = next(own_dir.glob("decoded/*/*/*/train"))
    damage(folder / name)
    with caplog.at_level(logging.WARNING):
        source = open_shapes(own_dir)
    assert "the pictures are decoded again" in caplog.text
    caplog.clear()
    whole = open_shapes(prepared_dir)
    for again in (source, open_shapes(own_dir)):
        np.testing.assert_array_equal(again.images, whole.images)
        np.testing.assert_array_equal(again.labels, whole.labels)
    assert not caplog.text  # the second start finds whole ones
    assert [path.name for path in folder.parent.iterdir()] == ["train"]


def test_arrays_of_a_version_without_checksums_are_decoded_again(own_dir):
    folder = next(own_dir.glob("decoded/*/*/*/train"))
    (folder / "checksums.json").unlink()
    open_shapes(own_dir)
    assert (folder / "checksums.json").exists()


def test_damaged_arrays_that_cannot_be_replaced_still_give_whole_pictures(prepared_dir, own_dir, monkeypatch):
    flip(next(own_dir.glob("decoded/*/*/*/train/images.npy")), -1)

    def refuse(*paths):
        raise OSError("read-only")

    monkeypatch.setattr("metamask_jax.data.in_memory.os.rename", refuse)
    np.testing.assert_array_equal(open_shapes(own_dir).images, open_shapes(prepared_dir).images)


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        ("dataset_info.json", truncate),
        ("dataset_info.json", empty),
        ("dataset_info.json", lambda path: path.write_text("[]")),
        ("features.json", truncate),
        ("features.json", remove),
        ("label.labels.txt", truncate),
        ("label.labels.txt", remove),
        ("label.labels.txt", lambda path: flip(path, 1)),
        ("*-train.array_record-*", truncate),
        ("*-train.array_record-*", empty),
        ("*-train.array_record-*", remove),
        ("*-train.array_record-*", lambda path: flip(path, 100)),
        ("*-train.array_record-*", lambda path: flip(path, path.stat().st_size // 2)),
    ],
)
@pytest.mark.parametrize("sealed", [True, False])
def test_a_damaged_prepared_set_is_one_sentence(own_dir, pattern, damage, sealed):
    shutil.rmtree(own_dir / "decoded")
    folder = next(own_dir.glob("confounded_shapes/*/1.0.0"))
    if not sealed:  # as a set that another program has prepared
        (folder / "checksums.json").unlink()
        if pattern == "label.labels.txt" and damage is not truncate:
            pytest.skip("the names of classes are in no other file")
    damage(next(folder.glob(pattern)))
    with pytest.raises(
        DataError, match=r"1\.0\.0 is damaged \(.*\); delete that folder to have the set prepared again"
    ):
        open_shapes(own_dir)


def test_a_damaged_note_of_the_default_config_is_one_sentence(tmp_path):
    (tmp_path / "photos" / ".config").mkdir(parents=True)
    (tmp_path / "photos" / ".config" / "metadata.json").write_text("{")
    with pytest.raises(DataError, match=r"metadata\.json is damaged"):
        prepared.find("photos", str(tmp_path))


def test_of_a_large_file_size_and_some_blocks_are_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(checksums, "_BLOCK", 16)
    monkeypatch.setattr(checksums, "_ALL", 4)
    file = tmp_path / "large"
    file.write_bytes(os.urandom(16 * 200 + 5))
    checksums.seal(tmp_path)
    assert checksums.find_damage(tmp_path) is None
    for position in (3, -1):  # the first and the last block are always among them
        flip(file, position)
        assert "large has other bytes from" in checksums.find_damage(tmp_path)
        flip(file, position)
    flip(file, 1000)
    assert any(checksums.find_damage(tmp_path) for _ in range(100))  # other blocks each time
    file.write_bytes(file.read_bytes()[:-1])
    assert checksums.find_damage(tmp_path) == "large has 3204 bytes instead of 3205"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("confounded_shapes", {"train_size": "many"}, "train_size='many'; expected a whole number"),
        ("confounded_shapes", {"train_size": 2.5}, "train_size=2.5; expected a whole number"),
        ("confounded_shapes", {"train_size": True}, "train_size=True; expected a whole number"),
        ("confounded_shapes", {"train_size": 10**12}, "train_size=1000000000000; expected 1 to 10000000"),
        ("confounded_shapes", {"strength": None}, "strength=None; expected a number"),
        ("confounded_shapes", {"strength": float("nan")}, "strength=nan; expected a number"),
        ("image_folder", {"path": 3}, "path=3; expected text"),
        ("image_folder", {"path": ("a",)}, r"path=\('a',\); expected text"),
        ("image_folder", {"path": "", "on_error": 1}, "on_error=1; expected text"),
        ("tiny_imagenet", {"path": 1.5}, "path=1.5; expected text or None"),
        ("tiny_imagenet", {"classes": "n01"}, "classes='n01'; expected a tuple of any number of entries, each text"),
        ("tiny_imagenet", {"classes": (1,)}, r"classes=\(1,\); expected a tuple"),
    ],
)
def test_an_option_of_the_wrong_type_is_named_with_the_right_one(tmp_path, name, options, message):
    with pytest.raises(DataError, match=rf"^{message}.* \(config\.data\.options\.{list(options)[-1]}\)$"):
        open_source(name, split="train", data_dir=str(tmp_path), image_size=32, **options)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"image_size": "8"}, "image_size='8'; expected a whole number"),
        ({"image_size": 10**6}, "image_size=1000000; expected 1 to 8192"),
        ({"views": 1.0}, "views=1.0; expected a whole number"),
        ({"area": 0.5}, "area=0.5; expected a tuple of 2 entries, each a number"),
        ({"area": (0.1, 0.5, 1.0)}, "area=.*; expected a tuple of 2 entries"),
        ({"aspect": ("a", "b")}, "aspect=.*; expected a tuple of 2 entries"),
        ({"centre": "half"}, "centre='half'; expected a number"),
        ({"threads": None}, "threads=None; expected a whole number"),
    ],
)
def test_so_is_one_of_how_to_crop(picture_folder, data_dir, option, message):
    with pytest.raises(DataError, match=message):
        open_source(
            "image_folder", split="train", data_dir=data_dir, path=str(picture_folder), **({"image_size": 8} | option)
        )


def test_lists_are_as_good_as_tuples(picture_folder, data_dir):
    settings = {"data_dir": data_dir, "path": str(picture_folder), "image_size": 8}
    assert open_source("image_folder", split="train", area=[0.5, 1], **settings).streaming.area == (0.5, 1)


@pytest.mark.parametrize(("below", "found"), [("", "found a file"), ("sub/folder", "found '.*', which is a file")])
def test_a_file_in_the_place_of_the_data_folder_is_one_sentence(tmp_path, below, found):
    (tmp_path / "data").write_text("")
    with pytest.raises(DataError, match=rf"data_dir=.*; expected a folder, {found} \(config\.data\.dir\)"):
        open_shapes(tmp_path / "data" / below)


def test_unfinished_folders_of_a_kill_are_removed_once_they_are_old(own_dir):
    folder = next(own_dir.glob("confounded_shapes/*/1.0.0"))
    decoded = next(own_dir.glob("decoded/*/*/*/train"))
    unfinished = [folder.parent / "incomplete.ABC_1.0.0", decoded.parent / ".incomplete-abc"]
    recent = folder.parent / "incomplete.DEF_1.0.0"
    for path in (*unfinished, recent):
        path.mkdir()
        (path / "part").touch()
    long_ago = time.time() - 10_000
    for path in unfinished:
        for each in (path / "part", path):
            os.utime(each, (long_ago, long_ago))
    shutil.rmtree(decoded)
    open_shapes(own_dir)
    assert not any(path.exists() for path in unfinished)
    assert recent.exists()  # somebody may be at work


def test_preparation_leaves_no_empty_folders_and_no_progress_bars_in_a_log(tmp_path):
    program = f"""
import logging
logging.basicConfig(level=logging.ERROR)
logging.getLogger("absl").setLevel(logging.ERROR)
from metamask_jax.data import open_source
open_source("confounded_shapes", split="train", data_dir={str(tmp_path)!r}, **{SHAPES})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["confounded_shapes", "decoded"]


def test_what_stops_the_preparation_is_one_sentence(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("the disk\nis full")

    monkeypatch.setattr("metamask_jax.data.builders.shapes.render", fail)
    with pytest.raises(DataError, match=r"^'confounded_shapes' could not be prepared in data_dir=.*the disk is full"):
        open_shapes(tmp_path)
    assert not list(tmp_path.rglob("incomplete*"))


def test_pictures_of_another_size_than_the_set_says_are_named(own_dir, monkeypatch):
    shutil.rmtree(own_dir / "decoded")
    features = next(own_dir.glob("confounded_shapes/*/1.0.0/features.json"))
    content = json.loads(features.read_text().replace('"32"', '"30"'))
    features.write_text(json.dumps(content))
    (features.parent / "checksums.json").unlink()
    with pytest.raises(DataError, match="picture 0 of 'train' of 'confounded_shapes' has 32x32 pixels; expected 30x30"):
        open_shapes(own_dir)
