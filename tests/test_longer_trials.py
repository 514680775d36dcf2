"""Several trial steps and the Neumann series: against `exact`, differences, and the derivative of a minimum."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from metamask_jax.core.longer_trials import neumann, unrolled
from metamask_jax.core.meta import exact_recomputed, meta_gradient, meta_gradient_parts
from tests.references import relative_error
from tests.test_learner import JOINT, doubled, losses, start


def problem():
    """Losses of (params, mask) on a small network in float64."""
    params, mask, model_state = doubled(start())
    batch = doubled(JOINT)
    _, method, judge = losses()
    return (
        lambda params, mask: method(params, mask, model_state, batch)[0],
        lambda params, mask: judge(params, mask, model_state, batch)[0],
        params,
        mask,
    )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "estimator", [unrolled(1), neumann(1), exact_recomputed], ids=["unrolled", "neumann", "recomputed"]
)
@pytest.mark.parametrize("trial", ["plain", "adam"])
def test_one_step_is_exact(estimator, trial):
    arguments = problem()
    optimizer = optax.adam(0.01)
    step = (
        {"learning_rate": 0.3}
        if trial == "plain"
        else {"optimizer": optimizer, "opt_state": optimizer.init(arguments[2])}
    )
    found, exact = (meta_gradient_parts(*arguments, **step, estimator=name) for name in (estimator, "exact"))
    for ours, expected in zip(found, exact, strict=True):
        assert relative_error(ours, expected) < 1e-12


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("scope", [None, "head"])
def test_unrolled_is_the_difference_of_the_objective_after_all_steps(scope):
    inner, outer, params, mask = problem()

    @jax.jit
    def objective(mask):
        arrived = params
        rates = {part: 0.3 if scope in (None, part) else 0.0 for part in params}
        for _ in range(4):
            gradient = jax.grad(inner)(arrived, mask)
            arrived = {
                part: jax.tree.map(lambda w, g, part=part: w - rates[part] * g, arrived[part], gradient[part])
                for part in params
            }
        return outer(arrived, mask)

    size = 1e-5
    differences = [(objective(mask + s) - objective(mask - s)) / (2 * size) for s in size * jnp.eye(len(mask))]
    value, found = meta_gradient(inner, outer, params, mask, learning_rate=0.3, estimator=unrolled(4), scope=scope)
    assert relative_error(found, jnp.stack(differences)) < 1e-6
    assert float(value) == pytest.approx(float(objective(mask)), rel=1e-12)
    _, one = meta_gradient(inner, outer, params, mask, learning_rate=0.3, scope=scope)
    assert relative_error(found, one) > 1e-3  # three more steps matter


@pytest.mark.usefixtures("x64")
def test_neumanns_series_arrives_at_the_derivative_of_a_minimum():
    """On a quadratic the Hessian is known, and so is how its minimum follows the mask."""
    random = np.random.default_rng(0)
    root, target = random.normal(size=(4, 4)), random.normal(size=4)
    hessian = root @ root.T + np.eye(4)

    def inner(params, mask):
        return 0.5 * params @ hessian @ params - params @ (mask * target)

    def outer(params, mask):
        return jnp.sum(jnp.sin(params)) + jnp.sum(mask**2)

    mask = jnp.asarray(random.normal(size=4))
    minimum = jnp.linalg.solve(hessian, mask * target)
    # At the minimum a trial step stays there, and the outer loss's slope is that at the minimum.
    _, found = meta_gradient(inner, outer, minimum, mask, learning_rate=0.05, estimator=neumann(2000))
    expected = jax.grad(lambda mask: outer(jnp.linalg.solve(hessian, mask * target), mask))(mask)
    assert relative_error(found, expected) < 1e-9


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("estimator", [unrolled(3), neumann(3)], ids=["unrolled", "neumann"])
def test_four_devices_do_what_one_does(estimator):
    params, mask, model_state = doubled(start())

    def everything(params, mask, batch, axis_name=None):
        _, method, judge = losses(axis_name)
        inner, outer = (lambda p, m, loss=loss: loss(p, m, model_state, batch)[0] for loss in (method, judge))
        return meta_gradient_parts(
            inner, outer, params, mask, learning_rate=0.3, estimator=estimator, axis_name=axis_name
        )

    batch = doubled(JOINT)
    shares = jax.tree.map(lambda x: jnp.stack(jnp.split(x, 4, axis=1)), batch)
    mapped = jax.pmap(
        lambda *arguments: everything(*arguments, axis_name="b"), axis_name="b", in_axes=(None, None, 0), out_axes=None
    )
    for found, expected in zip(mapped(params, mask, shares), jax.jit(everything)(params, mask, batch), strict=True):
        assert relative_error(found, expected) < 1e-9


@pytest.mark.parametrize(("make", "name"), [(unrolled, "steps"), (neumann, "terms")])
def test_numbers_that_cannot_be_used_are_named(make, name):
    with pytest.raises((ValueError, TypeError), match=f"{name}=0; expected a whole number >= 1"):
        make(0)


def test_what_is_computed_again_is_not_kept_meanwhile():
    """By the compiler's account, for a network whose activations need more memory than its weights."""
    keys = jax.random.split(jax.random.key(0), 9)
    params = [0.3 * jax.random.normal(key, (16, 16)) for key in keys[1:]]
    x = jax.random.normal(keys[0], (4096, 16))

    def loss(params, mask):
        h = x
        for w in params:
            h = jnp.tanh(h @ w)
        return jnp.mean((h * mask) ** 4)

    def memory(estimator):
        found = jax.jit(
            lambda params, mask: meta_gradient(loss, loss, params, mask, learning_rate=0.1, estimator=estimator)
        )
        return found.lower(params, jnp.ones(16)).compile().memory_analysis().temp_size_in_bytes

    assert memory(exact_recomputed) < 0.75 * memory("exact")
