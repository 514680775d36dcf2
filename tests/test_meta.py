"""The meta-gradient against closed forms, float64 differences, itself on several devices, and bad arguments."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from metamask_jax import mask_weights, meta_gradient, meta_gradient_parts, nt_xent, tree_norm, trial_params
from tests import references
from tests.references import relative_error
from tests.test_losses import LOSSES


def tiny_network(seed=0, inputs=6, dim=5, out=4):
    rng = np.random.default_rng(seed)
    return {
        "encoder": {"kernel": 0.5 * rng.normal(size=(inputs, dim)), "bias": 0.1 * rng.normal(size=dim)},
        "head": {"kernel": rng.normal(size=(dim, out))},
    }


def batch_norm(x, axis_name):
    """Over the batch of every view on its own, as the encoders do."""
    mean = jnp.mean(x, axis=1, keepdims=True)
    mean = mean if axis_name is None else jax.lax.pmean(mean, axis_name)
    variance = jnp.mean((x - mean) ** 2, axis=1, keepdims=True)
    variance = variance if axis_name is None else jax.lax.pmean(variance, axis_name)
    return (x - mean) / jnp.sqrt(variance + 1e-5)


def network_loss(views, loss=lambda z, axis_name: nt_xent(z, temperature=0.2, axis_name=axis_name), axis_name=None):
    """-> loss(params, mask) of a network with BatchNorm in its encoder, whose features the mask multiplies."""

    def closure(params, mask):
        h = batch_norm(views @ params["encoder"]["kernel"], axis_name) + params["encoder"]["bias"]
        h = jnp.tanh(h) * mask_weights(mask, activation="sigmoid")
        return loss(h @ params["head"]["kernel"], axis_name=axis_name)

    return closure


def images(views=2, batch=8, inputs=6, seed=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(batch, inputs)) + 0.5 * rng.normal(size=(views, batch, inputs))


def mask_logits(dim=5):
    return np.random.default_rng(2).normal(size=dim)


@pytest.mark.usefixtures("x64")
class TestExact:
    def test_closed_form_on_a_quadratic(self):
        rng = np.random.default_rng(0)
        a, b = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
        target_a, target_b = rng.normal(size=4), rng.normal(size=5)
        params, mask, rate = rng.normal(size=3), rng.normal(size=3), 0.1

        def inner(params, mask):
            return 0.5 * jnp.sum((a @ (params * mask) - target_a) ** 2)

        def outer(params, mask):
            return 0.5 * jnp.sum((b @ (params * mask) - target_b) ** 2)

        value, gradient = meta_gradient(inner, outer, params, mask, learning_rate=rate)

        pull = a.T @ (a @ (params * mask) - target_a)
        trial = params - rate * mask * pull
        push = b.T @ (b @ (trial * mask) - target_b)
        slope = mask * push
        second_order = -rate * (pull * slope + params * (a.T @ (a @ (mask * slope))))
        assert float(value) == pytest.approx(0.5 * np.sum((b @ (trial * mask) - target_b) ** 2), rel=1e-12)
        assert relative_error(gradient, trial * push + second_order) < 1e-12

        parts = meta_gradient_parts(inner, outer, params, mask, learning_rate=rate)
        assert relative_error(parts.direct, trial * push) < 1e-12
        assert relative_error(parts.second_order, second_order) < 1e-12

    @pytest.mark.parametrize(
        "how",
        [
            {"learning_rate": 0.3},
            {"learning_rate": {"encoder": 0.5, "head": 0.1}},
            {"optimizer": optax.chain(optax.add_decayed_weights(0.01), optax.sgd(0.3, momentum=0.9))},
            {"optimizer": optax.adamw(0.1, weight_decay=0.01)},
        ],
        ids=["one rate", "two rates", "momentum and decay", "adamw"],
    )
    def test_float64_differences_of_the_whole_objective(self, how):
        params, mask = tiny_network(), mask_logits()
        inner, outer = network_loss(images(seed=1)), network_loss(images(seed=3))
        if "optimizer" in how:  # a state with history, not the zeros it starts with
            state = how["optimizer"].init(params)
            _, state = how["optimizer"].update(jax.grad(inner)(params, mask), state, params)
            how = {**how, "opt_state": state}

        @jax.jit
        def objective(mask):
            return outer(trial_params(inner, params, mask, **how), mask)

        value, gradient = jax.jit(lambda mask: meta_gradient(inner, outer, params, mask, **how))(mask)
        assert float(value) == pytest.approx(float(objective(mask)), rel=1e-12)
        assert relative_error(gradient, references.central_difference(objective, mask, 1e-5)) < 1e-6
        # The second-order part is no rounding error here: leaving it out must show.
        _, first_order = meta_gradient(inner, outer, params, mask, estimator="first_order", **how)
        assert relative_error(first_order, gradient) > 1e-3

    def test_mask_and_params_may_be_any_pytrees(self):
        params = (np.ones(2), [np.array(2.0)])
        mask = {"a": np.array([1.0, 2.0]), "b": (np.array(3.0),)}

        def loss(params, mask):
            return jnp.sum((params[0] * mask["a"]) ** 2) + (params[1][0] * mask["b"][0]) ** 2

        _, gradient = meta_gradient(loss, loss, params, mask, learning_rate=(0.01, [0.02]))
        assert jax.tree.structure(gradient) == jax.tree.structure(mask)
        # t = p - 2 r p m^2; d/dm (t m)^2 = 2 t m (t - 4 r p m^2)
        t = 2.0 - 2 * 0.02 * 2.0 * 9.0
        assert float(gradient["b"][0]) == pytest.approx(2 * t * 3.0 * (t - 4 * 0.02 * 2.0 * 9.0), rel=1e-12)


@pytest.mark.usefixtures("x64")
class TestOtherEstimators:
    def test_first_order_is_exact_with_the_dependence_cut(self):
        params, mask, loss = tiny_network(), mask_logits(), network_loss(images())

        def cut(mask):
            return loss(jax.lax.stop_gradient(trial_params(loss, params, mask, learning_rate=0.3)), mask)

        _, found = meta_gradient(loss, loss, params, mask, learning_rate=0.3, estimator="first_order")
        assert relative_error(found, jax.grad(cut)(mask)) < 1e-14

    def test_finite_difference_approximates_the_second_order_part(self, capsys):
        params, mask, loss = tiny_network(), mask_logits(), network_loss(images())
        exact = meta_gradient_parts(loss, loss, params, mask, learning_rate=0.3)
        approximate = meta_gradient_parts(loss, loss, params, mask, learning_rate=0.3, estimator="finite_difference")
        error = relative_error(approximate.second_order, exact.second_order)
        with capsys.disabled():
            print(f"\nfinite_difference: relative error of the second-order part {error:.1e} (float64)")
        assert relative_error(approximate.direct, exact.direct) < 1e-14
        assert 1e-9 < error < 1e-3  # an approximation of the right thing

    def test_finite_difference_matches_the_authors_formula(self):
        params, mask, loss = tiny_network(), mask_logits(), network_loss(images())
        rate = 0.3
        found = meta_gradient_parts(loss, loss, params, mask, learning_rate=rate, estimator="finite_difference")

        trial = trial_params(loss, params, mask, learning_rate=rate)
        v = jax.grad(loss)(trial, mask)
        r = 0.01 / tree_norm(v)
        plus, minus = (
            jax.grad(loss, argnums=1)(jax.tree.map(lambda w, d, s=s: w + s * r * d, params, v), mask) for s in (1, -1)
        )
        assert relative_error(found.second_order, -rate * (plus - minus) / (2 * r)) < 1e-10

    @pytest.mark.parametrize("estimator", ["exact", "first_order", "finite_difference"])
    def test_no_slope_gives_no_second_order_part(self, estimator):
        """An outer loss that does not see the weights: the authors' r = 0.01 / ||v|| would divide by zero."""
        params, mask = tiny_network(), mask_logits()
        parts = meta_gradient_parts(
            network_loss(images()),
            lambda params, mask: jnp.sum(mask**2),
            params,
            mask,
            learning_rate=0.3,
            estimator=estimator,
        )
        assert relative_error(parts.total, 2 * mask) < 1e-14
        assert float(tree_norm(parts.second_order)) == 0.0

    def test_a_zero_learning_rate_leaves_only_the_direct_part(self):
        params, mask, loss = tiny_network(), mask_logits(), network_loss(images())
        for estimator in ("exact", "finite_difference"):
            _, gradient = meta_gradient(loss, loss, params, mask, learning_rate=0.0, estimator=estimator)
            assert relative_error(gradient, jax.grad(loss, argnums=1)(params, mask)) < 1e-14


