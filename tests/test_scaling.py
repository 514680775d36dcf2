"""What a step sends between devices, counted in the compiled program, against the formulas of docs/scaling.md."""

import math
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metamask_jax.data.loader import Batch
from metamask_jax.training.state import TrainState, init_state
from metamask_jax.training.step import make_train_step
from tests.tiny import tiny_batch, tiny_config

_COLLECTIVE = re.compile(r"= (?P<shapes>.*?) (?P<name>all-reduce|all-gather|reduce-scatter|all-to-all)(-start)?\(")


def sent(program: str) -> Counter:
    """Numbers in the results of each kind of collective of a compiled program."""
    counts: Counter = Counter()
    for found in _COLLECTIVE.finditer(program):
        for shape in re.findall(r"f32\[([\d,]*)\]", found["shapes"]):
            counts[found["name"]] += math.prod(int(size) for size in shape.split(",") if size)
    return counts


def compiled(learn: bool, devices: int) -> tuple[str, TrainState]:
    config = tiny_config({"mask.learn": str(learn)})
    step = make_train_step(config, steps_per_epoch=10, total_steps=10, axis_name="batch")
    state = init_state(config)
    batch = Batch(*(jnp.asarray(leaf).reshape(devices, -1, *leaf.shape[1:]) for leaf in tiny_batch()))
    mapped = jax.pmap(step, axis_name="batch", in_axes=(None, 0), out_axes=None, devices=jax.devices()[:devices])
    return mapped.lower(state, batch).compile().as_text(), state


def size(tree: object) -> int:
    return sum(np.size(leaf) for leaf in jax.tree.leaves(tree))


VIEWS, BATCH, CONTRAST, DRR = 2, 16, 6, 10  # of the tiny configuration: projections' lengths at the end


def expected_joint(state: TrainState, devices: int) -> dict[str, int]:
    channels = size(state.batch_stats) // 2  # a mean and a variance each
    return {
        "all-reduce": size(state.params)  # the gradient
        + 4 * VIEWS * channels  # BatchNorm: mean and variance, and their cotangents
        + 2 * (DRR**2 + DRR)  # the correlation matrix and its diagonal, and their cotangents
        + 6 * VIEWS * DRR  # the statistics that normalise it
        + 2 * size(state.mask)  # spread of the features, a metric
        + 2,  # the loss, and its cotangent
        "all-gather": VIEWS * BATCH * CONTRAST,
        "reduce-scatter": VIEWS * BATCH * CONTRAST // devices,
    }


@pytest.mark.parametrize("devices", [2, 4])
def test_joint_step_sends_what_the_formula_says(devices: int) -> None:
    program, state = compiled(learn=False, devices=devices)
    assert sent(program) == expected_joint(state, devices)


def test_exact_meta_step_adds_two_gradients_and_three_contrasts() -> None:
    program, state = compiled(learn=True, devices=2)
    joint = expected_joint(state, 2)
    counts = sent(program)
    assert counts["all-gather"] == 4 * joint["all-gather"]
    assert counts["reduce-scatter"] == 4 * joint["reduce-scatter"]
    trained = size([state.params["encoder"], state.params["method"]])
    channels = size([state.batch_stats["encoder"], state.batch_stats["method"]]) // 2
    # The trial's gradient and what is pulled back through its mean, both parts of the mask's, BatchNorm thrice.
    larger = joint["all-reduce"] + 2 * trained + 2 * size(state.mask) + 11 * VIEWS * channels
    assert 0 <= counts["all-reduce"] - larger <= 8  # losses
