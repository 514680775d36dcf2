"""The learner: Algorithm 1 around losses of one's own, compiled, on devices, with every switch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, PartitionSpec

from metamask_jax.core.collectives import mean
from metamask_jax.core.learner import metamask
from metamask_jax.core.losses import nt_xent, redundancy_reduction
from metamask_jax.core.meta import TRAINING_ESTIMATORS, exact_recomputed
from metamask_jax.core.state import Pair, Report
from tests.references import relative_error

DIM, BATCH, AXIS = 5, 16, "batch"


def start():
    """Weights, mask and a running mean of the features."""
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "encoder": {"w": 0.6 * jax.random.normal(keys[0], (7, DIM)), "b": 0.1 * jax.random.normal(keys[1], (DIM,))},
        "head": {"w": jax.random.normal(keys[2], (DIM, 4))},
    }
    return params, 0.3 * jax.random.normal(keys[3], (DIM,)), {"mean": jnp.zeros(DIM)}


def views(seed, batch=BATCH):
    """Two noisy copies of random vectors, [2, batch, 7]."""
    keys = jax.random.split(jax.random.key(seed + 10))
    return jax.random.normal(keys[0], (1, batch, 7)) + 0.3 * jax.random.normal(keys[1], (2, batch, 7))


def losses(axis_name=None):
    """Total loss, method's loss and one that judges by other views of the batch."""

    def features(params, mask, x):
        h = jnp.tanh(x @ params["encoder"]["w"] + params["encoder"]["b"])
        return h, h * jax.nn.sigmoid(mask)

    def method(params, mask, model_state, batch, part="views"):
        _, masked = features(params, mask, batch[part])
        return nt_xent(masked @ params["head"]["w"], temperature=0.5, axis_name=axis_name), model_state

    def total(params, mask, model_state, batch):
        h, masked = features(params, mask, batch["views"])
        average = mean(jnp.mean(jax.lax.stop_gradient(h), axis=(0, 1)), axis_name)
        running = {"mean": 0.9 * model_state["mean"] + 0.1 * average}
        drr = redundancy_reduction(masked, off_diagonal_weight=0.1, centered=True, axis_name=axis_name)
        contrast, _ = method(params, mask, model_state, batch)
        return drr + 2.0 * contrast, running, Report({"contrast": contrast})

    return total, method, partial(method, part="judge")


SETTINGS = {"optimizer": optax.sgd(0.05, momentum=0.9), "mask_optimizer": optax.sgd(1.0)}
JOINT = {"views": views(0), "judge": views(1)}


def learner_of(axis_name=None, *, outer=False, **settings):
    total, method, judge = losses(axis_name)
    return metamask(total, method, outer_loss=judge if outer else None, axis_name=axis_name, **SETTINGS | settings)


def doubled(tree):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), tree)


def outer_objective(state, batch, *, outer, scope, rate):
    """What a meta step descends, as a function of the mask, transcribed."""
    _, method, judge = losses()
    judge = judge if outer else method

    def value(mask):
        gradient = jax.grad(lambda params: method(params, mask, state.model_state, batch)[0])(state.params)
        moves = {part: scope is None or part == scope for part in gradient}
        trial = {
            part: jax.tree.map(lambda w, g, part=part: w - rate * moves[part] * g, state.params[part], gradient[part])
            for part in gradient
        }
        return judge(trial, mask, state.model_state, batch)[0]

    return value


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("outer", [False, True], ids=["same batch", "another batch"])
@pytest.mark.parametrize("scope", [None, "head", "encoder"])
def test_exact_is_the_difference_of_the_outer_objective(outer, scope):
    batch = doubled(JOINT)
    learner = learner_of(outer=outer, scope=scope, trial=0.4)
    state = learner.init(*doubled(start()))
    after, metrics = jax.jit(learner.update)(state, batch)
    # A trial step that moves a part only starts before the regular step; otherwise after it.
    at = state if scope is not None else state._replace(params=after.params, model_state=after.model_state)
    objective = jax.jit(outer_objective(at, batch, outer=outer, scope=scope, rate=0.4))
    size = 1e-5
    shifts = size * jnp.eye(DIM)
    differences = jnp.stack([objective(state.mask + s) - objective(state.mask - s) for s in shifts]) / (2 * size)
    assert relative_error(state.mask - after.mask, differences) < 1e-6
    assert float(metrics["loss_outer"]) == pytest.approx(float(objective(state.mask)), rel=1e-12)
    assert float(metrics["meta_second_order_norm"]) > 1e-3 * float(metrics["meta_direct_norm"])