@pytest.mark.parametrize("name", LOSSES)
def test_devices_agree_with_one(name):
    """Value, gradient and meta-gradient of every estimator on 4 devices, with synchronised BatchNorm."""
    params = jax.tree.map(np.float32, tiny_network())
    mask = np.float32(mask_logits())
    views = np.float32(images(batch=8))

    def everything(params, mask, views, axis_name=None):
        loss = network_loss(views, LOSSES[name], axis_name)
        value, gradient = jax.value_and_grad(loss)(params, mask)
        if axis_name is not None:
            gradient = jax.lax.pmean(gradient, axis_name)
        meta = {
            estimator: meta_gradient_parts(
                loss, loss, params, mask, learning_rate=0.05, estimator=estimator, axis_name=axis_name
            )
            for estimator in ("exact", "first_order", "finite_difference")
        }
        return {"value": value, "gradient": gradient, **meta}

    on_devices = jax.pmap(
        lambda *arguments: everything(*arguments, axis_name="batch"),
        axis_name="batch",
        in_axes=(None, None, 0),
        out_axes=None,
    )
    found = on_devices(params, mask, np.stack(np.split(views, 4, axis=1)))
    expected = jax.jit(everything)(params, mask, views)
    for path, leaf in jax.tree_util.tree_leaves_with_path(expected):
        if "finite_difference" in str(path) and "second_order" in str(path):
            continue  # differences of float32 gradients: their rounding is not the devices' doing
        if not np.any(leaf):
            assert not np.any(_at(found, path)), path
        else:
            assert relative_error(_at(found, path), leaf) < 1e-5, path


