"""The meta-gradient against closed forms, float64 differences and the authors' formula."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from metamask_jax import meta_gradient, meta_gradient_parts, trial_params
from tests import references
from tests.masked_network import ESTIMATORS, images, mask_logits, network_loss, tiny_network
from tests.references import relative_error


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
            fresh, slope = how["optimizer"].init(params), jax.jit(jax.grad(inner))(params, mask)
            how = {**how, "opt_state": how["optimizer"].update(slope, fresh, params)[1]}

        @jax.jit
        def objective(mask):
            return outer(trial_params(inner, params, mask, **how), mask)

        @jax.jit
        def estimates(mask):
            return [meta_gradient(inner, outer, params, mask, estimator=name, **how) for name in ESTIMATORS[:2]]

        (value, gradient), (_, first_order) = estimates(mask)
        assert float(value) == pytest.approx(float(objective(mask)), rel=1e-12)
        assert relative_error(gradient, references.central_difference(objective, mask, 1e-5)) < 1e-6
        # The second-order part is no rounding error here: leaving it out must show.
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


@pytest.fixture(scope="class")
def estimates():
    """What every estimator finds for the network at rate 0.3."""
    with jax.enable_x64(True):
        loss = network_loss(images())
        return jax.jit(
            lambda params, mask: {
                name: meta_gradient_parts(loss, loss, params, mask, learning_rate=0.3, estimator=name)
                for name in ESTIMATORS
            }
        )(tiny_network(), mask_logits())


@pytest.mark.usefixtures("x64")
class TestOtherEstimators:
    def test_first_order_is_exact_with_the_dependence_cut(self, estimates):
        params, mask, loss = tiny_network(), mask_logits(), network_loss(images())

        def cut(mask):
            return loss(jax.lax.stop_gradient(trial_params(loss, params, mask, learning_rate=0.3)), mask)

        assert relative_error(estimates["first_order"].total, jax.jit(jax.grad(cut))(mask)) < 1e-14

    def test_finite_difference_approximates_the_second_order_part(self, estimates, capsys):
        approximate, exact = estimates["finite_difference"], estimates["exact"]
        error = relative_error(approximate.second_order, exact.second_order)
        with capsys.disabled():
            print(f"\nfinite_difference: relative error of the second-order part {error:.1e} (float64)")
        assert relative_error(approximate.direct, exact.direct) < 1e-14
        assert 1e-9 < error < 1e-3  # an approximation of the right thing

    def test_finite_difference_matches_the_authors_formula(self, estimates):
        loss, rate = network_loss(images()), 0.3

        @jax.jit
        def formula(params, mask):
            v = jax.grad(loss)(trial_params(loss, params, mask, learning_rate=rate), mask)
            r = 0.01 / optax.tree.norm(v)
            plus, minus = (
                jax.grad(loss, argnums=1)(jax.tree.map(lambda w, d, s=s: w + s * r * d, params, v), mask)
                for s in (1, -1)
            )
            return -rate * (plus - minus) / (2 * r)

        expected = formula(tiny_network(), mask_logits())
        assert relative_error(estimates["finite_difference"].second_order, expected) < 1e-10

    @pytest.mark.parametrize("estimator", ESTIMATORS)
    def test_no_slope_gives_no_second_order_part(self, estimator):
        """An outer loss that does not see the weights: the authors' r = 0.01 / ||v|| would divide by zero."""
        mask, settings = mask_logits(), {"learning_rate": 0.3, "estimator": estimator}
        blind = lambda params, mask: jnp.sum(mask**2)  # noqa: E731
        meta = partial(meta_gradient_parts, network_loss(images()), blind, **settings)
        parts = jax.jit(meta)(tiny_network(), mask)
        assert relative_error(parts.total, 2 * mask) < 1e-14
        assert float(optax.tree.norm(parts.second_order)) == 0.0

    def test_a_zero_learning_rate_leaves_only_the_direct_part(self):
        params, mask, loss = tiny_network(), mask_logits(), network_loss(images())
        expected = jax.jit(jax.grad(loss, argnums=1))(params, mask)
        for estimator in ("exact", "finite_difference"):
            meta = partial(meta_gradient, loss, loss, learning_rate=0.0, estimator=estimator)
            assert relative_error(jax.jit(meta)(params, mask)[1], expected) < 1e-14
