import hashlib
import logging
import pathlib
import shutil
import zipfile

import numpy as np
import pytest
from PIL import Image

from metamask_jax.data import open_source
from metamask_jax.errors import DataError

SUBSET = pathlib.Path(__file__).parents[3] / "shared" / "data" / "tiny-imagenet-200-subset20.zip"


@pytest.fixture(scope="module")
def official_layout(tmp_path_factory):
    """Three classes in the official layout, two of which share their first word, and one that has no pictures."""
    root = tmp_path_factory.mktemp("tiny") / "tiny-imagenet-200"
    wnids = ["n03", "n01", "n02", "n09"]
    (root / "val" / "images").mkdir(parents=True)
    (root / "wnids.txt").write_text("\n".join(wnids) + "\n")
    (root / "words.txt").write_text("n01\tcrane\nn02\tcrane, bird\nn03\tteapot\nn09\tghost\n")
    rows = []
    for k, wnid in enumerate(wnids[:3]):
        (root / "train" / wnid / "images").mkdir(parents=True)
        picture = Image.fromarray(np.full((64, 64), 50 * k, np.uint8))  # grey, as some of the official ones are
        for i in range(2):
            picture.save(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG")
        picture.save(root / "val" / "images" / f"val_{k}.JPEG")
        rows.append(f"val_{k}.JPEG\t{wnid}\t0\t0\t63\t63")
    (root / "val" / "val_annotations.txt").write_text("\n".join(rows) + "\n")
    return root


def zipped(root, target):
    with zipfile.ZipFile(target, "w") as archive:
        for file in root.rglob("*"):
            archive.write(file, file.relative_to(root.parent))
    return target


@pytest.mark.parametrize("packed", [True, False])
def test_a_zip_and_its_folder_load_alike(official_layout, tmp_path, data_dir, packed):
    path = zipped(official_layout, tmp_path / "tiny.zip") if packed else official_layout
    for split, size in (("pretrain", 6), ("train", 6), ("test", 3)):
        source = open_source("tiny_imagenet", split=split, data_dir=data_dir, path=str(path))
        assert source.images.shape == (size, 64, 64, 3)
        assert source.class_names == ("crane (n01)", "crane (n02)", "teapot")
        shade_of_label = np.array([50, 100, 0])  # the order of wnids.txt is not that of the labels
        np.testing.assert_array_equal(source.images[:, 0, 0, 0], shade_of_label[source.labels])


def test_a_subset_of_classes_can_be_chosen(official_layout, data_dir):
    source = open_source("tiny_imagenet", split="test", data_dir=data_dir, path=str(official_layout), classes=("n03",))
    assert (len(source), source.class_names) == (1, ("teapot",))


def test_a_class_that_is_not_there_is_refused(official_layout, data_dir):
    with pytest.raises(DataError, match="classes='n77'; expected some of the 3 classes found"):
        open_source("tiny_imagenet", split="test", data_dir=data_dir, path=str(official_layout), classes=("n77",))


def test_a_zip_of_something_else_is_refused(tmp_path, data_dir):
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(DataError, match=r"holds 0 files 'wnids.txt'; expected one"):
        open_source("tiny_imagenet", split="test", data_dir=data_dir, path=str(tmp_path / "other.zip"))
    (tmp_path / "broken.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match="neither a folder nor a whole zip"):
        open_source("tiny_imagenet", split="test", data_dir=data_dir, path=str(tmp_path / "broken.zip"))


def test_without_a_network_it_says_where_to_put_the_file(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlretrieve", refuse)
    with pytest.raises(
        DataError, match=r"could not be downloaded \(no network\); put the zip at .*tiny-imagenet-200.zip"
    ):
        open_source("tiny_imagenet", split="test", data_dir=str(tmp_path))


def test_a_download_that_is_not_the_official_file_is_refused_and_not_kept(tmp_path, monkeypatch):
    def deliver(url, target, report):
        assert url.startswith("https://")
        pathlib.Path(target).write_text("<html>moved</html>")

    monkeypatch.setattr("urllib.request.urlretrieve", deliver)
    with pytest.raises(DataError, match=r"is not the official file: put the zip at .*; expected 90528d7ca1a48142e341"):
        open_source("tiny_imagenet", split="test", data_dir=str(tmp_path))
    assert not list(tmp_path.rglob("*zip*"))


def test_a_zip_in_its_place_that_is_not_the_official_one_is_refused(tmp_path):
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "tiny-imagenet-200.zip").write_text("half")
    with pytest.raises(DataError, match=r"tiny-imagenet-200\.zip is not the official file: delete it, or put"):
        open_source("tiny_imagenet", split="test", data_dir=str(tmp_path))


def test_the_official_file_is_downloaded_once(official_layout, tmp_path, monkeypatch):
    official = zipped(official_layout, tmp_path / "official.zip")
    monkeypatch.setattr("metamask_jax.data.builders.tiny_imagenet._MD5", hashlib.md5(official.read_bytes()).hexdigest())
    monkeypatch.setattr("urllib.request.urlretrieve", lambda url, target, report: shutil.copy(official, target))
    for split, size in (("train", 6), ("test", 3)):
        assert len(open_source("tiny_imagenet", split=split, data_dir=str(tmp_path / "data"))) == size


def damaged(official_layout, root, change):
    shutil.copytree(official_layout, root)
    change(root)
    return root


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "words.txt").unlink(), "holds no file 'words.txt'; expected one"),
        (lambda root: (root / "val" / "val_annotations.txt").unlink(), "holds no file 'val/val_annotations.txt'"),
        (lambda root: shutil.rmtree(root / "train"), "holds no training pictures of the 4 classes in its wnids.txt"),
        (lambda root: shutil.rmtree(root / "val" / "images"), "holds no validation pictures of its classes"),
        (lambda root: (root / "wnids.txt").write_text(""), "holds no training pictures of the 0 classes"),
        (lambda root: (root / "words.txt").write_bytes(b"\xff\xfe"), "'words.txt' of '.*' is no text"),
        (lambda root: (root / "words.txt").write_text("n01"), "line 1 of 'words.txt' of '.*' has 1 fields; expected 2"),
        (lambda root: (root / "val" / "val_annotations.txt").write_text("x\n"), "line 1 of 'val/val_annotations.txt'"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_an_archive_with_parts_missing_is_one_sentence(official_layout, tmp_path, change, message, packed):
    root = damaged(official_layout, tmp_path / "tiny", change)
    path = zipped(root, tmp_path / "tiny.zip") if packed else root
    with pytest.raises(DataError, match=message) as error:
        open_source("tiny_imagenet", split="test", data_dir=str(tmp_path / "data"), path=str(path))
    assert "\n" not in str(error.value)


def test_missing_pictures_are_counted(official_layout, tmp_path, caplog):
    root = damaged(official_layout, tmp_path / "tiny", lambda root: (root / "val" / "images" / "val_0.JPEG").unlink())
    with caplog.at_level(logging.WARNING):
        source = open_source("tiny_imagenet", split="test", data_dir=str(tmp_path / "data"), path=str(root))
    assert len(source) == 2
    assert "holds 2 of the 3 validation pictures of its classes" in caplog.text
    assert "holds pictures of 3 of its 4 classes" in caplog.text


def test_a_damaged_file_in_a_zip_is_named(official_layout, tmp_path):
    path = zipped(official_layout, tmp_path / "tiny.zip")
    content = path.read_bytes()
    place = content.index(b"crane")
    path.write_bytes(content[:place] + b"CRANE" + content[place + 5 :])
    with pytest.raises(DataError, match=r"'words.txt' of '.*' is damaged"):
        open_source("tiny_imagenet", split="test", data_dir=str(tmp_path / "data"), path=str(path))


def test_a_path_that_does_not_exist_is_refused(data_dir):
    with pytest.raises(DataError, match=r"path='nowhere\.zip' does not exist"):
        open_source("tiny_imagenet", split="test", data_dir=data_dir, path="nowhere.zip")


@pytest.mark.skipif(not SUBSET.exists(), reason=f"no {SUBSET.name} beside the checkout")
def test_twenty_classes_of_the_official_zip_load_as_in200(tmp_path):
    whole = open_source("tiny_imagenet", split="test", data_dir=str(tmp_path), path=str(SUBSET))
    assert (whole.images.shape, whole.num_classes) == ((1000, 64, 64, 3), 20)
    assert np.bincount(whole.labels).tolist() == [50] * 20
    assert whole.class_names[0] == "goldfish"
