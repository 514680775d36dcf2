"""What is taken for a picture, a class and a split in a folder of one's own."""

import logging
import os

import numpy as np
import pytest
from PIL import Image

from metamask_jax.data import open_source
from metamask_jax.data.builders.folders import scan
from metamask_jax.errors import DataError


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    return root


def paint(root, *names):
    """One shade for each class: the first letter of the folder."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((9, 8, 3), ord(path.parent.name[0]), np.uint8)).save(path)
    return root


def found(root):
    return {split: [p.path.relative_to(root).as_posix() for p in files] for split, files in scan(root).splits.items()}


@pytest.mark.parametrize(
    ("folders", "splits"),
    [
        (("train", "val"), {"train", "validation"}),
        (("Train", "Validation"), {"train", "validation"}),
        (("TRAIN", "valid", "Test"), {"train", "validation", "test"}),
        (("training", "testing"), {"train", "test"}),
    ],
)
def test_splits_have_the_usual_names_in_any_capitalisation(tmp_path, folders, splits):
    touch(tmp_path, *(f"{folder}/cat/1.jpg" for folder in folders))
    assert set(found(tmp_path)) == splits
    assert {p.class_name for files in scan(tmp_path).splits.values() for p in files} == {"cat"}


def test_val_is_what_a_run_is_judged_on_where_there_is_no_test(tmp_path, data_dir):
    paint(tmp_path, "Train/a/1.png", "Train/b/2.png", "VAL/b/3.png")
    settings = {"data_dir": data_dir, "path": str(tmp_path), "image_size": 8}
    assert len(open_source("image_folder", split="train", **settings)) == 2
    assert open_source("image_folder", split="test", **settings).labels.tolist() == [1]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("train/1.jpg", "holdout/2.jpg"), "has a folder 'train' and the folder 'holdout' beside it; expected train/"),
        (("train/1.jpg", "bus/2.jpg", "car/3.jpg"), "the folder 'bus' beside it.*a class of such a name needs another"),
        (("val/1.jpg", "test/2.jpg"), "has a folder 'test' and no folder train/; expected train/ and"),
        (("val/1.jpg", "cat/2.jpg"), "has a folder 'val' and the folder 'cat' beside it"),
        (("train/1.jpg", "Train/2.jpg"), "has the folders 'Train' and 'train'; expected one of them"),
        (("val/1.jpg", "validation/2.jpg", "train/3.jpg"), "has the folders 'val' and 'validation'"),
        (("train/1.jpg", "test/notes.txt"), "test/ of .* holds no pictures"),
    ],
)
def test_folders_that_may_or_may_not_be_splits_are_refused(tmp_path, names, message):
    with pytest.raises(DataError, match=message):
        scan(touch(tmp_path, *names))


def test_folders_without_pictures_and_hidden_ones_do_not_matter(tmp_path):
    touch(tmp_path, "train/cat/1.jpg", "train/.cache/2.jpg", "train/cat/._1.jpg", "notes/x.txt", ".git/3.jpg")
    assert found(tmp_path) == {"train": ["train/cat/1.jpg"]}
    assert scan(tmp_path).problems == []


def test_pictures_in_no_split_are_reported(tmp_path):
    touch(tmp_path, "train/1.jpg", "2.jpg")
    assert [problem.split("/")[-2:] for problem in scan(tmp_path).problems] == [
        ["2.jpg lies beside train", ", in no split"]
    ]


def test_links_are_followed_but_not_in_circles(tmp_path):
    touch(tmp_path / "elsewhere", "1.jpg")
    root = touch(tmp_path / "photos", "cat/2.jpg")
    (root / "dog").symlink_to(tmp_path / "elsewhere")
    (root / "cat" / "again").symlink_to(root)
    (root / "cat" / "gone.jpg").symlink_to(root / "nowhere.jpg")
    (root / "cat" / "self.jpg").symlink_to(root / "cat" / "self.jpg")
    (root / "top.jpg").symlink_to(root / "top.jpg")
    assert found(root) == {"train": ["cat/2.jpg", "dog/1.jpg"]}
    problems = "\n".join(scan(root).problems)
    assert "cat/again leads back to a folder above it" in problems
    assert "gone.jpg is a link that leads nowhere" in problems
    assert "self.jpg is a link that leads nowhere" in problems
    assert "top.jpg is a link that leads nowhere" in problems


@pytest.mark.parametrize("name", ["b\nc", "b\rc", " b", "b\x85c", "b\u2028c", os.fsdecode(b"b\xff")])
def test_a_class_whose_name_is_no_line_of_text_never_shifts_the_others(tmp_path, data_dir, name, caplog):
    root = paint(tmp_path, "a/1.png", f"{name}/2.png", "d/3.png")
    settings = {"split": "train", "data_dir": data_dir, "path": str(root), "image_size": 8}
    with caplog.at_level(logging.WARNING):
        source = open_source("image_folder", **settings)
    assert source.class_names == ("a", "d")
    images, labels = source.gather(np.arange(2))
    assert [source.class_names[label] for label in labels] == [chr(shade) for shade in images[:, 0, 0, 0]]
    assert f"1 pictures of the class {name!a}, whose name is not UTF-8 text on one line" in caplog.text
    with pytest.raises(DataError, match=r"1 pictures of the class .*; on_error='skip' would leave that out"):
        open_source("image_folder", on_error="refuse", **settings)


def test_files_may_be_called_anything(tmp_path, data_dir, caplog):
    root = paint(tmp_path, "a/1\n2.png", os.fsdecode(b"a/\xff.png"), "b/ü.png", "b/plain.png")
    (root / "a" / os.fsdecode(b"\xfe.png")).write_text("damaged")
    with caplog.at_level(logging.WARNING):
        source = open_source("image_folder", split="train", data_dir=data_dir, path=str(root), image_size=8)
    assert sorted(source.labels.tolist()) == [0, 0, 1, 1]
    assert "\\udcfe.png" in caplog.text


def test_a_link_that_leads_nowhere_is_reported_or_refused(tmp_path, data_dir, caplog):
    root = paint(tmp_path, "a/1.png", "b/2.png")
    (root / "a" / "gone.png").symlink_to(root / "nowhere.png")
    settings = {"split": "train", "data_dir": data_dir, "path": str(root), "image_size": 8}
    with pytest.raises(DataError, match=r"gone\.png is a link that leads nowhere .*; on_error='skip' would leave"):
        open_source("image_folder", on_error="refuse", **settings)
    with caplog.at_level(logging.WARNING):
        assert len(open_source("image_folder", **settings)) == 2
    assert "gone.png is a link that leads nowhere" in caplog.text
