"""What a bucket is for a run: a place with the manners of a folder, in emulators on this machine."""

import contextlib
import importlib.util
import os
import threading

import numpy as np
import pytest

from metamask_jax.cli import diagnostics, doctor, evaluate, experiments, export, prepare, preview, report
from metamask_jax.cli.pretrain import main as pretrain_command
from metamask_jax.config import to_json
from metamask_jax.core import bucket as bucket_module
from metamask_jax.core.bucket import BucketError
from metamask_jax.core.mirror import Mirror
from metamask_jax.core.places import to_place
from metamask_jax.core.storage import local_copy, replacing, write_atomically
from metamask_jax.errors import ConfigError, DataError
from metamask_jax.training import lock, lock_files
from metamask_jax.training.checkpoint import Checkpoints
from metamask_jax.training.lock import WorkdirLock
from metamask_jax.training.saved_steps import has_checkpoints
from metamask_jax.training.workdir import check_workdir, claimed_workdir
from tests.tiny import tiny_config

URLS = ["gs:/runs/x", "http://runs/x", "gs://", "s3:///x", "gs://runs/../x"]


@pytest.fixture
def folder(bucket, request):
    """A place in the bucket that no other test has."""
    return to_place(f"{bucket.url}/{request.node.name.replace('[', '-').rstrip(']')}")


def test_a_place_in_a_bucket_has_the_manners_of_a_folder(folder):
    assert not folder.exists()
    folder.mkdir(parents=True)
    assert not folder.is_dir()
    write_atomically(folder / "a.json", "{}")
    (folder / "deep" / "b").write_bytes(b"b")
    assert folder.is_dir()
    assert not folder.is_file()
    assert (folder / "a.json").is_file()
    assert (folder / "a.json").read_text() == "{}"
    assert [path.name for path in folder.iterdir()] == ["a.json", "deep"]
    assert list(folder.glob("*.json")) == [folder / "a.json"]
    assert str((folder / "deep" / "b").relative_to(folder)) == "deep/b"
    (folder / "deep").rename(folder / "aside")
    assert [path.name for path in folder.iterdir()] == ["a.json", "aside"]
    assert (folder / "aside" / "b").read_bytes() == b"b"
    for act in (lambda: (folder / "none").read_bytes(), lambda: (folder / "none").unlink()):
        with pytest.raises(FileNotFoundError):
            act()
    (folder / "none").unlink(missing_ok=True)


