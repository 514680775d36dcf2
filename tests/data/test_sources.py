import json
import os
import pathlib
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest

from metamask_jax.cli import prepare
from metamask_jax.data import ArraySource, open_source, prepared
from metamask_jax.data.sources import _split_of_role
from metamask_jax.errors import DataError
from tests.data.conftest import SHAPES


@pytest.fixture(scope="module")
def own_dir(data_dir, tmp_path_factory):
    """A copy of the prepared shapes that a test may change: without checksums, as tfds alone would have left it."""
    open_source("confounded_shapes", split="train", data_dir=data_dir, **SHAPES)
    copy = tmp_path_factory.mktemp("own") / "data"
    shutil.copytree(data_dir, copy)
    for path in copy.glob("confounded_shapes/*/*/checksums.json"):
        path.unlink()
    return copy


def test_the_second_start_reads_the_decoded_arrays_without_importing_tfds(data_dir):
    source = open_source("confounded_shapes", split="train", data_dir=data_dir, **SHAPES)
    program = f"""
import sys
from metamask_jax.data import open_source
source = open_source("confounded_shapes", split="train", data_dir={data_dir!r}, **{SHAPES})
heavy = {{"tensorflow", "tensorflow_datasets", "PIL", "grain"}}
print(source.images.sum(dtype=int), sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"{source.images.sum(dtype=int)} []\n"


def test_preparing_and_opening_our_own_set_never_imports_tensorflow(tmp_path):
    program = f"""
import sys
from metamask_jax.data import open_source
source = open_source("confounded_shapes", split="pretrain", data_dir={str(tmp_path)!r}, train_size=5, test_size=5)
print(source.images.shape, [name in sys.modules for name in ("tensorflow_datasets", "tensorflow")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "(5, 32, 32, 3) [True, False]"


def test_size_keeps_the_first_pictures_and_their_factors(data_dir):
    whole = open_source("confounded_shapes", split="train", data_dir=data_dir, **SHAPES)
    part = open_source("confounded_shapes", split="train", data_dir=data_dir, size=7, **SHAPES)
    assert len(part) == 7
    np.testing.assert_array_equal(part.images, whole.images[:7])
    np.testing.assert_array_equal(part.labels, whole.labels[:7])
    np.testing.assert_array_equal(part.factors["scale"], whole.factors["scale"][:7])


@pytest.mark.parametrize("size", [0, 61])
def test_a_size_the_set_does_not_have_is_refused(data_dir, size):
    with pytest.raises(DataError, match=rf"size={size}; expected 1 to 60"):
        open_source("confounded_shapes", split="train", data_dir=data_dir, size=size, **SHAPES)


def test_a_slice_of_a_split_is_that_part_of_it(data_dir):
    whole = open_source("confounded_shapes", split="train", data_dir=data_dir, **SHAPES)
    part = open_source("confounded_shapes", split="train[50%:]", data_dir=data_dir, **SHAPES)
    np.testing.assert_array_equal(part.images, whole.images[30:])


def test_a_split_the_set_does_not_have_is_refused_by_name(data_dir):
    with pytest.raises(DataError, match="split='validation'; expected one of 'train', 'test' of 'confounded_shapes'"):
        open_source("confounded_shapes", split="validation", data_dir=data_dir, **SHAPES)


@pytest.mark.parametrize(
    ("name", "splits", "role", "expected"),
    [
        ("stl10", ("train", "test", "unlabelled"), "pretrain", "unlabelled"),
        ("stl10", ("train", "test", "unlabelled"), "train", "train"),
        ("imagenet2012", ("train", "validation", "test"), "pretrain", "train"),
        ("imagenet2012", ("train", "validation", "test"), "test", "validation"),
        ("imagenette", ("train", "validation"), "test", "validation"),
        ("cifar10", ("train", "test"), "test", "test"),
        ("cifar10", ("train", "test"), "train[:10%]", "train[:10%]"),
    ],
)
def test_roles_name_the_right_split_of_each_set(name, splits, role, expected):
    found = prepared.Prepared(pathlib.Path(), name, dict.fromkeys(splits, 1), "")
    assert _split_of_role(found, role) == expected


def test_a_role_the_set_cannot_fill_is_refused():
    with pytest.raises(DataError, match="split='test'; 'photos' has only 'train'"):
        _split_of_role(prepared.Prepared(pathlib.Path(), "photos", {"train": 1}, ""), "test")


def test_an_unknown_option_is_refused_with_the_known_ones(data_dir):
    with pytest.raises(DataError, match=r"'strenght' is no option of 'confounded_shapes'; expected one of .*strength"):
        open_source("confounded_shapes", split="train", data_dir=data_dir, strenght=0.5)


def test_cropping_options_of_a_set_of_one_size_are_refused(data_dir):
    with pytest.raises(DataError, match="views=2; 'confounded_shapes' has pictures of one size, 32"):
        open_source("confounded_shapes", split="train", data_dir=data_dir, views=2, **SHAPES)


def test_a_missing_dataset_says_what_to_run(tmp_path, monkeypatch):
    monkeypatch.setattr(prepared.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError) as error:
        open_source("stl10", split="pretrain", data_dir=str(tmp_path))
    assert "pip install 'metamask_jax[prepare]'" in str(error.value)
    assert f"python -m metamask_jax.cli.prepare stl10 --data_dir={tmp_path}" in str(error.value)


def test_a_dataset_that_tfds_does_not_know_is_refused_as_such(tmp_path):
    with pytest.raises(DataError, match="name='cifar1O'; expected"):
        open_source("cifar1O", split="pretrain", data_dir=str(tmp_path))
    with pytest.raises(DataError, match=r"name='\.\./x'; expected a tfds name"):
        open_source("../x", split="pretrain", data_dir=str(tmp_path))


def test_a_failed_preparation_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(prepared.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(prepared.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 1))
    with pytest.raises(DataError, match=r"preparing 'stl10' in .* failed for the reason printed above"):
        open_source("stl10", split="pretrain", data_dir=str(tmp_path))


def test_a_download_from_a_host_that_cannot_be_found_is_refused_at_once(tmp_path, monkeypatch):
    def refuse(host, port):
        raise OSError(f"no route to {host}")

    monkeypatch.setattr("socket.getaddrinfo", refuse)
    infos = {"http://data.example/set.tar": types.SimpleNamespace(filename="set.tar")}
    builder = types.SimpleNamespace(data_dir_root=tmp_path, url_infos=infos, MANUAL_DOWNLOAD_INSTRUCTIONS=None)
    with pytest.raises(DataError, match=r"set\.tar cannot be reached \(no route to data\.example\); put the file into"):
        prepare.check_network(builder)
    (tmp_path / "downloads" / "manual").mkdir(parents=True)
    (tmp_path / "downloads" / "manual" / "set.tar").touch()
    prepare.check_network(builder)


def test_a_set_prepared_as_tfrecord_says_what_to_do(own_dir, tmp_path):
    folder = next(own_dir.glob("confounded_shapes/*/1.0.0"))
    target = tmp_path / "cifar10" / "3.0.2"
    shutil.copytree(folder, target)
    info = json.loads((target / "dataset_info.json").read_text())
    (target / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "tfrecord"}))
    with pytest.raises(DataError, match=r"holds 'tfrecord' files; expected 'array_record'.*prepare cifar10 --data_dir"):
        open_source("cifar10", split="train", data_dir=str(tmp_path))