def on_devices(how, learner):
    """`update` with the batch split over four devices."""
    devices = np.array(jax.devices()[:4])
    if how == "pmap":
        mapped = jax.pmap(learner.update, axis_name=AXIS, in_axes=(None, 0), out_axes=None, devices=list(devices))
        # [views, batch, ...] -> [devices, views, share, ...]
        return lambda state, batch: mapped(state, jax.tree.map(lambda x: jnp.stack(jnp.split(x, 4, axis=1)), batch))
    return jax.jit(
        jax.shard_map(
            learner.update,
            mesh=Mesh(devices, (AXIS,)),
            in_specs=(PartitionSpec(), PartitionSpec(None, AXIS)),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
    )


CASES = {
    **{name: {"estimator": name} for name in TRAINING_ESTIMATORS},
    "function": {"estimator": exact_recomputed},
    "none": {"estimator": None},
    "scope": {"scope": "head"},
    "outer": {"outer": True, "trial": {"encoder": 0.1, "head": 0.3}},
    "adamw": {"optimizer": optax.adamw(optax.cosine_decay_schedule(0.01, 10)), "every": 2},
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CASES)
def test_jit_pmap_and_shard_map_agree(name):
    """Three steps on one device and on four, in float64, where nothing but the algorithm can differ."""
    batches = [doubled({"views": views(i), "judge": views(i + 5)}) for i in range(3)]
    if CASES[name].get("estimator") == "lookahead":
        batches = [Pair(batches[max(i - 1, 0)], batch) for i, batch in enumerate(batches)]
    learner, mapped = learner_of(**CASES[name]), learner_of(AXIS, **CASES[name])
    first = learner.init(*doubled(start()))
    ends = {}
    for how in ("jit", "pmap", "shard_map"):
        update = jax.jit(learner.update) if how == "jit" else on_devices(how, mapped)
        state = first
        for batch in batches:
            state, metrics = update(jax.device_get(state), batch)
        ends[how] = state, metrics
    for how in ("pmap", "shard_map"):
        jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, rtol=1e-9, atol=1e-12), ends[how], ends["jit"])
    assert (float(ends["jit"][1]["mask_std"]) != float(jnp.std(jax.nn.sigmoid(first.mask)))) == (name != "none")


def test_losses_that_are_means_over_a_share_agree_too():
    """A loss without collectives: metrics and decisions are those of the average."""

    def loss(params, mask, model_state, batch):
        return jnp.mean((batch @ params * jax.nn.sigmoid(mask) - 1.0) ** 2), model_state

    x = jax.random.normal(jax.random.key(3), (16, 7))
    params, mask = jnp.ones((7, DIM)) / 7, jnp.zeros(DIM)
    ends = []
    for axis_name in (None, AXIS):
        learner = metamask(loss, loss, axis_name=axis_name, **SETTINGS)
        update = (
            learner.update
            if axis_name is None
            else jax.pmap(learner.update, axis_name=AXIS, in_axes=(None, 0), out_axes=None)
        )
        ends.append(update(learner.init(params, mask), x if axis_name is None else x.reshape(4, 4, 7)))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), *ends)


def test_the_mask_moves_every_other_step():
    learner = learner_of(every=2)
    update, state, moved = jax.jit(learner.update), learner.init(*start()), []
    for _ in range(4):
        before = state
        state, metrics = update(state, JOINT)
        moved.append(not np.array_equal(before.mask, state.mask))
        assert (float(metrics["loss_outer"]) != 0) == moved[-1]
    assert moved == [True, False, True, False]


def test_only_the_regular_steps_model_state_survives():
    """It is that of a run without mask learning, to the bit."""
    ends = []
    for estimator in ("exact", None):
        learner = learner_of(estimator=estimator)
        ends.append(jax.jit(learner.update)(learner.init(*start()), JOINT)[0])
    assert np.array_equal(ends[0].model_state["mean"], ends[1].model_state["mean"])
    assert np.any(ends[0].model_state["mean"])
    assert not np.array_equal(ends[0].mask, ends[1].mask)


def test_what_is_not_finite_is_skipped_whole_and_counted():
    learner = learner_of()
    update, state = jax.jit(learner.update), learner.init(*start())
    bad = {"views": JOINT["views"].at[0, 0, 0].set(jnp.nan), "judge": JOINT["judge"]}
    for batch, skipped, in_a_row in ((JOINT, 0, 0), (bad, 1, 1), (bad, 2, 2), (JOINT, 2, 0)):
        before = state
        state, metrics = update(state, batch)
        assert (int(metrics["skipped"]), int(metrics["skipped_in_a_row"])) == (skipped, in_a_row)
        if in_a_row:
            kept = state._replace(step=before.step, skipped=before.skipped, skipped_in_a_row=before.skipped_in_a_row)
            jax.tree.map(np.testing.assert_array_equal, kept, before)
    assert int(state.step) == 4


def test_one_device_that_is_not_finite_makes_all_of_them_skip():
    """With a loss over shares only one device meets the NaN."""

    def loss(params, mask, model_state, batch):
        return jnp.mean((batch * params * mask) ** 2), model_state

    learner = metamask(loss, loss, axis_name=AXIS, activation="identity", **SETTINGS)
    update = jax.pmap(learner.update, axis_name=AXIS, in_axes=(None, 0), out_axes=0)
    state = learner.init(jnp.ones(2), jnp.ones(2))
    after, _ = update(state, jnp.ones((4, 3, 2)).at[2, 0, 0].set(jnp.nan))
    assert np.array_equal(after.skipped, [1, 1, 1, 1])
    assert np.array_equal(after.params, np.ones((4, 2)))