@pytest.mark.parametrize("bucket", ["gs"], indirect=True)  # S3 sends a checksum along, which its client compares
@pytest.mark.parametrize(("times", "came"), [(2, True), (3, False)])
def test_an_object_of_which_a_part_came_is_asked_for_again(times, came, folder, bucket, tmp_path, monkeypatch):
    content, cut = b"0123456789" * 300, []
    (folder / "object").write_bytes(content)

    def shortened(method, path, answer):
        if method == "GET" and answer == content and len(cut) < times:
            cut.append(path)
            return answer[:1000]
        return answer

    monkeypatch.setattr(bucket, "answered", shortened)
    if came:
        (folder / "object").download(tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == content
    else:
        with pytest.raises(BucketError, match=r"object has 3000 bytes, and 1000 came$"):
            (folder / "object").download(tmp_path / "file")
    assert len(cut) == times


def test_what_is_written_in_a_block_appears_when_the_block_ends_well(folder):
    with replacing(folder / "array.npz") as path, path.open("wb") as file:
        np.savez(file, x=np.arange(3))
        assert not folder.exists()
    with local_copy(folder / "array.npz") as copy, np.load(copy) as file:
        assert file["x"].tolist() == [0, 1, 2]
    with contextlib.suppress(RuntimeError), replacing(folder / "other") as path:
        path.write_bytes(b"half")
        raise RuntimeError
    assert not (folder / "other").exists()


def test_only_one_of_several_creates_an_object(folder):
    made: list[int] = []
    threads = [
        threading.Thread(target=lambda i=i: (folder / "x").create(b"%d" % i) and made.append(i)) for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert (folder / "x").read_bytes() == b"%d" % made[0]


def test_a_bucket_that_is_not_there_is_not_made(bucket):
    place = to_place(f"{bucket.scheme}://nothing/run")
    place.mkdir(parents=True, exist_ok=True)
    for write in (lambda: place.write_bytes(b""), lambda: place.create(b"")):
        with pytest.raises(BucketError, match=rf"there is no bucket {bucket.scheme}://nothing$"):
            write()
    assert not place.exists()


def test_a_refused_write_is_tried_again(bucket, folder, monkeypatch, caplog):
    monkeypatch.setattr(bucket_module, "_PAUSE", 0.01)
    attempts = []

    def put(data):
        attempts.append(data)
        if len(attempts) < 3:
            raise BucketError("refused")

    assert bucket_module.patiently(lambda: put(b"x"), folder) is None
    assert len(attempts) == 3
    assert "tried again" in caplog.text
    monkeypatch.setattr(bucket_module, "_PATIENCE", 0.0)
    attempts.clear()
    with pytest.raises(BucketError):
        bucket_module.patiently(lambda: put(b"x"), folder)


@pytest.mark.slow
@pytest.mark.parametrize("bucket", ["s3"], indirect=True)  # Google's client itself asks for half a minute
def test_a_bucket_that_refuses_for_longer_than_its_client_asks_is_asked_again(bucket, folder, monkeypatch):
    monkeypatch.setattr(bucket_module, "_PAUSE", 0.01)
    refusals = []

    def put():
        try:
            folder.put(b"x")
        except BucketError as error:
            refusals.append(error)
            bucket.refusing = False
            raise

    bucket.refusing = True
    try:
        bucket_module.patiently(put, folder)
    finally:
        bucket.refusing = False
    assert [error.final for error in refusals] == [False]
    assert folder.read_bytes() == b"x"


def test_growing_files_are_uploaded_whole_and_go_on_where_they_were(folder):
    for text in (b"one\n", b"two\n"):
        mirror = Mirror(folder)
        with mirror.continued("log").open("ab") as file:
            file.write(text)
        (mirror.folder / "events").mkdir()
        (mirror.folder / "events" / text.decode().strip()).write_bytes(text)
        mirror.upload()
        assert (folder / "log").read_bytes().endswith(text)
        mirror.close()
        assert not mirror.folder.exists()
    assert (folder / "log").read_bytes() == b"one\ntwo\n"
    assert [path.name for path in (folder / "events").iterdir()] == ["one", "two"]


def test_a_local_place_is_its_own_mirror(tmp_path):
    mirror = Mirror(tmp_path)
    assert mirror.continued("log") == tmp_path / "log"
    mirror.upload()
    mirror.close()
    assert tmp_path.exists()


def test_the_lock_of_a_bucket(bucket, folder, monkeypatch):
    monkeypatch.setattr(lock, "_BEAT", 0.02)
    monkeypatch.setattr(lock, "_SILENCE", 0.5)
    monkeypatch.setattr(lock_files, "_SETTLED", 0.05)
    with WorkdirLock(folder) as held:
        with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
            WorkdirLock(folder)
        monkeypatch.setattr(lock, "_is_here", lambda found: False)  # as if seen from another machine
        with pytest.raises(ConfigError, match="in use"):
            WorkdirLock(folder)
        held.check()
        held._stopped.set()
        held._thread.join()  # as if its machine had died
        with WorkdirLock(folder) as taken:
            taken.check()
            with pytest.raises(lock.TrainingError, match=f"has taken over {bucket.url}"):
                held.check()
            held._file.beat(held._mine)
            taken.check()
    assert not (folder / ".lock").exists()


def saved(folder, *steps):
    """Checkpoints of a few numbers."""
    checkpoints = Checkpoints(folder / "checkpoints", keep_last=9, keep_every=None, keep_best=True)
    for step in steps:
        checkpoints.save(step, {"x": np.arange(5.0) + step}, config="{}")
    checkpoints.wait()
    return checkpoints


def test_a_damaged_checkpoint_in_a_bucket_is_set_aside_and_the_one_before_is_taken(folder):
    checkpoints, like = saved(folder, 1, 2, 3), {"x": np.zeros(5)}
    checkpoints.rate(1, 0.5)
    checkpoints.rate(2, 0.25)
    assert checkpoints.best_step() == 1
    write_atomically(folder / "checkpoints" / "3" / "state" / "manifest.ocdbt", b"damaged")
    found = checkpoints.restore_latest(like)
    assert found.step == 2
    np.testing.assert_array_equal(found.state["x"], np.arange(5.0) + 2)
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"1", "2", "3.damaged"}
    checkpoints.close()


def test_a_checkpoint_in_a_bucket_without_its_last_object_does_not_count(folder):
    saved(folder, 1).close()
    assert has_checkpoints(folder / "checkpoints")
    (folder / "checkpoints" / "1" / "commit_success.txt").unlink()
    assert not has_checkpoints(folder / "checkpoints")
    assert Checkpoints.for_reading(folder / "checkpoints").steps() == []
    checkpoints = saved(folder, 1)  # which clears away what a kill has left
    assert checkpoints.steps() == [1]
    checkpoints.close()


def test_a_restart_in_a_bucket_keeps_what_is_there(folder):
    saved(folder, 1).close()
    write_atomically(folder / "metrics.jsonl", '{"step": 1}')
    config = tiny_config()
    write_atomically(folder / "config.json", to_json(tiny_config({"train.seed": "1"})))
    with pytest.raises(ConfigError, match="was started with another configuration"):
        check_workdir(folder, config, accept_changes=False, restart=False)
    with claimed_workdir(folder, config, accept_changes=False, restart=True):
        assert {path.name for path in folder.iterdir()} == {".lock", "config.json", "previous-1"}
    assert Checkpoints.for_reading(folder / "previous-1" / "checkpoints").steps() == [1]


@pytest.mark.parametrize("name", URLS)
def test_a_url_never_becomes_a_local_folder(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="expected a local path, gs://BUCKET/FOLDER or s3://BUCKET/FOLDER"):
        to_place(name)
    commands = [
        (pretrain_command, ["--workdir", name]),
        *((command.main, ["--workdir", name]) for command in (evaluate, diagnostics, report, doctor)),
        (export.main, ["--workdir", "runs/x", "--out", name]),
        (evaluate.main, ["--compare", name]),
    ]
    for command, flags in commands:
        assert command(flags) == 2
        assert "; expected a local path, gs://BUCKET/FOLDER" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_can_only_be_local_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = "gs://runs/data"
    for command, flags in (
        (preview.main, ["--out", name]),
        (experiments.main, ["F8", "--out", name]),
        (experiments.main, ["F8", "--data-dir", name]),
        (evaluate.main, ["--workdir", "x", "--data-dir", name]),
        (prepare.main, ["cifar10", "--data-dir", name]),
    ):
        assert command(flags) == 2
        assert f"{name}; expected a path on this machine" in capsys.readouterr().err
    from metamask_jax.data.sources import open_source

    with pytest.raises(DataError, match="expected a folder on this machine"):
        open_source("confounded_shapes", split="train", data_dir=name)
    with pytest.raises(DataError, match="expected pictures on this machine"):
        open_source("image_folder", split="train", data_dir=str(tmp_path), path=name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "package", "extra"), [("gs://b/run", "gcsfs", "gcs"), ("s3://b/run", "s3fs", "s3")])
def test_a_missing_package_is_named_with_the_command(name, package, extra, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"needs {package}.*pip install 'metamask_jax\[{extra}\]'"):
        to_place(name)
