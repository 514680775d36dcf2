"""The page about adding a method does what it says."""

import pathlib
import re

import numpy as np

from metamask_jax import REGISTRY
from tests.tiny import tiny_batch

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "add_a_method.md"


def test_the_worked_example_trains_and_leaves_our_registry_alone():
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(block, names)
    start, losses = names["state"], []
    state = start
    for _ in range(3):
        state, metrics = names["step"](state, tiny_batch())
        losses.append(float(metrics["loss_method"]))
    assert names["config"].method.head == (512, 128)
    assert "uniformity" not in REGISTRY.methods
    assert int(state.skipped) == 0
    assert all(-4.0 < loss < 4.0 for loss in losses)  # alignment in [0, 4], log of uniformity in [-8, 0]
    assert not np.array_equal(state.params["encoder"]["conv1"]["kernel"], start.params["encoder"]["conv1"]["kernel"])