def test_after_step_sees_new_weights_and_the_memory_of_every_micro_batch():
    def loss(params, mask, model_state, batch):
        return jnp.sum((params * mask - batch.mean()) ** 2), model_state, Report({}, memory=batch)

    def after_step(state, memory):
        return {"target": 0.5 * state.model_state["target"] + 0.5 * state.params, "seen": memory}

    learner = metamask(loss, loss, accumulate=2, after_step=after_step, activation="identity", **SETTINGS)
    batch = jnp.arange(6.0).reshape(2, 3)  # two micro-batches of three
    state = learner.init(jnp.ones(2), jnp.ones(2), {"target": jnp.zeros(2), "seen": jnp.zeros((2, 3))})
    after, metrics = jax.jit(learner.update)(state, batch)
    np.testing.assert_allclose(after.model_state["target"], 0.5 * after.params)
    np.testing.assert_array_equal(after.model_state["seen"], batch)
    # Means of the micro-batches are 1 and 4: the gradients 2 (1 - 1) and 2 (1 - 4) are averaged.
    np.testing.assert_allclose(after.params, 1.0 + 0.05 * 3.0, rtol=1e-6)
    assert float(metrics["loss"]) == pytest.approx((0.0 + 2 * 9.0) / 2)


@pytest.mark.parametrize("optimizer", [optax.adam(1e-3), optax.adamw(1e-3), optax.rmsprop(1e-3), optax.adagrad(1e-3)])
def test_a_weight_without_gradient_does_not_spoil_the_meta_gradient(optimizer):
    """Its second moment is zero, where a square root has no derivative."""
    total, method, _ = losses()

    def with_dead_weight(loss):
        return lambda params, *rest: loss({key: params[key] for key in ("encoder", "head")}, *rest)

    learner = metamask(
        with_dead_weight(total), with_dead_weight(method), optimizer=optimizer, mask_optimizer=optax.sgd(1.0)
    )
    params, mask, model_state = start()
    state = learner.init({**params, "dead": jnp.ones(3)}, mask, model_state)
    update = jax.jit(learner.update)
    for _ in range(12):
        state, metrics = update(state, JOINT)
    assert int(metrics["skipped"]) == 0
    assert float(metrics["meta_second_order_norm"]) > 0


def test_an_update_is_compiled_once_and_donates_its_state():
    learner = learner_of()
    update = jax.jit(learner.update, donate_argnums=0)
    state = learner.init(*start())
    for _ in range(3):
        state, _ = update(state, JOINT)
    assert update._cache_size() == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"estimator": "precise"}, "estimator='precise'; expected one of 'exact', 'first_order'"),
        ({"trial": "gradient"}, "trial='gradient'; expected 'optimizer', learning rates"),
        ({"every": 0}, "every=0; expected a whole number >= 1"),
        ({"accumulate": 1.5}, "accumulate=1.5; expected a whole number >= 1"),
        ({"estimator": "lookahead", "every": 2}, "estimator='lookahead' with outer_loss, scope, every or accumulate"),
        ({"scope": "projector"}, "scope='projector' holds none of the params; expected some of encoder.b, encoder.w"),
        ({"trial": {"head": 0.1}}, "expected a number or a prefix of params"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        (learner := learner_of(**arguments)).update(learner.init(*start()), JOINT)


def test_batches_and_losses_of_the_wrong_form_are_named():
    state = learner_of().init(*start())
    with pytest.raises(TypeError, match="batch is a dict; expected a Pair for estimator='lookahead'"):
        learner_of(estimator="lookahead").update(state, JOINT)
    with pytest.raises(TypeError, match="batch is a Pair; expected one batch for estimator='exact'"):
        learner_of().update(state, Pair(JOINT, JOINT))
    bare = metamask(lambda *_: jnp.zeros(()), losses()[1], **SETTINGS)
    with pytest.raises(TypeError, match=r"a loss returned .*; expected \(scalar, model_state\)"):
        bare.update(state, JOINT)
    with pytest.raises(TypeError, match=r"params\['act'\] is <.*expected arrays only: split a model"):
        learner_of().init({"act": jax.nn.relu}, jnp.zeros(2))
    with pytest.raises(TypeError, match=r"mask.dtype=int32; expected a floating-point type"):
        learner_of().init(start()[0], jnp.zeros(2, jnp.int32))


def test_shard_map_that_sums_gradients_itself_is_refused():
    """Under check_vma=True gradients of replicated weights arrive summed over devices."""
    learner = learner_of(AXIS)
    mapped = jax.shard_map(
        learner.update,
        mesh=Mesh(np.array(jax.devices()[:4]), (AXIS,)),
        in_specs=(PartitionSpec(), PartitionSpec(None, AXIS)),
        out_specs=PartitionSpec(),
    )
    with pytest.raises(ValueError, match="expected check_vma=False around `update`"):
        mapped(learner.init(*start()), JOINT)
