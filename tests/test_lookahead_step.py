"""Training by lookahead: the step against the definition, on devices, after a skipped step and after a restart."""

import functools
import itertools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metamask_jax.core.state import Pair
from metamask_jax.core.storage import read_json_lines
from metamask_jax.data.loader import with_previous
from metamask_jax.evaluate.online import pretrain
from metamask_jax.methods import Clock
from metamask_jax.training.checkpoint import Checkpoints
from metamask_jax.training.optimizers import SCHEDULES, make_optimizer, make_schedule
from metamask_jax.training.state import build_model, init_state
from metamask_jax.training.step import Objective, Sample, make_train_step
from tests.tiny import LENGTH, doubled_start, step_on, tiny_batch, tiny_config, with_views

# A method that remembers and a rate that changes: both must be the previous step's. A plain step of the mask at rate
# one shows the meta-gradient itself.
SETTINGS = {
    "data.augmentation": "plain",
    "meta.estimator": "lookahead",
    "method.bank_size": "40",
    "optimizer.schedule": "cosine",
    "mask.momentum": "0",
    "mask.weight_decay": "0",
    "mask.schedule": "constant",
}


def batch(step):
    """Other pictures in each step; those of a negative one are black."""
    images = tiny_batch().images
    return tiny_batch()._replace(images=images ^ np.uint8(37 * step) if step >= 0 else 0 * images)


def views(images, keys):
    """Without random pixels, in float64; not finite where the images are black."""
    x = images.astype(jnp.float64) / 255
    x = jnp.where(jnp.max(images) == 0, jnp.nan, x)
    return jnp.stack([x, 1.2 * jnp.roll(x, 5, axis=2) ** 2])


@functools.cache
def compiled(optimizer, devices):
    """The configuration, its first state and its step on one device or several."""
    with jax.enable_x64(True):
        config, state = doubled_start(tiny_config(SETTINGS | {"optimizer.name": optimizer}))
        return config, state, step_on(devices, config, with_views(views))


def trajectory(batches, optimizer="sgd", devices=1):
    """The states before and after each step on one of the batches, and the last metrics."""
    _, state, step = compiled(optimizer, devices)
    states, metrics, previous = [state], {}, batches[0]
    for present in batches:
        state, metrics = step(state, Pair(previous, present))
        states.append(state)
        previous = present
    return states, metrics


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_the_mask_descends_the_difference_of_the_present_loss(name):
    """Of its definition: both masks shifted together, the previous step taken again."""
    (_, previous, present, after), metrics = trajectory([batch(i) for i in range(3)], name)
    config, _, _ = compiled(name, devices=1)
    model = build_model(config, axis_name=None)
    settings = {"learning_rate": config.optimizer.learning_rate, "warmup_epochs": 0.0, **LENGTH}
    optimizer = make_optimizer(config.optimizer, make_schedule(SCHEDULES["cosine"], **settings)(1), constant_rate=())

    def loss(state, params, mask):
        step = state.step
        data, clock = batch(int(step)), Clock(step, step / 4, step / 12)
        sample = Sample(views(data.images, None), jnp.zeros((0, 16, 16, 16, 3)), None, data.labels, data.indices, clock)
        model_state = {"batch_stats": state.batch_stats, "method_state": state.method_state}
        return Objective(config, model, None).total_loss(params, mask, model_state, sample)[0]

    @jax.jit
    def shifted(shift):
        gradient = jax.grad(lambda params: loss(previous, params, previous.mask + shift))(previous.params)
        updates, _ = optimizer.update(gradient, previous.opt_state, previous.params)
        arrived = jax.tree.map(jnp.add, previous.params, updates)
        return loss(present, arrived, present.mask + shift)

    size = 1e-5
    differences = [(shifted(s) - shifted(-s)) / (2 * size) for s in size * jnp.eye(len(present.mask))]
    np.testing.assert_allclose(present.mask - after.mask, differences, rtol=1e-5, atol=1e-8)
    assert float(metrics["loss_outer"]) == pytest.approx(float(shifted(0.0)), rel=1e-9)
    assert float(metrics["meta_second_order_norm"]) > 1e-3 * float(metrics["meta_direct_norm"])
    assert not np.array_equal(previous.mask, present.mask)


