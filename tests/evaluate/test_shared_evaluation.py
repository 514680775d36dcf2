"""Evaluation by two real processes, joined over loopback: each has a part of the rows, all find what one would find."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from metamask_jax.evaluate.minibatch_probe import own_rows_of
from metamask_jax.evaluate.sharding import Share
from tests.test_resilience import free_port

ROOT = pathlib.Path(__file__).parents[2]
PROTOCOLS = "knn_official,linear_10,linear_augmented,finetune_10"


def started(command: list[str], *, devices: int) -> subprocess.Popen[str]:
    flags = os.environ["XLA_FLAGS"].replace("device_count=4", f"device_count={devices}")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": flags}
    return subprocess.Popen(
        [sys.executable, *command], env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finished(processes: list[subprocess.Popen[str]]) -> list[str]:
    """What they printed."""
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    return [out for out, _ in outputs]


@pytest.mark.slow
def test_two_processes_find_what_one_finds_and_share_the_work(pretrained: pathlib.Path, tmp_path: pathlib.Path) -> None:
    port = str(free_port())
    worker = ["-m", "tests.evaluate.shared_worker", port]
    finished(
        [started([*worker, "2", str(i), str(pretrained), str(tmp_path / f"{i}.npz")], devices=2) for i in range(2)]
        + [started([*worker, "1", "0", str(pretrained), str(tmp_path / "alone.npz")], devices=2)]
    )
    expected, *found = (dict(np.load(tmp_path / f"{name}.npz")) for name in ("alone", "0", "1"))
    assert {int(one["computed"]) for one in found} == {int(expected["computed"]) // 2}
    for one in found:
        for name, value in expected.items():
            if name == "computed" or name == "total":
                continue
            if name.startswith("sent") or "indices" in name or value.dtype.kind in "bU":
                np.testing.assert_array_equal(one[name], value, err_msg=name)
            else:  # what LBFGS ends at depends on rounding more than anything else
                tolerance = 1e-2 if name == "linear scores" else 1e-5
                np.testing.assert_allclose(one[name], value, rtol=1e-4, atol=tolerance, err_msg=name)
        assert one["total"] == [(2 + 6) / 3]  # the last numbers of both parts
    for name in ("linear", "knn", "linear scores", "sgd scores ()"):  # each process found the same bits
        np.testing.assert_array_equal(found[0][name], found[1][name])


@pytest.mark.slow
def test_the_command_evaluates_with_two_processes(pretrained: pathlib.Path, tmp_path: pathlib.Path) -> None:
    workdirs = {name: shutil.copytree(pretrained, tmp_path / name) for name in ("alone", "together")}
    flags = ["run_linear.py", f"--protocol={PROTOCOLS}", "--augmented-epochs=1"]
    joined = [f"--coordinator=127.0.0.1:{free_port()}", "--processes=2"]
    together = [
        started([*flags, f"--workdir={workdirs['together']}", *joined, f"--process={i}"], devices=2) for i in range(2)
    ]
    out, silent = finished(together)
    finished([started([*flags, f"--workdir={workdirs['alone']}"], devices=4)])
    assert "knn_official" in out
    assert "knn_official" not in silent
    expected, found = (
        {(entry["protocol"], entry["features"]): entry for entry in json.loads(path.read_text())["results"]}
        for path in (workdirs[name] / "evaluation.json" for name in ("alone", "together"))
    )
    assert found.keys() == expected.keys()
    for key, entry in expected.items():
        assert found[key]["chosen"] == entry["chosen"], key
        assert abs(found[key]["top1"] - entry["top1"]) <= 1.01 / 96, key  # one test image, on the edge of two classes
        assert found[key]["test_size"] == entry["test_size"] == 96
    kept = sorted(path.stem[-4:] for path in (workdirs["together"] / "features").iterdir())
    assert kept == ["0of2", "0of2", "1of2", "1of2"]


@pytest.mark.parametrize("devices", [1, 3])
def test_processes_split_batches_between_them_by_whose_rows_they_are(devices: int) -> None:
    batches = np.random.default_rng(0).permutation(60)[:56].reshape(7, 8)
    ends = np.array([10, 10, 60])  # one process has no rows
    parts = [own_rows_of(batches, Share(ends, index), devices) for index in range(3)]
    assert len({rows.shape for rows, _ in parts}) == 1
    assert all(rows.shape[1] % devices == 0 for rows, _ in parts)
    starts = [0, 10, 10]
    for step, batch in enumerate(batches):
        seen = [rows[step][there[step]] + start for (rows, there), start in zip(parts, starts, strict=True)]
        assert sorted(np.concatenate(seen)) == sorted(batch)
        assert not len(seen[1])


def test_one_process_has_its_batches_in_their_order() -> None:
    batches = np.random.default_rng(0).permutation(60)[:56].reshape(7, 8)
    rows, there = own_rows_of(batches, Share(np.array([60]), 0), 4)
    assert there.all()
    np.testing.assert_array_equal(rows, batches)
