"""A disk that fills up at any moment: one sentence, last and alone; with room again, the same command goes on.

Once with errors that Python's own file operations raise from a chosen change on, once on a real file system without
room, where also what writes below Python fails. `METAMASK_FAULTS=all` takes every change and every size there is.
"""

import errno
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.faults.conftest import Bench, assert_nothing_lost, places, saved_steps, spread
from tests.faults.nursery import Ended

PLACES = {"pretrain": 12, "evaluate": 3, "diagnostics": 3, "report": 1, "experiments": 3}
NO_ROOM = os.strerror(errno.ENOSPC)
PAGE = 4096
# Of a full disk before the last line: features that are not kept, and the line of a grid about its cell.
REMARKS = re.compile(r"features are (held in memory|not kept): |\[\d+/\d+\] ")


def assert_one_sentence(ended: Ended) -> None:
    assert ended.code in (1, 2), ended
    *before, last = ended.said.rstrip("\n").split("\n")
    assert NO_ROOM in last, ended.said
    assert "Traceback" not in ended.said, ended.said
    assert not [line for line in before if NO_ROOM in line and not REMARKS.match(line)], ended.said


@pytest.mark.slow
@pytest.mark.parametrize("command", PLACES)
def test_no_room_from_any_change_on(command, bench: Bench, request, tmp_path):
    whole, poor = tmp_path / "whole" / "run", tmp_path / "poor" / "run"
    if command not in ("pretrain", "experiments"):
        for workdir in (whole, poor):
            shutil.copytree(request.getfixturevalue("finished"), workdir)
    undisturbed = bench.run(command, whole)
    assert undisturbed.code == 0, undisturbed.said
    growing = [place for place in places(undisturbed) if place[0].startswith(("open ", "os.mkdir", "os.link"))]
    for place in spread(growing, PLACES[command]):
        before = saved_steps(poor)
        assert_one_sentence(bench.run(command, poor, full_at=place))
        assert saved_steps(poor)[-1:] >= before[-1:]
    ended = bench.run(command, poor)
    assert ended.code == 0, ended.said
    assert_nothing_lost(poor, whole)


@pytest.fixture
def small_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system of eight megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a file system can only be mounted by root")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.slow
def test_a_disk_that_is_really_full(small_disk: pathlib.Path, bench: Bench, finished):
    """A little more room every time, each time to the last page of it."""
    workdir, filler = small_disk / "run", small_disk / "filler"
    sizes, failed = range(0, 200, 4 if os.environ.get("METAMASK_FAULTS") == "all" else 14), 0
    for pages in sizes:
        fill(filler, leave=pages)
        before = saved_steps(workdir)
        ended = bench.run("pretrain", workdir)
        if ended.code == 0:
            break
        failed += 1
        assert_one_sentence(ended)
        assert saved_steps(workdir)[-1:] >= before[-1:]
    assert failed >= 4
    filler.unlink(missing_ok=True)
    ended = bench.run("pretrain", workdir)
    assert ended.code == 0, ended.said
    assert_nothing_lost(workdir, finished)


def fill(path: pathlib.Path, *, leave: int) -> None:
    """Makes a file of everything that is free on its disk but for some pages."""
    path.unlink(missing_ok=True)
    disk = os.statvfs(path.parent)
    pages = disk.f_bavail * disk.f_frsize // PAGE - leave
    path.write_bytes(bytes(max(0, pages) * PAGE))
