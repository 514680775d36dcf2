"""The first five steps of three configurations against numbers recorded before the step was rebuilt on the learner.

recorded_steps.json was written at commit 8a7ba04, whose step was a separate implementation of Algorithm 1.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metamask_jax.core.state import Pair
from tests.tiny import doubled_start, step_on, tiny_batch, tiny_config

RECORDED = json.loads(pathlib.Path(__file__).with_name("recorded_steps.json").read_text())
# Smooth networks and rates that are exact in float32, in which schedules compute: nothing depends on the machine.
SHARED = {
    "data.augmentation": "plain",
    "encoder.name": "smooth",
    "method.head": "(6,)",
    "optimizer.learning_rate": "0.0625",
    "optimizer.schedule": "constant",
    "mask.schedule": "constant",
}
CONFIGS = {
    "simclr_exact": {},
    "byol_finite_difference": {
        "method.name": "byol",
        "method.predictor": "7",
        "method.momentum": "1.0",
        "meta.estimator": "finite_difference",
        "meta.trial": "gradient",
        "meta.learning_rate": "0.25",
        "meta.head_learning_rate": "0.5",
        "meta.every": "2",
        "train.accumulate": "2",
        "mask.activation": "identity",
        "optimizer.name": "adamw",
        "optimizer.learning_rate": "0.0078125",
    },
    "moco_lookahead": {
        "method.name": "moco",
        "method.queue_size": "24",
        "meta.estimator": "lookahead",
        "method.dropout": "0.25",
    },
}


def first_state(config):
    """Weights and queues that are the same on every machine, which JAX's normal draws are not in the last digit."""
    config, state = doubled_start(config)
    random = np.random.default_rng(0)

    def draw(leaf):
        return jnp.asarray(random.uniform(-0.5, 0.5, leaf.shape)) if leaf.ndim == 2 else leaf

    params = jax.tree.map(draw, state.params)
    method_state = state.method_state
    if config.method.name == "byol":
        method_state = {"encoder": params["encoder"], "head": params["method"]["head"]}
    elif config.method.name == "moco":
        rows = draw(method_state["queue"].rows)
        queue = method_state["queue"]._replace(rows=rows / jnp.linalg.norm(rows, axis=1, keepdims=True))
        method_state = {"encoder": params["encoder"], "head": params["method"], "queue": queue}
    state = state.replace(params=params, method_state=method_state, previous=())
    return config, state.replace(previous=state) if config.meta.estimator == "lookahead" else state


def pictures(step):
    batch = tiny_batch()
    return batch._replace(images=np.roll(batch.images, step, axis=2))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CONFIGS)
def test_the_first_steps_are_those_recorded(name):
    config, state = first_state(tiny_config(SHARED | CONFIGS[name]))
    step = step_on(1, config)
    for i, expected in enumerate(RECORDED[name]["metrics"]):
        batch = pictures(i)
        if config.meta.estimator == "lookahead":
            batch = Pair(previous=pictures(max(i - 1, 0)), present=batch)
        state, metrics = step(state, batch)
        assert metrics.keys() == expected.keys()
        for key, value in expected.items():
            assert float(metrics[key]) == pytest.approx(value, rel=1e-12, abs=1e-14), (i, key)
    np.testing.assert_allclose(state.mask, RECORDED[name]["mask"], rtol=1e-12, atol=1e-14)
    norms = RECORDED[name]["norms"]
    leaves = jax.tree_util.tree_leaves_with_path(state.replace(previous=()))
    assert len(leaves) == len(norms)
    for path, leaf in leaves:
        found = float(np.linalg.norm(np.asarray(leaf, np.float64)))
        place = jax.tree_util.keystr(path, simple=True, separator=".")
        assert found == pytest.approx(norms[place], rel=1e-12, abs=1e-14), place
