"""Runs in a bucket, an emulated one on this machine: real processes that are killed and refused."""

import json
import shutil
import signal
import threading
import time

import jax
import numpy as np
import pytest

from metamask_jax.cli import diagnostics, doctor, evaluate, export, report
from metamask_jax.core.places import to_place
from metamask_jax.core.storage import read_json_lines
from metamask_jax.export.encoder import load_encoder
from tests.runs import ended, run, start, start_pair, write_config
from tests.short_runs import final_state, trajectory
from tests.tiny import tiny_config

STEPS = 12
OVERRIDES = {
    "train.steps": str(STEPS),
    "encoder.name": "smooth",
    "method.head": "(6,)",
    "train.batch_size": "32",
    "data.options.train_size": "64",
    "data.options.test_size": "64",
    "log.every_steps": "1",
    "checkpoint.every_steps": "3",
    "checkpoint.keep_last": "2",
    "eval.every_epochs": "3",
    "eval.k": "5",
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("shared"), OVERRIDES)


@pytest.fixture(scope="module")
def uninterrupted(shared):
    """The same run on a disk."""
    code, errors = run(shared, shared / "uninterrupted")
    assert code == 0, errors
    return shared / "uninterrupted"


def assert_same_run(workdir, uninterrupted):
    config = tiny_config(OVERRIDES)
    found, expected = final_state(workdir, config), final_state(uninterrupted, config)
    assert found.step == expected.step == STEPS
    jax.tree.map(np.testing.assert_array_equal, found.state, expected.state)
    assert trajectory(workdir) == trajectory(uninterrupted)
    assert read_json_lines(workdir / "masks.jsonl") == read_json_lines(uninterrupted / "masks.jsonl")
    left = {path.name for path in workdir.iterdir()}
    assert left == {path.name for path in uninterrupted.iterdir()}
    assert {path.name for path in (workdir / "checkpoints").iterdir()} == {
        path.name for path in (uninterrupted / "checkpoints").iterdir()
    }


@pytest.fixture(scope="module")
def refused(shared, bucket):
    """A run whose bucket refuses everything for a while, beginning in the middle of a save."""
    begun = threading.Event()
    bucket.before_write = lambda name: begun.set() if "refused/checkpoints/6/" in name else None
    process = start(shared, f"{bucket.url}/refused", environment=bucket.environment)
    try:
        assert begun.wait(300)
        bucket.refusing, bucket.refused = True, 0
        time.sleep(10.0)  # S3's client gives up before that, Google's does not
    finally:
        bucket.refusing, bucket.before_write = False, lambda name: None
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert bucket.refused > 0
    return f"{bucket.url}/refused"


@pytest.mark.slow
def test_kills_in_the_middle_of_saves_leave_no_trace(shared, bucket, uninterrupted):
    """Each process is killed when it begins to write a certain object of a certain checkpoint, which never comes."""
    workdir = to_place(f"{bucket.url}/killed")
    for step, last in ((3, "3/commit_success.txt"), (6, "manifest.ocdbt")):
        process = start(shared, workdir, environment=bucket.environment)

        def kill(name, process=process, beginning=f"killed/checkpoints/{step}/", end=last):
            if name.startswith(beginning) and name.endswith(end):
                process.send_signal(signal.SIGKILL)
                process.wait()
                raise ConnectionError("the object never comes")

        bucket.before_write = kill
        process.wait(timeout=300)
        bucket.before_write = lambda name: None
        assert process.returncode == -9, process.stderr.read()
    code, errors = run(shared, workdir, environment=bucket.environment)
    assert code == 0, errors
    assert not (shared / f"{bucket.scheme}:").exists()
    assert "resuming from the checkpoint after step 3" in errors
    assert_same_run(workdir, uninterrupted)


@pytest.mark.slow
def test_a_bucket_that_refuses_for_a_while_costs_nothing_but_time(refused, uninterrupted):
    assert_same_run(to_place(refused), uninterrupted)


@pytest.mark.slow
def test_everything_that_reads_a_run_reads_it_in_a_bucket(bucket, refused, uninterrupted, tmp_path, capsys):
    workdir, local = refused, shutil.copytree(uninterrupted, tmp_path / "run")
    for folder, name in ((workdir, f"{bucket.url}/exported/encoder.npz"), (local, tmp_path / "encoder.npz")):
        assert evaluate.main([f"--workdir={folder}", "--protocol=knn_official,linear"]) == 0
        assert diagnostics.main([f"--workdir={folder}", "--only=spectrum", "--size=64"]) == 0
        assert export.main([f"--workdir={folder}", f"--out={name}"]) == 0
        assert export.main([f"--workdir={folder}", f"--verify={name}"]) == 0
        assert report.main([f"--workdir={folder}"]) == 0
    place = to_place(workdir)
    assert len(list((place / "features").glob("*.npz"))) == 2
    found, expected = (json.loads((p / "evaluation.json").read_bytes())["results"] for p in (place, local))
    assert [entry["top1"] for entry in found] == [entry["top1"] for entry in expected]
    capsys.readouterr()
    assert doctor.main([f"--workdir={workdir}"]) == 0
    findings = capsys.readouterr().out
    assert f"checkpoint {STEPS}: every array is what was written" in findings
    assert findings.count("features/") == 2
    apply, params, preprocessing = load_encoder(workdir)
    assert np.isfinite(apply(params, preprocessing(np.zeros((1, 32, 32, 3), np.uint8)))).all()


@pytest.mark.slow
@pytest.mark.parametrize("bucket", ["gs"], indirect=True)
def test_all_processes_keep_logs_and_compiled_programs_in_a_bucket(shared, bucket):
    environment = bucket.environment | {
        "JAX_COMPILATION_CACHE_DIR": f"{bucket.url}/cache",
        "JAX_DEBUG_LOG_MODULES": "jax._src.compiler",
    }
    short = ["--config.train.steps=2"]
    for name in ("first", "second"):
        outputs = ended(start_pair(shared, f"{bucket.url}/{name}", short, short, environment=environment))
        found = ["Persistent compilation cache hit for 'jit__fun'" in text for text in outputs]
        assert found == [name == "second"] * 2
        for index in range(2):
            text = to_place(f"{bucket.url}/{name}/logs/process_{index:04d}.log").read_text()
            assert f"process {index} of 2 on " in text
            assert "step 2/2" in text
    assert not (shared / f"{bucket.scheme}:").exists()
