"""Every method within the training step: devices, resuming, and the meta-gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from metamask_jax.config import alone
from metamask_jax.methods import METHODS, Clock
from metamask_jax.training.checkpoint import Checkpoints
from metamask_jax.training.state import build_model, init_state
from metamask_jax.training.step import Objective, Sample
from tests.methods.conftest import BATCH, REGISTRY, compiled, method_config
from tests.references import relative_error
from tests.tiny import plain_views

STOP_GRADIENT = lax.stop_gradient


@pytest.fixture(scope="module", params=METHODS)
def name(request):
    """Scoped so that the tests of one method come one after the other, and find its program where they run."""
    return request.param


def assert_same(found, expected, **tolerance):
    for (path, leaf), other in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(other, leaf, err_msg=jax.tree_util.keystr(path), **tolerance)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_four_devices_do_what_one_does(name):
    """Losses, and after two steps weights, statistics, mask, targets and queues: float64 leaves no other excuse."""
    _, state, step = compiled(name, 1)
    _, _, parallel_step = compiled(name, 4)
    single = state
    for _ in range(2):
        single, single_metrics = step(single, BATCH)
        state, metrics = parallel_step(state, BATCH)
    assert int(state.skipped) == 0
    assert_same(metrics, single_metrics, rtol=1e-8, atol=1e-12)
    assert_same(state, single, rtol=1e-8, atol=1e-11)


@pytest.mark.usefixtures("x64")
def test_a_restored_run_goes_on_bit_for_bit(name, tmp_path):
    _, fresh, step = compiled(name, 1)
    halfway, _ = step(fresh, BATCH)
    checkpoints = Checkpoints(tmp_path, keep_last=1, keep_every=None, keep_best=False)
    checkpoints.save(1, halfway, config="{}")
    checkpoints.wait()
    restored = checkpoints.restore_latest(fresh).state
    checkpoints.close()
    expected, found = step(halfway, BATCH)[0], step(restored, BATCH)[0]
    assert_same(found, expected, rtol=0, atol=0)
    assert int(found.step) == 2


class Constants:
    """Stands in for `stop_gradient`: the first time it notes what it is given, later it gives the same again."""

    def __init__(self, first, given):
        self.first, self.given, self.noted = first, given, []

    def __call__(self, value):
        value = STOP_GRADIENT(value)
        if self.given is not None:
            earlier = self.given[len(self.noted)]
            value = jax.tree.map(lambda new, old: jnp.where(self.first, new, old), value, earlier)
        self.noted.append(value)
        return value


@pytest.mark.usefixtures("x64")
def test_exact_meta_gradient_equals_differences(name, monkeypatch):
    """Of the loss after a trial step, with everything behind a stop-gradient held fixed, as its derivative has it."""
    config, state, step = compiled(name, 1)
    after, _ = step(state, BATCH)
    found = state.mask - after.mask  # the mask's step was a plain one, at rate one, from the updated weights
    params = after.params
    model_state = {"batch_stats": after.batch_stats, "method_state": state.method_state}
    views = plain_views(BATCH.images, None)
    sample = Sample(views, views[:0], None, BATCH.labels, BATCH.indices, Clock(0, 0.0, 0.0))
    objective = Objective(config, build_model(config, axis_name=None, registry=REGISTRY), None)

    def loss(params, mask, first, given):
        constants = Constants(first, given)
        monkeypatch.setattr(lax, "stop_gradient", constants)
        return objective.method_loss(params, mask, model_state, sample)[0], constants.noted

    def outer_loss(mask, first=True, given=(None, None)):
        gradient, inner = jax.grad(loss, has_aux=True)(params, mask, first, given[0])
        trial = jax.tree.map(lambda w, g: w - 0.25 * g, params, gradient)
        value, outer = loss(trial, mask, first, given[1])
        return value, (inner, outer)

    @jax.jit
    def outer_losses(masks):
        """The first mask is the one at which constants are noted; a loop, so that one program does for all masks."""
        shapes = jax.eval_shape(outer_loss, masks[0])[1]
        start = True, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        def one(carry, mask):
            value, noted = outer_loss(mask, *carry)
            return (False, noted), value

        return lax.scan(one, start, masks)[1]

    steps = 1e-5 * np.eye(len(state.mask))
    masks = np.concatenate([state.mask[None], state.mask + steps, state.mask - steps])
    plus, minus = np.split(np.asarray(outer_losses(masks)[1:]), 2)
    assert np.max(np.abs(found)) > 1e-4
    assert relative_error(found, (plus - minus) / 2e-5) < 1e-6


def test_alone_there_is_nothing_of_metamask(name):
    config = alone(method_config(name).copy_and_resolve_references())
    state = jax.eval_shape(lambda: init_state(config))
    assert "drr_head" not in state.params
    assert np.all(jax.jit(lambda: init_state(config).mask)() == 1.0)
    assert not config.mask.learn
    assert not config.eval.masked