def _at(tree, path):
    return dict(jax.tree_util.tree_leaves_with_path(tree))[path]


@pytest.mark.usefixtures("x64")
def test_finite_difference_agrees_between_devices_in_float64():
    params, mask, views = tiny_network(), mask_logits(), images(batch=8)

    def meta(views, axis_name=None):
        loss = network_loss(views, axis_name=axis_name)
        return meta_gradient_parts(
            loss, loss, params, mask, learning_rate=0.05, estimator="finite_difference", axis_name=axis_name
        ).second_order

    on_devices = jax.pmap(lambda shard: meta(shard, "batch"), axis_name="batch", out_axes=None)
    assert relative_error(on_devices(np.stack(np.split(views, 4, axis=1))), meta(views)) < 1e-9


@pytest.mark.parametrize("estimator", ["exact", "first_order", "finite_difference"])
def test_vmap_over_masks_equals_a_loop(estimator):
    params, loss = jax.tree.map(np.float32, tiny_network()), network_loss(np.float32(images()))
    masks = np.stack([mask_logits(), -mask_logits(), 0 * mask_logits()]).astype(np.float32)

    def meta(mask):
        return meta_gradient(loss, loss, params, mask, learning_rate=0.3, estimator=estimator)[1]

    looped = np.stack([jax.jit(meta)(mask) for mask in masks])
    # float32 rounding, which the difference quotient divides by its small radius
    assert relative_error(jax.jit(jax.vmap(meta))(masks), looped) < (1e-3 if estimator == "finite_difference" else 1e-5)


