import dataclasses

import numpy as np
import pytest
from PIL import Image

from metamask_jax.data import open_source, splits
from tests.data.conftest import SHAPES


def paint(root, files):
    """Pictures at paths below a folder; each has its own shade."""
    for i, name in enumerate(files):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((12, 10, 3), i, np.uint8)).save(path)
    return root


def open_folder(root, data_dir, **options):
    return splits.open_splits("image_folder", data_dir=data_dir, view_size=8, path=str(root), **options)


def shades(source):
    return set(source.gather(np.arange(len(source)))[0][:, 0, 0, 0].tolist())


def test_a_set_with_test_pictures_is_judged_on_them(data_dir):
    found = splits.open_splits("confounded_shapes", data_dir=data_dir, **SHAPES)
    assert (len(found.train), len(found.test), found.labelled, found.held_out, found.note) == (60, 20, True, 0, "")


def test_classes_without_a_test_split_hold_out_a_fifth_of_each_for_good(tmp_path, data_dir):
    paint(tmp_path, [f"{name}/{i}.png" for name, count in (("ant", 10), ("bee", 5), ("cat", 1)) for i in range(count)])
    found = open_folder(tmp_path, data_dir)
    assert (found.labelled, found.held_out) == (True, 3)
    assert np.bincount(found.test.labels, minlength=3).tolist() == [2, 1, 0]
    assert np.bincount(found.train.labels).tolist() == [8, 4, 1]
    assert shades(found.train) | shades(found.test) == set(range(16))
    assert not shades(found.train) & shades(found.test)
    assert "has no test split: 3 of its 16 labelled pictures, 20% of every class, are held out" in found.note
    assert shades(open_folder(tmp_path, data_dir).test) == shades(found.test)
    assert len(open_source("image_folder", split="pretrain", data_dir=data_dir, path=str(tmp_path), image_size=8)) == 16


def test_pictures_without_labels_are_judged_without_them(tmp_path, data_dir):
    found = open_folder(paint(tmp_path, ["1.png", "2.png"]), data_dir)
    assert (found.labelled, found.held_out, len(found.test)) == (False, 0, 2)
    assert "has no labels" in found.note


def test_one_class_is_no_label(tmp_path, data_dir):
    found = open_folder(paint(tmp_path, ["a/1.png", "a/2.png"]), data_dir)
    assert not found.labelled
    assert "has one class" in found.note


def test_classes_of_one_picture_leave_nothing_to_test_on(tmp_path, data_dir):
    found = open_folder(paint(tmp_path, ["a/1.png", "b/2.png"]), data_dir)
    assert not found.labelled
    assert "no class of two pictures" in found.note


def test_pictures_beside_the_classes_take_no_part(tmp_path, data_dir):
    classes = [f"{split}/{name}/{i}.png" for split in ("train", "test") for name in "ab" for i in range(2)]
    found = open_folder(paint(tmp_path, [*classes, "train/loose.png", "test/loose.png"]), data_dir)
    assert (len(found.train), len(found.test), found.labelled, found.held_out) == (4, 4, True, 0)
    assert found.note.startswith("2 pictures of 'image_folder' have no label")


def test_a_test_split_without_labels_is_as_good_as_none(tmp_path, data_dir):
    classes = [f"train/{name}/{i}.png" for name in "ab" for i in range(5)]
    found = open_folder(paint(tmp_path, [*classes, "test/1.png"]), data_dir)
    assert (len(found.train), len(found.test), found.held_out) == (8, 2, 2)
    assert "has no labels in its test split" in found.note


def test_arrays_can_be_held_out_too(data_dir, monkeypatch):
    whole = open_source("confounded_shapes", split="train", data_dir=data_dir, **SHAPES)

    def without_test(name, *, split, **settings):
        if split == "test":
            raise splits.MissingSplitError("no test")
        return whole

    monkeypatch.setattr(splits, "open_source", without_test)
    found = splits.open_splits("confounded_shapes", data_dir=data_dir)
    assert len(found.train) + len(found.test) == 60
    rows = np.flatnonzero(splits.held_out_rows(whole.labels))
    np.testing.assert_array_equal(found.test.images, whole.images[rows])
    np.testing.assert_array_equal(found.test.factors["scale"], whole.factors["scale"][rows])


def test_parts_of_a_stream_are_its_own_pictures(picture_folder, data_dir):
    source = open_source("image_folder", split="train", data_dir=data_dir, path=str(picture_folder), image_size=8)
    images, labels = source.gather(np.arange(12))
    part = source.take(np.array([7, 2, 9])).take(np.array([2, 0])).first(1)
    np.testing.assert_array_equal(part.gather(np.array([0]))[0], images[[9]])
    np.testing.assert_array_equal(part.labels, labels[[9]])


def test_labels_of_a_stream_are_read_once_and_damage_is_read_again(tmp_path, picture_folder, data_dir):
    source = open_source("image_folder", split="train", data_dir=data_dir, path=str(picture_folder), image_size=8)
    expected = source.labels
    kept = dataclasses.replace(source, records=Unreadable(12))
    np.testing.assert_array_equal(kept.labels, expected)
    source.label_file.write_bytes(source.label_file.read_bytes()[:-30])
    np.testing.assert_array_equal(dataclasses.replace(source).labels, expected)


class Unreadable:
    def __init__(self, size):
        self._size = size

    def __len__(self):
        return self._size

    def read(self, indices):
        pytest.fail("the records were read")
