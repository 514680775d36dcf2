"""One run per working directory: who holds it, and what becomes of a lock that was left behind."""

import json
import logging
import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest

from metamask_jax.errors import ConfigError, TrainingError
from metamask_jax.training import lock
from metamask_jax.training.lock import WorkdirLock, check_free


def leave(folder: pathlib.Path, **changes: object) -> pathlib.Path:
    """A lock as another process would leave it."""
    path = folder / ".lock"
    path.write_text(json.dumps(lock._myself() | {"token": "another"} | changes))
    return path


def test_the_second_run_is_told_who_holds_the_workdir(tmp_path):
    message = rf"{tmp_path} is in use by process {os.getpid()} on .+, started \d{{4}}-.+; expected one run at a time"
    with WorkdirLock(tmp_path):
        with pytest.raises(ConfigError, match=message):
            WorkdirLock(tmp_path)
        with pytest.raises(ConfigError, match=message):
            check_free(tmp_path)
    assert not list(tmp_path.iterdir())
    check_free(tmp_path)
    with WorkdirLock(tmp_path):
        pass


def test_only_one_of_many_that_begin_at_once_gets_the_lock(tmp_path):
    held, refused = [], []

    def begin():
        try:
            held.append(WorkdirLock(tmp_path))
        except ConfigError:
            refused.append(True)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(held), len(refused)) == (1, 7)
    held[0].__exit__(None, None, None)


def test_the_lock_of_a_process_that_died_is_taken_over_saying_so(tmp_path, caplog):
    program = "import os, pathlib, sys; from metamask_jax.training.lock import WorkdirLock;"
    program += "WorkdirLock(pathlib.Path(sys.argv[1])); os._exit(9)"
    process = subprocess.Popen([sys.executable, "-c", program, tmp_path])
    assert process.wait() == 9
    with caplog.at_level(logging.WARNING, "metamask_jax"), WorkdirLock(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
    assert f"was left by process {process.pid} on" in caplog.text


def test_a_process_that_only_has_the_same_number_does_not_hold_it(tmp_path):
    leave(tmp_path, born="1")
    with WorkdirLock(tmp_path):
        pass


def test_another_machine_that_is_heard_of_holds_it(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(lock, "_SILENCE", 60.0)
    path = leave(tmp_path, machine="another", host="far-away", pid=7)
    threading.Timer(0.5, lambda: os.utime(path)).start()
    with (
        caplog.at_level(logging.INFO, "metamask_jax"),
        pytest.raises(ConfigError, match=r"in use by process 7 on far-away"),
    ):
        WorkdirLock(tmp_path)
    assert "if nothing is heard of it for another" in caplog.text
    assert path.exists()


@pytest.mark.parametrize("content", [None, b"", b"\xff"], ids=["another machine", "killed at once", "damaged"])
def test_silence_gives_it_up(tmp_path, monkeypatch, content):
    monkeypatch.setattr(lock, "_SILENCE", 0.5)
    path = leave(tmp_path, machine="another", host="far-away")
    if content is not None:
        path.write_bytes(content)
    began = time.monotonic()
    with WorkdirLock(tmp_path):
        assert time.monotonic() - began < 10
    os.utime(leave(tmp_path, machine="another"), (time.time() - 3600,) * 2)
    with WorkdirLock(tmp_path):  # at once
        pass
    assert not list(tmp_path.iterdir())


def test_a_heartbeat_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_BEAT", 0.05)
    with WorkdirLock(tmp_path):
        path = tmp_path / ".lock"
        os.utime(path, (0, 0))
        end = time.monotonic() + 10
        while path.stat().st_mtime == 0:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_a_run_that_was_taken_for_dead_notices(tmp_path):
    with WorkdirLock(tmp_path) as held:
        held.check()
        path = leave(tmp_path, pid=7)
        with pytest.raises(TrainingError, match=r"process 7 on .* has taken over"):
            held.check()
    assert path.exists()  # the other's