def test_the_newest_version_is_found_and_a_version_can_be_asked_for(own_dir, tmp_path):
    folder = next(own_dir.glob("confounded_shapes/*/1.0.0"))
    for version in ("1.9.0", "1.10.0"):
        shutil.copytree(folder, tmp_path / "photos" / version)
    assert prepared.find("photos", str(tmp_path)).folder.name == "1.10.0"
    assert prepared.find("photos:1.9.0", str(tmp_path)).folder.name == "1.9.0"
    assert prepared.find("photos:2.0.0", str(tmp_path)) is None


def test_data_prepared_anew_are_decoded_anew(own_dir):
    open_source("confounded_shapes", split="test", data_dir=str(own_dir), **SHAPES)
    before = set(own_dir.glob("decoded/**/images.npy"))
    info = next(own_dir.glob("confounded_shapes/*/1.0.0/dataset_info.json"))
    info.write_text(json.dumps(json.loads(info.read_text()) | {"description": "prepared anew"}))
    open_source("confounded_shapes", split="test", data_dir=str(own_dir), **SHAPES)
    assert len(set(own_dir.glob("decoded/**/images.npy")) - before) == 1


def test_a_folder_that_cannot_be_written_still_serves_its_pictures(own_dir, tmp_path, monkeypatch):
    copy = tmp_path / "data"
    shutil.copytree(own_dir, copy)
    shutil.rmtree(copy / "decoded")
    (copy / "decoded").write_text("in the way: a folder cannot be made here, even by the superuser")
    source = open_source("confounded_shapes", split="train", data_dir=str(copy), **SHAPES)
    original = open_source("confounded_shapes", split="train", data_dir=str(own_dir), **SHAPES)
    np.testing.assert_array_equal(source.images, original.images)


def test_a_kill_while_decoding_leaves_nothing_that_looks_whole(own_dir, monkeypatch):
    shutil.rmtree(own_dir / "decoded")
    monkeypatch.setattr("metamask_jax.data.pictures.decode", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        open_source("confounded_shapes", split="train", data_dir=str(own_dir), **SHAPES)
    monkeypatch.undo()
    assert not [path for path in (own_dir / "decoded").rglob("*") if path.is_file()]
    assert len(open_source("confounded_shapes", split="train", data_dir=str(own_dir), **SHAPES)) == 60


def test_a_second_process_that_decodes_the_same_is_no_error(own_dir, monkeypatch):
    shutil.rmtree(own_dir / "decoded", ignore_errors=True)
    rename = os.rename

    def rename_after_the_other(source, target):
        if not os.path.exists(target):
            shutil.copytree(source, target)
        rename(source, target)

    monkeypatch.setattr("metamask_jax.data.in_memory.os.rename", rename_after_the_other)
    assert len(open_source("confounded_shapes", split="train", data_dir=str(own_dir), **SHAPES)) == 60


def test_a_damaged_picture_in_a_prepared_set_is_named(own_dir, monkeypatch):
    shutil.rmtree(own_dir / "decoded", ignore_errors=True)
    read = prepared.Records.read

    def read_damaged(self, indices):
        features = read(self, indices)
        features[3]["image"].bytes_list.value[0] = features[3]["image"].bytes_list.value[0][:60]
        return features

    monkeypatch.setattr(prepared.Records, "read", read_damaged)
    with pytest.raises(DataError, match="picture 3 of 'train' of 'confounded_shapes' is not a readable picture"):
        open_source("confounded_shapes", split="train", data_dir=str(own_dir), **SHAPES)


def test_a_source_is_frozen(data_dir):
    source = open_source("confounded_shapes", split="test", data_dir=data_dir, **SHAPES)
    assert isinstance(source, ArraySource)
    with pytest.raises(AttributeError):
        source.labels = None
