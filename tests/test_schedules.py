"""Learning rates as functions of the step, and how a training counts its epochs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metamask_jax.training.optimizers import SCHEDULES, exact_epoch, make_schedule
from metamask_jax.training.registry import REGISTRY
from metamask_jax.training.sampling import make_sampler
from metamask_jax.training.state import init_state
from tests.tiny import register, tiny_batch, tiny_config

EPOCHS = 800


@pytest.mark.parametrize("steps_per_epoch", [97, 195, 49, 5004, 1])
def test_a_compiled_schedule_of_epochs_changes_at_the_first_step_of_each(steps_per_epoch):
    total = EPOCHS * steps_per_epoch
    rate = jax.jit(
        make_schedule(
            SCHEDULES["cosine_epochs"],
            learning_rate=1.0,
            steps_per_epoch=steps_per_epoch,
            total_steps=total,
            warmup_epochs=0.0,
        )
    )
    epochs = np.arange(EPOCHS)
    expected = 0.5 * (1 + np.cos(np.pi * epochs / EPOCHS))
    for step in (epochs * steps_per_epoch, (epochs + 1) * steps_per_epoch - 1):  # the first and the last of each
        np.testing.assert_allclose(rate(jnp.asarray(step, jnp.int32)), expected, atol=1e-6)


@pytest.mark.parametrize("steps_per_epoch", [1, 3, 49, 97, 195, 5004, 99_991])
def test_epochs_are_whole_at_their_first_step_and_not_before(steps_per_epoch):
    epoch = np.arange(1, EPOCHS)
    first = jnp.asarray(epoch * steps_per_epoch, jnp.int32)
    compiled = jax.jit(lambda step: exact_epoch(step, steps_per_epoch))
    np.testing.assert_array_equal(compiled(first), epoch)
    last = compiled(first - 1)
    assert (last < epoch).all()
    np.testing.assert_allclose(last, epoch - 1 / steps_per_epoch, rtol=1e-6)


def test_what_methods_see_of_the_epoch_is_whole_at_its_first_step():
    config, registry = tiny_config({"data.augmentation": "plain"}), register(REGISTRY)
    sample = make_sampler(config, steps_per_epoch=97, total_steps=97 * EPOCHS, registry=registry)
    state, batch = init_state(config), tiny_batch()
    epoch = jax.jit(jax.vmap(lambda step: sample(state.replace(step=step), batch).clock.epoch))
    np.testing.assert_array_equal(epoch(97 * jnp.arange(EPOCHS)), np.arange(EPOCHS))
