"""The lookahead gradient against float64 differences of its own definition."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from metamask_jax import mask_weights, nt_xent
from metamask_jax.config import default_config
from metamask_jax.core.lookahead import lookahead_gradient
from metamask_jax.core.meta import meta_gradient_parts, trial_params
from metamask_jax.models import ProjectionHead
from metamask_jax.training.optimizers import make_optimizer

DIM, BATCH = 6, 8
NETWORK = ProjectionHead(widths=(7, DIM), last_norm=True, dtype="float64", axis_name=None)
OPTIMIZERS = {
    "sgd": optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.5, momentum=0.9)),
    "adamw": optax.adamw(0.05),
}


def minibatch(seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(2, BATCH, 5)))


def variables() -> dict:
    shapes = jax.eval_shape(lambda x: NETWORK.init(jax.random.key(0), x, train=True), minibatch(0)[0])
    rng = np.random.default_rng(9)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.uniform(-1, 1, size=leaf.shape)), shapes)


def loss_on(views: jax.Array):
    stats = variables()["batch_stats"]

    def loss(params: dict, mask: jax.Array) -> jax.Array:
        apply = lambda view: NETWORK.apply(  # noqa: E731
            {"params": params, "batch_stats": stats}, view, train=True, mutable=["batch_stats"]
        )[0]
        h = jnp.stack([apply(view) for view in views])
        return nt_xent(h * mask_weights(mask, activation="sigmoid"), temperature=0.5)

    return loss


def problem(name: str) -> tuple:
    """Weights, optimiser with a state that has moved, and the mask of the previous and the present step."""
    params, rng = variables()["params"], np.random.default_rng(3)
    optimizer = OPTIMIZERS[name]
    gradient = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), params)
    _, opt_state = optimizer.update(gradient, optimizer.init(params), params)
    return params, optimizer, opt_state, jnp.asarray(rng.normal(size=DIM)), jnp.asarray(rng.normal(size=DIM))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_differences_of_the_present_loss(name: str) -> None:
    previous, present = loss_on(minibatch(1)), loss_on(minibatch(2))
    params, optimizer, opt_state, old_mask, mask = problem(name)
    settings = {"optimizer": optimizer, "opt_state": opt_state}

    @jax.jit
    def objective(shift: jax.Array) -> jax.Array:
        """The definition: both masks shifted together, the real step taken again."""
        return present(trial_params(previous, params, old_mask + shift, **settings), mask + shift)

    @jax.jit
    def parts() -> tuple[jax.Array, jax.Array]:
        arrived = trial_params(previous, params, old_mask, **settings)
        slope, direct = jax.grad(present, (0, 1))(arrived, mask)
        return direct, lookahead_gradient(previous, slope, params, old_mask, **settings)

    direct, second_order = parts()
    shifts = 1e-5 * jnp.eye(DIM)
    differences = jnp.stack([(objective(s) - objective(-s)) / 2e-5 for s in shifts])
    assert jnp.linalg.norm(second_order) > 1e-3 * jnp.linalg.norm(direct)
    np.testing.assert_allclose(direct + second_order, differences, rtol=1e-6, atol=1e-9)


@pytest.mark.usefixtures("x64")
def test_of_one_repeated_minibatch_is_the_exact_meta_gradient() -> None:
    loss, (params, *_, mask) = loss_on(minibatch(1)), problem("sgd")

    @jax.jit
    def both() -> tuple[jax.Array, jax.Array]:
        slope = jax.grad(loss)(trial_params(loss, params, mask, learning_rate=0.3), mask)
        ours = lookahead_gradient(loss, slope, params, mask, learning_rate=0.3)
        return ours, meta_gradient_parts(loss, loss, params, mask, learning_rate=0.3).second_order

    np.testing.assert_allclose(*both(), rtol=1e-12)


@pytest.mark.parametrize("name", ["sgd", "adamw", "lars"])
def test_is_finite_where_a_weight_has_no_gradient(name: str) -> None:
    """A dead unit, a frozen prototype: zero from the first step on, where Adam's square root has no derivative."""
    config = default_config().optimizer
    config.name = name
    optimizer = make_optimizer(config, 0.1, constant_rate=())
    params, mask = {"kernel": jnp.array([1.0, 2.0])}, jnp.array([0.5])

    def loss(params: dict, mask: jax.Array) -> jax.Array:
        return jnp.sum((params["kernel"] * mask * jnp.array([1.0, 0.0])) ** 2)

    found = lookahead_gradient(
        loss, jax.tree.map(jnp.ones_like, params), params, mask, optimizer=optimizer, opt_state=optimizer.init(params)
    )
    assert np.all(np.isfinite(found))


def test_takes_no_backward_pass_for_a_linear_optimizer() -> None:
    """Forward and tangent only: of the previous step's gradient, nothing but what its derivative needs is left."""
    weights = [jax.ShapeDtypeStruct((64, 64), "float32")] * 3
    views = jnp.ones((64, 64))

    def loss(params: list[jax.Array], mask: jax.Array) -> jax.Array:
        h = views
        for w in params:
            h = jnp.tanh(h @ w)
        return jnp.sum((h * mask) ** 2)

    def flops(function, *arguments) -> float:
        return jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"]

    mask = jax.ShapeDtypeStruct((64,), "float32")
    forward = flops(loss, weights, mask)
    ours = flops(lambda s, p, m: lookahead_gradient(loss, s, p, m, learning_rate=0.1), weights, weights, mask)
    assert ours < 3.2 * forward
