"""The meta-gradient on several devices, under `vmap`, compiled, in half precision, and of bad arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from metamask_jax import meta_gradient, meta_gradient_parts, trial_params
from tests.masked_network import ESTIMATORS, images, mask_logits, network_loss, tiny_network
from tests.references import relative_error
from tests.test_losses import LOSSES


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [*((name, np.float64, 1e-9) for name in LOSSES), (next(iter(LOSSES)), np.float32, 1e-5)],
)
def test_devices_agree_with_one(name, dtype, tolerance):
    """Value, gradient and meta-gradient of every estimator on 4 devices, with synchronised BatchNorm."""
    params, mask, views = jax.tree.map(dtype, (tiny_network(), mask_logits(), images(batch=8)))
    # A difference quotient divides the rounding of float32 by its small radius.
    estimators = [name for name in ESTIMATORS if dtype == np.float64 or name != "finite_difference"]

    def everything(params, mask, views, axis_name=None):
        loss = network_loss(views, LOSSES[name], axis_name)
        value, gradient = jax.value_and_grad(loss)(params, mask)
        if axis_name is not None:
            gradient = jax.lax.pmean(gradient, axis_name)
        meta = {
            estimator: meta_gradient_parts(
                loss, loss, params, mask, learning_rate=0.05, estimator=estimator, axis_name=axis_name
            )
            for estimator in estimators
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
    for (path, leaf), other in zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(found), strict=True):
        if not np.any(leaf):
            assert not np.any(other), path
        else:
            assert relative_error(other, leaf) < tolerance, path


def test_vmap_over_masks_equals_a_loop():
    params, loss = jax.tree.map(np.float32, tiny_network()), network_loss(np.float32(images()))
    masks = np.stack([mask_logits(), -mask_logits(), 0 * mask_logits()]).astype(np.float32)

    def meta(mask):
        return {
            name: meta_gradient(loss, loss, params, mask, learning_rate=0.3, estimator=name)[1] for name in ESTIMATORS
        }

    one, mapped = jax.jit(meta), jax.jit(jax.vmap(meta))(masks)
    looped = jax.tree.map(lambda *found: np.stack(found), *(one(mask) for mask in masks))
    for name in ESTIMATORS:
        # float32 rounding, which the difference quotient divides by its small radius
        assert relative_error(mapped[name], looped[name]) < (1e-3 if name == "finite_difference" else 1e-5)


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

    @jax.jit
    def trial_and_gradients(params, mask, rate):
        gradients = [meta_gradient(loss, loss, params, mask, learning_rate=rate, estimator=name) for name in ESTIMATORS]
        return trial_params(loss, params, mask, learning_rate=rate), [gradient for _, gradient in gradients]

    trial, gradients = trial_and_gradients(params, mask, jnp.float32(0.1))
    assert {leaf.dtype for leaf in jax.tree.leaves((trial, gradients))} == {jnp.dtype(jnp.bfloat16)}
    assert all(jnp.all(jnp.isfinite(gradient)) for gradient in gradients)


@pytest.mark.usefixtures("x64")
def test_rounding_to_bfloat16_drowns_finite_differences_first(capsys):
    """Weights in float32 and a network that computes in bfloat16, against float64: exact bears it, a difference not."""

    def second_order(compute, keep, estimator):
        network = network_loss(jnp.asarray(images(), compute))
        params, mask = jax.tree.map(lambda leaf: jnp.asarray(leaf, keep), (tiny_network(), mask_logits()))

        def loss(params, mask):
            return network(*jax.tree.map(lambda leaf: leaf.astype(compute), (params, mask))).astype(keep)

        return meta_gradient_parts(loss, loss, params, mask, learning_rate=0.3, estimator=estimator).second_order

    reference = second_order(jnp.float64, jnp.float64, "exact")
    off = {
        estimator: relative_error(second_order(jnp.bfloat16, jnp.float32, estimator), reference)
        for estimator in ("exact", "finite_difference")
    }
    with capsys.disabled():
        print("\nsecond-order part in bfloat16 off by", {name: f"{error:.2g}" for name, error in off.items()})
    assert off["exact"] < 0.2
    assert off["finite_difference"] > 0.5


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
