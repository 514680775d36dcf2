"""The workdir of a run that nobody has trained: every file is there, and nothing had to be compiled."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from metamask_jax.config import to_json
from metamask_jax.data.sources import open_configured
from metamask_jax.training.checkpoint import Checkpoints
from metamask_jax.training.state import init_state
from tests.tiny import tiny_config

STEPS = (4, 8, 12)


@pytest.fixture(scope="session")
def whole_workdir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("untrained")
    workdir = folder / "run"
    workdir.mkdir()
    sizes = {"data.options.train_size": "64", "data.options.test_size": "32"}
    config = tiny_config({"data.dir": str(folder / "data"), **sizes})
    open_configured(config.data, split="pretrain")
    (workdir / "config.json").write_text(to_json(config))
    shapes = jax.eval_shape(lambda: init_state(config))
    random = np.random.default_rng(0)
    state = jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype(leaf.dtype), shapes)
    checkpoints = Checkpoints(workdir / "checkpoints", keep_last=3, keep_every=None, keep_best=True)
    for step in STEPS:
        checkpoints.save(step, state, config=to_json(config))
        checkpoints.wait()
        checkpoints.rate(step, 0.1 * step)
    checkpoints.close()
    lines = [json.dumps({"step": step, "loss": 1.0 / step}) for step in range(1, 13)]
    (workdir / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (workdir / "masks.jsonl").write_text(json.dumps({"step": 12, "mask": [0.5] * 12}) + "\n")
    (workdir / "result.json").write_text(json.dumps({"steps": 12, "knn_accuracy": 0.5}))
    rows = [{"protocol": "knn", "features": "h", "top1": 0.5}]
    (workdir / "evaluation.json").write_text(json.dumps({"results": rows}))
    np.savez(workdir / "report.npz", mask_final=np.full(12, 0.5), mask_steps=np.arange(2), correlation=np.eye(12))
    (workdir / "features").mkdir()
    np.savez(workdir / "features" / "some.npz", features=np.ones((4, 12), np.float32), labels=np.zeros(4, np.int32))
    return workdir


@pytest.fixture
def workdir(whole_workdir: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy, to be damaged."""
    return pathlib.Path(shutil.copytree(whole_workdir, tmp_path / "run"))
