"""One training step: Algorithm 1 to the letter, on any number of devices, with every switch."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from metamask_jax.augment import example_keys, make_augmentation
from metamask_jax.core.losses import nt_xent, redundancy_reduction
from metamask_jax.methods import Inputs, Variables
from metamask_jax.methods.base import apply_views
from metamask_jax.models import ProjectionHead
from metamask_jax.training.optimizers import make_optimizer
from metamask_jax.training.state import build_model, init_state
from tests.references import relative_error
from tests.tiny import doubled_start, plain_views, step_on, tiny_batch, tiny_config, with_views

BATCH = tiny_batch()


def run(config, steps=3):
    step, state, metrics = step_on(1, config), init_state(config), {}
    for _ in range(steps):
        state, metrics = step(state, BATCH)
    return state, metrics


@pytest.fixture(scope="module")
def usual():
    return run(tiny_config())


@pytest.mark.usefixtures("x64")
def test_is_algorithm_1():
    """Against a transcription with nothing shared but the modules: plain SGD, plain trial step, jax.grad through it."""
    config = tiny_config(
        {
            "optimizer.learning_rate": "0.0625",  # exact in float32, in which schedules compute
            "optimizer.momentum": "0",
            "optimizer.weight_decay": "0",
            "optimizer.schedule": "constant",
            "mask.momentum": "0",
            "mask.weight_decay": "0",
            "mask.schedule": "constant",
            "meta.trial": "gradient",
            "meta.learning_rate": "0.2",
            "meta.head_learning_rate": "0.3",
            "loss.alpha": "2.0",
            "data.augmentation": "plain",
        }
    )
    config, state = doubled_start(config)
    found, metrics = step_on(1, config)(state, BATCH)

    model = build_model(config, axis_name=None)
    views = plain_views(BATCH.images, None)

    def features(params, mask):
        h = [
            model.encoder.apply(_variables(state, params, "encoder"), v, train=True, mutable=["batch_stats"])[0]
            for v in views
        ]
        return jnp.stack(h) * jax.nn.sigmoid(mask)

    def contrast(params, mask):
        # One view after the other through the head that the method made, whose module is not public.
        variables = Variables(params["method"], state.batch_stats["method"], {})
        return model.method.loss(variables, Inputs(features(params, mask), None, None, None, None)).loss

    def regular(params):
        z, _ = apply_views(
            model.drr_head, params["drr_head"], state.batch_stats["drr_head"], features(params, state.mask)
        )
        drr = redundancy_reduction(z, off_diagonal_weight=0.005, centered=True, unbiased=True)
        return drr + 2.0 * contrast(params, state.mask)

    @jax.jit
    def algorithm(params, mask):
        params = jax.tree.map(lambda w, g: w - 0.0625 * g, params, jax.grad(regular)(params))

        def outer(mask):
            gradient = jax.grad(contrast)(params, mask)
            rates = {"encoder": 0.2, "method": 0.3, "drr_head": 0.3}
            trial = {
                part: jax.tree.map(lambda w, g, part=part: w - rates[part] * g, params[part], gradient[part])
                for part in params
            }
            return contrast(trial, mask)

        return params, mask - 1.0 * jax.grad(outer)(mask), outer(mask)

    params, mask, outer = algorithm(state.params, state.mask)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        np.testing.assert_allclose(_at(found.params, path), leaf, rtol=1e-9, atol=1e-12)
    assert relative_error(found.mask, mask) < 1e-9
    assert float(metrics["loss_outer"]) == pytest.approx(float(outer), rel=1e-9)
    assert int(found.step) == 1


def _variables(state, params, part):
    return {"params": params[part], "batch_stats": state.batch_stats[part]}


def _at(tree, path):
    return dict(jax.tree_util.tree_leaves_with_path(tree))[path]


def test_the_networks_optimiser_is_pytorchs_sgd():
    """Decay joins the gradient before the momentum buffer: w -= lr * (buf = mu * buf + g + wd * w)."""
    config = tiny_config()
    optimizer = make_optimizer(config.optimizer, 0.1, constant_rate=())
    w, buf = np.array([1.0, -2.0]), np.zeros(2)
    params = {"kernel": jnp.asarray(w)}
    state = optimizer.init(params)
    for g in ([0.5, 0.1], [-0.3, 0.2], [0.1, 0.1]):
        updates, state = optimizer.update({"kernel": jnp.array(g)}, state, params)
        params = optax.apply_updates(params, updates)
        buf = 0.9 * buf + np.array(g) + 5e-4 * w
        w = w - 0.1 * buf
    np.testing.assert_allclose(params["kernel"], w, rtol=1e-6)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("devices", "accumulate"),
    [(4, 1), pytest.param(2, 1, marks=pytest.mark.slow), pytest.param(4, 2, marks=pytest.mark.slow)],
)
def test_devices_follow_the_trajectory_of_one(devices, accumulate):
    """Weights, statistics, mask and optimisers after five steps: in float64 nothing but the algorithm can differ."""
    config, state = doubled_start(tiny_config({"train.accumulate": str(accumulate), "data.augmentation": "plain"}))
    single, step, single_step = state, step_on(devices, config), step_on(1, config)
    for _ in range(5):
        state, metrics = step(state, BATCH)
        single, single_metrics = single_step(single, BATCH)
    for path, leaf in jax.tree_util.tree_leaves_with_path(single):
        np.testing.assert_allclose(_at(state, path), leaf, rtol=1e-8, atol=1e-11, err_msg=str(path))
    for name, value in single_metrics.items():
        assert float(metrics[name]) == pytest.approx(float(value), rel=1e-8), name


@pytest.mark.slow
def test_devices_agree_with_one_in_float32():
    config = tiny_config()
    state, metrics = step_on(4, config)(init_state(config), BATCH)
    single, single_metrics = step_on(1, config)(init_state(config), BATCH)
    for name, value in single_metrics.items():
        assert float(metrics[name]) == pytest.approx(float(value), rel=1e-5), name
    assert relative_error(state.mask, single.mask) < 1e-5


def test_trains_and_compiles_once():
    config = tiny_config({"optimizer.learning_rate": "0.02"})
    step = step_on(1, config)
    state, losses = init_state(config), []
    for _ in range(20):
        state, metrics = step(state, BATCH)
        losses.append(float(metrics["loss"]))
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    _, other_seed = step(state.replace(seed=jnp.asarray(1, jnp.int32)), BATCH)
    _, same_seed = step(state, BATCH)
    assert float(other_seed["loss"]) != float(same_seed["loss"])  # other draws
    assert step._cache_size() == 1  # by the same program
    assert float(metrics["mask_std"]) > 1e-4


def test_only_the_regular_step_reaches_the_statistics():
    """BatchNorm statistics after a run with and without mask learning differ only by what the mask did to the heads."""
    without, _ = run(tiny_config({"mask.learn": "false"}), steps=1)
    with_mask, _ = run(tiny_config(), steps=1)
    jax.tree.map(np.testing.assert_array_equal, with_mask.batch_stats, without.batch_stats)
    assert not np.array_equal(with_mask.mask, without.mask)


def test_without_mask_learning_the_mask_stays():
    state, metrics = run(tiny_config({"mask.learn": "false"}))
    assert np.array_equal(state.mask, init_state(tiny_config()).mask)
    assert "loss_outer" not in metrics


def test_without_redundancy_reduction_there_is_no_head_for_it():
    state, metrics = run(tiny_config({"loss.drr": "false"}))
    assert "drr_head" not in state.params
    assert "loss_drr" not in metrics
    assert float(metrics["loss"]) == pytest.approx(10 * float(metrics["loss_method"]), rel=1e-6)


def test_meta_step_every_second_step():
    config = tiny_config({"meta.every": "2"})
    step, state = step_on(1, config), init_state(config)
    moved = []
    for _ in range(4):
        before = state.mask
        state, _ = step(state, BATCH)
        moved.append(not np.array_equal(before, state.mask))
    assert moved == [True, False, True, False]


def test_accumulation_averages_the_micro_batches_gradients():
    """One plain step on two micro-batches moves the weights by the mean of what each would do alone."""
    plain = {
        "optimizer.momentum": "0",
        "optimizer.weight_decay": "0",
        "mask.learn": "false",
        "data.augmentation": "eval",
    }
    whole = tiny_config(plain | {"train.accumulate": "2"})
    halves = tiny_config(plain)
    start = init_state(whole)
    found, _ = step_on(1, whole)(start, BATCH)
    half = step_on(1, halves)
    ends = [half(start, jax.tree.map(lambda leaf, i=i: leaf[i::2], BATCH))[0].params for i in range(2)]
    expected = jax.tree.map(lambda a, b: (a + b) / 2, *ends)
    for path, leaf in jax.tree_util.tree_leaves_with_path(expected):
        np.testing.assert_allclose(_at(found.params, path), leaf, rtol=1e-4, atol=1e-6)


def test_remat_changes_nothing(usual):
    state, _ = run(tiny_config({"train.remat": "true"}))
    for path, leaf in jax.tree_util.tree_leaves_with_path(usual[0].params):
        np.testing.assert_allclose(_at(state.params, path), leaf, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "overrides",
    [
        {"train.dtype": "bfloat16"},
        {"optimizer.name": "lars", "optimizer.learning_rate": "0.5"},
        {"optimizer.name": "adamw", "optimizer.decay_norm_and_bias": "false"},
        {"meta.estimator": "finite_difference"},
        {"meta.estimator": "unrolled"},
        {"meta.estimator": "neumann", "meta.neumann_terms": "2", "meta.trial": "gradient"},
        {"meta.estimator": "first_order", "meta.trial": "gradient"},
        {"mask.activation": "identity", "optimizer.schedule": "constant", "data.views": "3"},
    ],
    ids=lambda overrides: next(iter(overrides.values())),
)
@pytest.mark.slow
def test_switches_train_finitely_and_differently(usual, overrides):
    state, metrics = run(tiny_config(overrides))
    assert int(state.skipped) == 0
    assert all(np.isfinite(value) for value in metrics.values())
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    assert not np.array_equal(state.mask, usual[0].mask)


def poisoned_views(images, keys):
    """Views that are NaN where the images are black."""
    views = make_augmentation("simclr", image_size=32, views=2)(images, keys)
    return jnp.where(jnp.max(images) == 0, jnp.nan, views)


def test_a_step_that_is_not_finite_is_skipped_whole_and_counted():
    config = tiny_config({"data.augmentation": "plain"})
    step, state = step_on(1, config, with_views(poisoned_views)), init_state(config)
    counts = []
    for i in range(6):
        before = state
        state, _ = step(state, BATCH._replace(images=0 * BATCH.images) if i in (2, 3) else BATCH)
        counts.append((int(state.step), int(state.skipped), int(state.skipped_in_a_row)))
        if i in (2, 3):
            unchanged = {"step": before.step, "skipped": before.skipped, "skipped_in_a_row": before.skipped_in_a_row}
            jax.tree.map(np.testing.assert_array_equal, state.replace(**unchanged), before)
        else:
            assert not np.array_equal(state.mask, before.mask)
    assert counts == [(1, 0, 0), (2, 0, 0), (3, 1, 1), (4, 2, 2), (5, 2, 0), (6, 2, 0)]


def test_nt_xent_is_what_the_method_reports():
    """The logged loss is the loss of its own definition, not a rescaled one."""
    config = tiny_config({"loss.drr": "false", "loss.alpha": "1.0", "mask.learn": "false"})
    state = init_state(config)
    _, metrics = step_on(1, config)(state, BATCH)
    model = build_model(config, axis_name=None)
    views = make_augmentation("simclr", image_size=32, views=2)(BATCH.images, example_keys(0, 0, BATCH.positions))
    h, _ = apply_views(model.encoder, state.params["encoder"], state.batch_stats["encoder"], views)
    head = ProjectionHead(widths=(8, 6), last_norm=True, dtype="float32", axis_name=None)
    z, _ = apply_views(head, state.params["method"], state.batch_stats["method"], h * jax.nn.sigmoid(state.mask))
    assert float(metrics["loss_method"]) == pytest.approx(float(nt_xent(z, temperature=0.2)), rel=1e-5)


@pytest.mark.usefixtures("x64")
def test_a_trial_step_of_the_heads_is_the_same_on_four_devices_and_leaves_the_encoder_out():
    """The encoder is no part of the trial: its own trial rate does not matter."""
    ends = []
    for devices, rate in ((1, "0.5"), (4, "0.5"), (1, "0.25")):
        overrides = {"meta.scope": "head", "meta.trial": "gradient", "meta.learning_rate": rate}
        overrides |= {"meta.head_learning_rate": "0.5", "data.augmentation": "plain"}
        config, state = doubled_start(tiny_config(overrides))
        ends.append(step_on(devices, config)(state, BATCH)[0])
    assert not np.array_equal(ends[0].mask, state.mask)
    for other in ends[1:]:
        np.testing.assert_allclose(other.mask, ends[0].mask, rtol=1e-9, atol=1e-12)