def test_a_whole_run_compiles_once():
    traces = 0
    loss = network_loss(np.float32(images()))

    @jax.jit
    def step(params, mask, rate):
        nonlocal traces
        traces += 1
        params = trial_params(loss, params, mask, learning_rate=rate)
        value, gradient = meta_gradient(loss, loss, params, mask, learning_rate=rate)
        return params, mask - gradient, value

    params, mask = jax.tree.map(jnp.float32, tiny_network()), jnp.float32(mask_logits())
    values = []
    for i in range(20):
        params, mask, value = step(params, mask, 0.1 / (1 + i))
        values.append(float(value))
    assert traces == 1
    assert values[-1] < values[0]


def test_half_precision_keeps_its_type():
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), tiny_network())
    mask = jnp.asarray(mask_logits(), jnp.bfloat16)
    loss = network_loss(jnp.asarray(images(), jnp.bfloat16))
    trial = trial_params(loss, params, mask, learning_rate=jnp.float32(0.1))
    assert {leaf.dtype for leaf in jax.tree.leaves(trial)} == {jnp.dtype(jnp.bfloat16)}
    for estimator in ("exact", "first_order", "finite_difference"):
        meta = partial(meta_gradient, loss, loss, estimator=estimator)
        _, gradient = jax.jit(meta)(params, mask, learning_rate=jnp.float32(0.1))
        assert gradient.dtype == jnp.bfloat16
        assert jnp.all(jnp.isfinite(gradient))


class TestBadArguments:
    @staticmethod
    def loss(params, mask):
        return jnp.sum((params * mask) ** 2)

    def call(self, params=np.ones(2), mask=np.ones(2), **kwargs):  # noqa: B008
        return meta_gradient(self.loss, self.loss, params, mask, **({"learning_rate": 0.1} | kwargs))

    def test_unknown_estimator(self):
        with pytest.raises(ValueError, match=r"estimator='exakt'; expected one of 'exact', 'first_order'"):
            self.call(estimator="exakt")

    def test_integer_params(self):
        with pytest.raises(TypeError, match=r"params\.dtype=int\d+; expected a floating-point type"):
            self.call(params=np.array([1, 2]))

    def test_integer_mask(self):
        with pytest.raises(TypeError, match=r"mask\.dtype=int\d+; expected a floating-point type"):
            self.call(mask=np.array([1, 2]))

    def test_integer_leaf_is_named(self):
        with pytest.raises(TypeError, match=r"params\['b'\]\.dtype=int\d+; expected a floating-point type"):
            trial_params(self.loss, {"a": np.ones(2), "b": np.array(3)}, np.ones(2), learning_rate=0.1)

    def test_neither_rate_nor_optimizer(self):
        with pytest.raises(ValueError, match="neither of learning_rate and optimizer given; expected exactly one"):
            self.call(learning_rate=None)

    def test_both_rate_and_optimizer(self):
        with pytest.raises(ValueError, match="both of learning_rate and optimizer given; expected exactly one"):
            self.call(optimizer=optax.sgd(0.1), opt_state=())

    def test_optimizer_without_state(self):
        with pytest.raises(ValueError, match="opt_state=None; expected the state of the given optimizer"):
            self.call(learning_rate=None, optimizer=optax.sgd(0.1))

    def test_rates_that_do_not_fit_the_params(self):
        with pytest.raises(ValueError, match=r"learning_rate=.*'encodr'.*; expected a number or a prefix of params="):
            trial_params(
                lambda params, mask: jnp.sum(params["encoder"] * mask),
                {"encoder": np.ones(2)},
                np.ones(2),
                learning_rate={"encodr": 0.1},
            )
