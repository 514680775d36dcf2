"""How the loop keeps the devices busy: one program, and steps that are dispatched before the last one is done."""

import concurrent.futures
import time

import jax.numpy as jnp
import numpy as np
import pytest

from metamask_jax.training import distributed, settings
from metamask_jax.training.loop import train
from tests.short_runs import QUICK, config_for, trajectory


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def test_the_step_is_traced_and_compiled_once(data_dir, tmp_path, monkeypatch):
    """Neither a first state from the host nor the look at everything before the start costs a second program."""
    make_train_step, traced = settings.make_train_step, []

    def make_counted(config, **how):
        step = make_train_step(config, **how)
        return lambda state, batch: traced.append(True) or step(state, batch)

    monkeypatch.setattr(settings, "make_train_step", make_counted)
    config = config_for(data_dir, train__steps=3, mask__learn=False, **QUICK)
    train(config, tmp_path)
    assert len(traced) == 1


class Pending:
    """A number that is not there yet."""

    def __init__(self, future):
        self._future = future

    def block_until_ready(self):
        self._future.result()
        return self

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._future.result(), dtype)

    def __int__(self):
        return self._future.result()


class SlowStep:
    """A step on a device that takes its time and hands out its results before they are there, as accelerators do."""

    def __init__(self):
        self.dispatched, self.done = [], []
        self._device = concurrent.futures.ThreadPoolExecutor(1)

    def lower(self, state, batch, settings):
        return self

    def compile(self):
        return self

    def __call__(self, state, batch, settings):
        self.dispatched.append(time.monotonic())
        value = Pending(self._device.submit(self._work))
        return state.replace(mask=jnp.asarray(state.mask)), {"skipped_in_a_row": value, "loss": value}

    def _work(self):
        time.sleep(0.2)
        self.done.append(time.monotonic())
        return 0


@pytest.mark.parametrize("every", [1, 3])
def test_a_step_is_dispatched_before_the_one_before_is_done(data_dir, tmp_path, monkeypatch, every):
    """Also while every step is logged and the mask's course is kept; three steps at most are under way."""
    step = SlowStep()
    monkeypatch.setattr(distributed, "parallelize", lambda *args: step)
    train(config_for(data_dir, log__every_steps=every, checkpoint__every_steps=100, train__steps=9), tmp_path)
    assert [line["step"] for line in trajectory(tmp_path)] == list(range(every, 10, every))
    # After the first step the host waits once, to say how long compiling took.
    assert all(begun < ended for begun, ended in zip(step.dispatched[2:], step.done[1:], strict=False))
    assert all(begun > ended for begun, ended in zip(step.dispatched[3:], step.done, strict=False))
