"""What a step sends between devices, against the formulas of docs/scaling.md; pmap and shard_map agree."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from metamask_jax.core.collectives import gather, maximum, mean, moments
from metamask_jax.core.state import Pair
from metamask_jax.data.loader import Batch
from metamask_jax.training.roofline import collectives
from metamask_jax.training.state import TrainState, init_state
from metamask_jax.training.step import make_train_step
from tests.references import relative_error
from tests.tiny import LENGTH, doubled_start, step_on, tiny_batch, tiny_config


def numbers(program: str) -> Counter:
    """Numbers in the results of each kind of collective of a compiled program."""
    counts: Counter = Counter()
    for traffic in collectives(program):
        assert traffic.dtype == "f32"
        counts[traffic.kind] += traffic.size // 4
    return counts


def compiled(learn: bool, devices: int) -> tuple[str, TrainState, int]:
    """The program, the state, and how many numbers the step reports that devices might disagree on."""
    config = tiny_config({"mask.learn": str(learn)})
    step = make_train_step(config, steps_per_epoch=10, total_steps=10, axis_name="batch")
    state = init_state(config)
    batch = Batch(*(jnp.asarray(leaf).reshape(devices, -1, *leaf.shape[1:]) for leaf in tiny_batch()))
    mapped = jax.pmap(step, axis_name="batch", in_axes=(None, 0), out_axes=None, devices=jax.devices()[:devices])
    lowered = mapped.lower(state, batch)
    _, metrics = lowered.out_info
    agreed_on = metrics.keys() - {"learning_rate", "skipped", "skipped_in_a_row"}
    return lowered.compile().as_text(), state, len(agreed_on)


def size(tree: object) -> int:
    return sum(np.size(leaf) for leaf in jax.tree.leaves(tree))


VIEWS, BATCH, CONTRAST, DRR = 2, 16, 6, 10  # of the tiny configuration: projections' lengths at the end


def expected_joint(state: TrainState, metrics: int, devices: int) -> dict[str, int]:
    channels = size(state.batch_stats) // 2  # a mean and a variance each
    return {
        "all-reduce": size(state.params)  # the gradient
        + 4 * VIEWS * channels  # BatchNorm: mean and variance, and their cotangents
        + 2 * (DRR**2 + DRR)  # the correlation matrix and its diagonal, and their cotangents
        + 5 * VIEWS * DRR  # the statistics that normalise it
        + 2 * size(state.mask)  # spread of the features, a metric
        + 2  # the loss, and its cotangent
        + metrics,  # all of them, so that devices agree on whether the step counts
        "all-gather": VIEWS * BATCH * CONTRAST,
        "reduce-scatter": VIEWS * BATCH * CONTRAST // devices,
    }


@pytest.mark.parametrize("devices", [2, 4])
def test_joint_step_sends_what_the_formula_says(devices: int) -> None:
    program, *state_and_metrics = compiled(learn=False, devices=devices)
    assert numbers(program) == expected_joint(*state_and_metrics, devices)


def test_exact_meta_step_adds_two_gradients_and_three_contrasts() -> None:
    program, state, metrics = compiled(learn=True, devices=2)
    joint = expected_joint(state, metrics, 2)
    counts = numbers(program)
    assert counts["all-gather"] == 4 * joint["all-gather"]
    assert counts["reduce-scatter"] == 4 * joint["reduce-scatter"]
    trained = size([state.params["encoder"], state.params["method"]])
    channels = size([state.batch_stats["encoder"], state.batch_stats["method"]]) // 2
    # The trial's gradient and what is pulled back through its mean, both parts of the mask's, BatchNorm thrice.
    larger = joint["all-reduce"] + 2 * trained + 2 * size(state.mask) + 11 * VIEWS * channels
    assert 0 <= counts["all-reduce"] - larger <= 8  # losses


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("estimator", ["exact", "lookahead"])
def test_shard_map_over_a_mesh_is_pmap(estimator: str) -> None:
    """The way on when pmap goes: the same step, its batch not yet in shares, on four devices in float64."""
    config, state = doubled_start(
        tiny_config({"meta.estimator": estimator, "data.augmentation": "plain", "encoder.name": "smooth"})
    )
    batch = tiny_batch()
    step = jax.jit(
        jax.shard_map(
            make_train_step(config, **LENGTH, axis_name="batch"),
            mesh=Mesh(np.array(jax.devices()[:4]), ("batch",)),
            in_specs=(PartitionSpec(), PartitionSpec("batch")),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
    )
    found = expected = state
    for _ in range(2):
        given = Pair(batch, batch) if estimator == "lookahead" else batch
        found, metrics = step(found, given)
        expected, reference = step_on(4, config)(expected, given)
    for one, other in zip(jax.tree.leaves((found, metrics)), jax.tree.leaves((expected, reference)), strict=True):
        assert relative_error(one, other) < 1e-12 if np.any(other) else not np.any(one)


@pytest.mark.parametrize("devices", [1, 2])
def test_one_device_alone_exchanges_nothing(devices):
    def exchanges(x):
        both = moments(x, x**2, jnp.zeros(3), "batch")
        return mean(x, "batch"), maximum(x, "batch"), gather(x, "batch", axis=0), both

    mapped = jax.pmap(exchanges, axis_name="batch", devices=jax.devices()[:devices])
    x = jnp.arange(3.0 * devices).reshape(devices, 3)
    program = mapped.lower(x).as_text()
    assert ("all_reduce" in program, "all_gather" in program) == ((devices > 1,) * 2)
    if devices == 1:
        for found, expected in zip(jax.tree.leaves(mapped(x)), (x, x, x, x, x**2), strict=True):
            np.testing.assert_array_equal(found, expected)
