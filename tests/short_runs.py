"""Short runs of a tiny network, in this process: their configuration, and what they have left."""

from metamask_jax.core.storage import read_json_lines
from metamask_jax.training.checkpoint import Checkpoints
from metamask_jax.training.logging import CLOCKS
from metamask_jax.training.state import init_state
from tests.tiny import tiny_config

SHAPES = {"data.options.train_size": "64", "data.options.test_size": "32"}
OFTEN = {"log.every_steps": "1", "checkpoint.every_steps": "3", "eval.every_epochs": "2"}
QUICK = {"data__augmentation": "eval"}  # where any views will do: the others take as long to compile as the rest


def config_for(data_dir, **overrides):
    dotted = {key.replace("__", "."): str(value) for key, value in overrides.items()}
    return tiny_config(SHAPES | OFTEN | {"data.dir": str(data_dir)} | dotted)


def final_state(workdir, config):
    checkpoints = Checkpoints(workdir / "checkpoints", keep_last=9, keep_every=None, keep_best=False)
    return checkpoints.restore_latest(init_state(config))


def trajectory(workdir):
    """Everything logged but the clock."""
    return [
        {key: value for key, value in line.items() if key not in CLOCKS}
        for line in read_json_lines(workdir / "metrics.jsonl")
    ]
