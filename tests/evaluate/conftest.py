"""One pretrained run for all the tests of evaluation, too small to be any good."""

import pathlib

import pytest

from metamask_jax.evaluate.online import pretrain
from tests.tiny import tiny_config

OVERRIDES = {
    "train.steps": "12",
    "meta.estimator": "first_order",  # sooner compiled, and any mask will do
    "data.options.train_size": "256",
    "data.options.test_size": "96",
    "checkpoint.every_steps": "4",
    "checkpoint.keep_last": "3",
    "eval.every_epochs": "0",
    "log.tensorboard": "false",
}


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The workdir of a finished run with checkpoints after steps 4, 8 and 12; tests copy what they change."""
    folder = tmp_path_factory.mktemp("pretrained")
    pretrain(tiny_config(OVERRIDES | {"data.dir": str(folder / "data")}), folder / "run")
    return folder / "run"
