"""SIGKILL just before a change to a file: whatever was going on, the same command goes on as if nothing had happened.

Every command has a chain: killed at one place, started again, killed at a later one, and so on to the end. What it
leaves is compared bit for bit with what it leaves undisturbed. `METAMASK_FAULTS=all` kills at every change there is.
"""

import collections
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.faults.conftest import Bench, assert_nothing_lost, places, saved_steps, spread
from tests.faults.nursery import ROOT

KILLS = {"pretrain": 30, "evaluate": 6, "diagnostics": 4, "report": 2, "experiments": 10}
RESUMED = re.compile(r"resuming from the checkpoint after step (\d+)")
PHASES = {  # of pretraining, by what is being written
    "in the first save": r"checkpoints/2\.orbax",
    "in evaluation": r"metric\.json|tensorboard",
    "in later saves": r"checkpoints/",
    "in the report": r"result\.json|report\.|remove \.lock",
    "at start": "",
}
fell: collections.Counter[str] = collections.Counter()


@pytest.fixture(scope="module", autouse=True)
def told(request):
    """Says at the end how many kills there were, and where they fell."""
    yield
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{sum(fell.values())} kills:", ", ".join(f"{count} {where}" for where, count in fell.items()))


@pytest.mark.slow
@pytest.mark.parametrize("command", KILLS)
def test_kills_leave_no_trace(command, bench: Bench, request, tmp_path):
    undisturbed, killed = tmp_path / "undisturbed" / "run", tmp_path / "killed" / "run"
    if command not in ("pretrain", "experiments"):
        for workdir in (undisturbed, killed):
            shutil.copytree(request.getfixturevalue("finished"), workdir)
    whole = bench.run(command, undisturbed)
    assert whole.code == 0, whole.said
    for place in spread(places(whole), KILLS[command]):
        kill(bench, command, killed, place)
    ended = bench.run(command, killed)
    assert ended.code == 0, ended.said
    assert_nothing_lost(killed, undisturbed)


def kill(bench: Bench, command: str, workdir: pathlib.Path, place) -> None:
    """Kills a command at a place, which it must come to; it goes on from the newest checkpoint that is whole."""
    before = saved_steps(workdir)
    ended = bench.run(command, workdir, kill_at=place)
    assert ended.code == -signal.SIGKILL, (place, ended.code, ended.said)
    assert "Traceback" not in ended.said
    if command == "pretrain":
        resumed = RESUMED.search(ended.said)
        assert resumed is None or [int(resumed[1])] == before[-1:]
        assert saved_steps(workdir)[-1:] >= before[-1:]
        fell[next(name for name, written in PHASES.items() if re.search(written, place[0]))] += 1
    else:
        fell[f"in {command}"] += 1


@pytest.mark.slow
def test_killed_in_the_instant_before_a_checkpoint_is_whole_the_one_before_counts(bench: Bench, finished, tmp_path):
    workdir = tmp_path / "run"
    kill(bench, "pretrain", workdir, ("os.rename checkpoints/4.orbax-checkpoint-tmp checkpoints/4", 0))
    assert saved_steps(workdir) == [2]
    logged = (workdir / "metrics.jsonl").read_text().count("\n")
    assert logged >= 3  # no line is lost with the process
    ended = bench.run("pretrain", workdir)
    assert ended.code == 0, ended.said
    assert RESUMED.search(ended.said)[1] == "2"
    assert_nothing_lost(workdir, finished)


@pytest.mark.slow
def test_killed_while_it_starts(bench: Bench, finished, tmp_path):
    """The real script, before it has come to any file: nothing is there, and the next one begins."""
    workdir = tmp_path / "run"
    for seconds in (0.2, 0.7, 1.2):
        command = [sys.executable, ROOT / "run_pretrain.py", f"--config={bench.folder / 'config.py'}"]
        process = subprocess.Popen([*command, f"--workdir={workdir}"], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        time.sleep(seconds)
        process.kill()
        assert process.communicate()[1] == ""
        fell["at start"] += 1
        assert not workdir.exists()
    assert bench.run("pretrain", workdir).code == 0
    assert_nothing_lost(workdir, finished)
