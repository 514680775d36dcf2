"""Folders of pictures and workdirs in any condition: what can be used is used, the rest is one sentence.

Hypothesis draws them. No case may end in a traceback or a hang, nor change or lose a file.
"""

import io
import os
import pathlib
import shutil
import stat
import tempfile

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from metamask_jax.cli import doctor, report
from metamask_jax.data import open_source
from metamask_jax.errors import CheckpointError, ConfigError, DataError
from metamask_jax.evaluate.workdir import load_run
from metamask_jax.training.checkpoint import Checkpoints
from metamask_jax.training.state import init_state
from metamask_jax.training.workdir import check_workdir
from tests.tiny import tiny_config

DRAWN = (Phase.explicit, Phase.generate)  # a smaller example would take minutes to find
few = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, phases=DRAWN)
fewer, many = settings(few, max_examples=4), settings(few, max_examples=150)
NAMES = ["a", "b", "c d", "train", "test", "Val", ".hidden", "é漢", "x\ny", " ", "-", "~", "a.png", "\udcff", "n" * 99]
SUFFIXES = [".png", ".PNG", ".jpg", ".txt", "", ".png.tmp"]


def picture(shade, kind="PNG", size=(9, 8)):
    file = io.BytesIO()
    Image.fromarray(np.full((*size, 3), shade, np.uint8)).save(file, kind)
    return file.getvalue()


CONTENTS = {
    "picture": picture(100),
    "JPEG": picture(100, "JPEG"),
    "large": picture(100, size=(90, 70)),
    "one pixel": picture(100, size=(1, 1)),
    "cut off": picture(100)[:60],
    "empty": b"",
    "text": b"not a picture",
    "bomb": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\x7f\xff\xff\xff\x7f\xff\xff\xff\x08\x02\0\0\0" + b"\0" * 30,
}
KINDS = [*CONTENTS, *["picture"] * 4, "folder", "pipe", "dangling link", "link to itself", "link to the root"]
trees = st.lists(
    st.tuples(st.lists(st.sampled_from(NAMES), max_size=3), st.sampled_from(NAMES), st.sampled_from(SUFFIXES)).flatmap(
        lambda place: st.tuples(st.just(place), st.sampled_from(KINDS))
    ),
    max_size=8,
)


def plant(root, place, kind):
    """Puts something into a tree, where the place is free."""
    folders, name, suffix = place
    path = root.joinpath(*folders, name + suffix)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or path.exists():
            return
        if kind in CONTENTS:
            path.write_bytes(CONTENTS[kind])
        elif kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to({"dangling link": "nowhere", "link to itself": path, "link to the root": root}[kind])
    except OSError:
        pass  # a file is in the way, or the name is too long


def snapshot(root):
    """Everything below a folder: what it is, and what is in it."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = pathlib.Path(folder, name)
            mode = path.lstat().st_mode
            found[str(path.relative_to(root))] = (stat.S_IFMT(mode), path.read_bytes() if stat.S_ISREG(mode) else None)
    return found


def one_sentence(action):
    """What an action gives, or None where it refuses; whatever else it raises is a failure."""
    try:
        return action()
    except (ConfigError, DataError, CheckpointError) as error:
        message = str(error)
    assert message, message
    assert "\n" not in message, message
    assert len(message) < 1500, message
    return None


def check_pictures(tree):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder, "pictures")
        root.mkdir()
        for place, kind in tree:
            plant(root, place, kind)
        before = snapshot(root)
        where = {"data_dir": f"{folder}/data", "path": str(root), "image_size": 8}
        source = one_sentence(lambda: open_source("image_folder", split="train", **where))
        assert snapshot(root) == before
        if source is not None:
            assert len(source) > 0
            images, labels = source.gather(np.arange(len(source)))
            assert images.shape[1:] == (8, 8, 3)
            assert all(-1 <= label < max(1, source.num_classes) for label in labels)


@few
@given(trees)
@example([((["a"], "1", ".png"), "picture"), ((["a"], "2", ".png"), "pipe"), ((["b"], "3", ".png"), "picture")])
@example([((["a"], "1", ".png"), "bomb"), ((["a"], "2", ".png"), "picture"), ((["b"], "3", ".png"), "folder")])
def test_any_folder_of_pictures_is_a_set_or_one_sentence(tree):
    check_pictures(tree)


@pytest.mark.slow
@many
@given(trees)
def test_any_of_many_folders_of_pictures_is_a_set_or_one_sentence(tree):
    check_pictures(tree)


DAMAGES = ["gone", "empty", "cut off", "flipped", "noise", "a folder", "a dangling link", "text"]
damages = st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(DAMAGES)), min_size=1, max_size=4)


def damage(workdir, which, how):
    """Damages one of the files of a workdir."""
    files = sorted(path for path in workdir.rglob("*") if path.is_file() and not path.is_symlink())
    if not files:
        return
    path = files[which % len(files)]
    content = path.read_bytes()
    path.unlink()
    middle = len(content) // 2
    if how in ("empty", "cut off", "flipped", "noise", "text"):
        flipped = content[:middle] + bytes(byte ^ 0x55 for byte in content[middle : middle + 8]) + content[middle + 8 :]
        path.write_bytes(
            {"empty": b"", "cut off": content[:middle], "flipped": flipped, "text": b"{}\n"}.get(how, bytes(range(256)))
        )
    elif how == "a folder":
        path.mkdir()
    elif how == "a dangling link":
        path.symlink_to("nowhere")


def check_workdirs(whole, harm):
    config = tiny_config()
    with tempfile.TemporaryDirectory() as folder:
        workdir = pathlib.Path(shutil.copytree(whole, pathlib.Path(folder, "run")))
        for which, how in harm:
            damage(workdir, which, how)
        before = snapshot(workdir)
        assert one_sentence(lambda: doctor.examine(workdir)) is not None
        one_sentence(lambda: check_workdir(workdir, config, accept_changes=True, restart=False))
        for step in ("last", "best", 4):
            one_sentence(lambda step=step: load_run(workdir, step=step))
        assert snapshot(workdir) == before
        assert report.main([f"--workdir={workdir}"]) in (0, 2)
        before["report.html"] = snapshot(workdir).get("report.html")
        if (workdir / "checkpoints").is_dir():
            resume(workdir, config)
        contents = sorted(map(repr, (value for value in before.values() if value and value[1])))
        assert [found for found in contents if found not in set(map(repr, snapshot(workdir).values()))] == []


def resume(workdir, config):
    """As a run begins; damaged checkpoints may be set aside, by another name."""
    checkpoints = Checkpoints(workdir / "checkpoints", keep_last=3, keep_every=None, keep_best=True)
    like = jax.eval_shape(lambda: init_state(config))
    one_sentence(lambda: checkpoints.restore_latest(like))
    checkpoints.close()


@fewer
@given(damages)
def test_any_workdir_is_used_or_refused_and_nothing_is_lost(whole_workdir, harm):
    check_workdirs(whole_workdir, harm)


@pytest.mark.slow
@settings(many, max_examples=30)
@given(damages)
def test_any_of_many_workdirs_is_used_or_refused_and_nothing_is_lost(whole_workdir, harm):
    check_workdirs(whole_workdir, harm)