@pytest.mark.usefixtures("x64")
def test_two_devices_follow_the_trajectory_of_one():
    batches = [batch(i) for i in range(4)]
    (*_, single), single_metrics = trajectory(batches)
    (*_, double), metrics = trajectory(batches, devices=2)
    jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, rtol=1e-7, atol=1e-10), double, single)
    for name, value in single_metrics.items():
        assert float(metrics[name]) == pytest.approx(float(value), rel=1e-7), name


@pytest.mark.usefixtures("x64")
def test_the_mask_rests_where_the_step_before_is_unknown():
    """In the first step, in a skipped one and in the one after that; `previous` is the last step's that was taken."""
    states, metrics = trajectory([batch(i) for i in (0, 1, -1, 3, 4)])
    moved = [not np.array_equal(a.mask, b.mask) for a, b in itertools.pairwise(states)]
    assert moved == [False, True, False, False, True]
    assert [int(state.previous.step) for state in states] == [0, 0, 1, 1, 3, 4]
    assert int(states[-1].skipped) == 1
    jax.tree.map(np.testing.assert_array_equal, states[3].previous, states[2].previous)
    jax.tree.map(np.testing.assert_array_equal, states[5].previous, states[4].replace(previous=()))
    assert all(np.isfinite(value) for value in metrics.values())


def test_a_step_without_the_batch_before_is_refused():
    config = tiny_config({"meta.estimator": "lookahead"})
    step = make_train_step(config, **LENGTH, axis_name=None)
    with pytest.raises(TypeError, match=r"batch is a Batch; expected a Pair for config.meta.estimator='lookahead'"):
        step(init_state(config), tiny_batch())


@pytest.mark.parametrize("overrides", [{}, {"meta.estimator": "lookahead", "mask.learn": "false"}], ids=str)
def test_nothing_is_carried_for_others(overrides):
    assert init_state(tiny_config(overrides)).previous == ()


def test_batches_come_with_the_one_before():
    stream = (step for step in range(3))
    assert list(with_previous(stream, from_start=True)) == [(0, 0), (0, 1), (1, 2)]
    assert list(with_previous((step for step in range(4, 7)), from_start=False)) == [(4, 5), (5, 6)]
    assert list(with_previous((step for step in ()), from_start=False)) == []


def test_a_stream_with_the_batch_before_closes_what_it_reads():
    stream = (step for step in range(3))
    pairs = with_previous(stream, from_start=True)
    next(pairs)
    pairs.close()
    assert list(stream) == []


def test_resumed_is_bit_identical(tmp_path):
    config = tiny_config(
        {
            "meta.estimator": "lookahead",
            "train.steps": "6",
            "data.dir": str(tmp_path / "data"),
            "data.options.train_size": "64",
            "data.options.test_size": "32",
            "eval.every_epochs": "0",
            "log.every_steps": "1",
            "log.tensorboard": "false",
            "checkpoint.every_steps": "3",
        }
    )
    workdirs = tmp_path / "whole", tmp_path / "resumed"
    pretrain(config, workdirs[0])
    shutil.copytree(*workdirs)
    shutil.rmtree(workdirs[1] / "checkpoints" / "6")
    pretrain(config, workdirs[1])
    expected, found = (
        Checkpoints.for_reading(workdir / "checkpoints").restore(init_state(config), step=6).state
        for workdir in workdirs
    )
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    logs = [read_json_lines(workdir / "metrics.jsonl") for workdir in workdirs]
    assert [line["loss_outer"] for line in logs[1][1:]] == [line["loss"] for line in logs[0][1:]]
    assert "loss_outer" not in logs[0][0]  # there is no meta step without a step before
