"""Losses against their equations, their invariances, and the inputs that break careless implementations."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metamask_jax.core import losses
from metamask_jax.core.losses import noise_contrastive, redundancy
from tests import references
from tests.references import relative_error

# One program is sooner compiled than its operations one by one.
nt_xent, debiased_nt_xent, hard_nt_xent = map(jax.jit, (losses.nt_xent, losses.debiased_nt_xent, losses.hard_nt_xent))
redundancy_reduction = jax.jit(losses.redundancy_reduction, static_argnames=("centered", "unbiased"))
LOSSES = {
    "drr": partial(losses.redundancy_reduction, off_diagonal_weight=0.0051, centered=False),
    "drr_centered": partial(losses.redundancy_reduction, off_diagonal_weight=0.0051, centered=True),
    "nt_xent": partial(losses.nt_xent, temperature=0.2),
    "debiased": partial(losses.debiased_nt_xent, temperature=0.5, positive_prior=0.1),
    "hard": partial(losses.hard_nt_xent, temperature=0.5, positive_prior=0.1, concentration=1.0),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
contrastive = pytest.mark.parametrize("loss", [LOSSES[n] for n in ("nt_xent", "debiased", "hard")])


def close(expected, *, rel, abs=None):
    """pytest.approx, which does not take JAX scalars."""
    return pytest.approx(float(expected), rel=rel, abs=abs)


def projections(views=2, batch=6, dim=5, seed=0):
    """Correlated views, so that positives stand out from negatives as they do in training."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(batch, dim)) + 0.7 * rng.normal(size=(views, batch, dim))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("views", [2, 3, 4])
class TestEquations:
    @pytest.mark.parametrize(("centered", "unbiased"), [(False, False), (True, False), (True, True)])
    def test_redundancy_reduction(self, views, centered, unbiased):
        z = projections(views) + 0.3  # not centred by chance
        found = redundancy_reduction(z, off_diagonal_weight=0.0051, centered=centered, unbiased=unbiased)
        expected = references.redundancy_reduction(z, 0.0051, centered, unbiased)
        assert found == close(expected, rel=1e-10)

    @pytest.mark.parametrize("bank_size", [0, 7])
    @pytest.mark.parametrize("temperature", [0.07, 0.5])
    def test_contrastive(self, views, bank_size, temperature):
        z = projections(views)
        bank = np.random.default_rng(1).normal(size=(bank_size, z.shape[-1])) if bank_size else None
        for concentration in (0.0, 0.5, 1.0):
            found = hard_nt_xent(z, temperature=temperature, positive_prior=0.1, concentration=concentration, bank=bank)
            expected = references.hard_nt_xent(z, temperature, 0.1, concentration, bank)
            assert found == close(expected, rel=1e-10)
        found = debiased_nt_xent(z, temperature=temperature, positive_prior=0.1, bank=bank)
        assert found == close(references.debiased_nt_xent(z, temperature, 0.1, bank), rel=1e-10)
        found = nt_xent(z, temperature=temperature, bank=bank)
        assert found == close(references.nt_xent(z, temperature, bank), rel=1e-10)

    def test_limits_connect_the_contrastive_family(self, views):
        z = projections(views)
        plain = nt_xent(z, temperature=0.3)
        debiased = partial(debiased_nt_xent, z, temperature=0.3)
        hard = partial(hard_nt_xent, z, temperature=0.3, positive_prior=0.2)
        assert debiased(positive_prior=0.0) == close(plain, rel=1e-12)
        assert debiased(positive_prior=1e-9) == close(plain, rel=1e-7)
        assert debiased(positive_prior=0.2) != close(plain, rel=1e-3)
        assert hard(concentration=0.0) == close(debiased(positive_prior=0.2), rel=1e-12)
        assert hard(concentration=1.0) != close(debiased(positive_prior=0.2), rel=1e-3)


@pytest.mark.usefixtures("x64")
def test_the_normalizer_of_noise_contrast_is_estimated_from_the_logits_of_all_devices():
    logits = 3.0 * projections(batch=8)[0]
    normalizer = 11 * np.mean(np.exp(logits))
    loss = jax.pmap(partial(noise_contrastive, axis_name="i"), axis_name="i")(logits.reshape(4, 2, 5))
    given = jax.jit(jax.value_and_grad(partial(noise_contrastive, normalizer=normalizer, population=11)))
    expected, gradient = given(logits)
    np.testing.assert_allclose(loss, expected, rtol=1e-12)
    assert relative_error(jax.jit(jax.grad(noise_contrastive))(logits), gradient) < 1e-12


@pytest.mark.usefixtures("x64")
class TestGradients:
    @every_loss
    def test_equal_float64_differences(self, loss):
        z = projections(views=3, batch=4, dim=3)
        expected = references.central_difference(jax.jit(loss), z, 1e-5)
        assert relative_error(jax.jit(jax.grad(loss))(z), expected) < 1e-8

    @every_loss
    def test_chunks_change_neither_value_nor_gradient(self, loss):
        z = projections(views=3, batch=7)
        value, gradient = jax.jit(jax.value_and_grad(loss))(z)
        for chunk_size in (4, 100):  # 21 anchors and 5 dimensions: with a remainder, and more than there are
            chunked_value, chunked_gradient = jax.jit(jax.value_and_grad(partial(loss, chunk_size=chunk_size)))(z)
            assert chunked_value == close(value, rel=1e-12)
            assert relative_error(chunked_gradient, gradient) < 1e-12

    def test_no_gradient_reaches_the_bank(self):
        bank = np.random.default_rng(1).normal(size=(7, 5))
        gradient = jax.grad(lambda bank: nt_xent(projections(), temperature=0.2, bank=bank))(bank)
        assert not np.any(gradient)


def temporary_bytes(name, shape, chunk_size):
    """XLA's own account of the temporary memory of a gradient."""
    gradient = jax.jit(jax.grad(partial(LOSSES[name], chunk_size=chunk_size)))
    compiled = gradient.lower(jax.ShapeDtypeStruct(shape, jnp.float32)).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_chunked_memory_is_linear():
    """Four times the size, at most about four times the chunked memory."""
    small, large = (2, 1024, 16), (2, 4096, 16)
    assert temporary_bytes("nt_xent", large, None) > 12 * temporary_bytes("nt_xent", small, None)
    assert temporary_bytes("nt_xent", large, 64) < 5 * temporary_bytes("nt_xent", small, 64)
    assert temporary_bytes("nt_xent", large, 64) < temporary_bytes("nt_xent", large, None) / 10


@pytest.mark.parametrize("chunk_size", [None, 64])
def test_memory_of_redundancy_reduction_is_linear_in_the_dimensions(chunk_size):
    small, large = (temporary_bytes("drr", (2, 16, dim), chunk_size) for dim in (1024, 4096))
    assert large < 5 * small
    assert large < 10 * 4 * 2 * 16 * 4096  # ten times the projections, which are a matrix of 4096 x 4096 / 128


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("centered", "unbiased"), [(False, False), (True, True)])
class TestFewerExamplesThanDimensions:
    """Redundancy reduction then compares examples, and never has the matrix of all pairs of dimensions."""

    @pytest.fixture(autouse=True)
    def few_are_many(self, monkeypatch):
        monkeypatch.setattr(redundancy, "_MANY", 0)

    def test_value_and_gradient(self, centered, unbiased):
        z = projections(views=3, batch=4, dim=17) + 0.3
        settings = {"centered": centered, "unbiased": unbiased, "off_diagonal_weight": 0.0051}
        loss = jax.jit(partial(losses.redundancy_reduction, **settings))
        assert loss(z) == close(references.redundancy_reduction(z, 0.0051, centered, unbiased), rel=1e-10)
        gradient = jax.grad(loss)(z)
        assert relative_error(gradient, references.central_difference(loss, z, 1e-5)) < 1e-8
        chunked = jax.jit(jax.grad(partial(losses.redundancy_reduction, chunk_size=3, **settings)))(z)
        assert relative_error(chunked, gradient) < 1e-12

    def test_on_several_devices(self, centered, unbiased):
        z = projections(batch=4, dim=17)
        loss = partial(losses.redundancy_reduction, centered=centered, unbiased=unbiased)
        value, gradient = jax.jit(jax.value_and_grad(loss))(z)
        shares = jnp.moveaxis(z.reshape(2, 4, 1, 17), 1, 0)
        values, gradients = jax.pmap(jax.value_and_grad(partial(loss, axis_name="i")), axis_name="i")(shares)
        np.testing.assert_allclose(values, value, rtol=1e-12)
        # Every device has the whole loss: with the mean over devices that follows, each share counts once.
        assert relative_error(jnp.moveaxis(gradients, 0, 1).reshape(z.shape) / 4, gradient) < 1e-12


@pytest.mark.usefixtures("x64")
class TestInvariances:
    @every_loss
    def test_order_of_images_views_and_dimensions(self, loss):
        z, loss = projections(views=3), jax.jit(loss)
        rng = np.random.default_rng(3)
        value = loss(z)
        assert loss(z[:, rng.permutation(6)]) == close(value, rel=1e-12)
        assert loss(z[rng.permutation(3)]) == close(value, rel=1e-12)
        assert loss(z[:, :, rng.permutation(5)]) == close(value, rel=1e-12)

    @contrastive
    def test_scale_of_each_projection(self, loss):
        z, loss = projections(), jax.jit(loss)
        scale = np.random.default_rng(3).uniform(0.1, 10, size=(2, 6, 1))
        assert loss(scale * z) == close(loss(z), rel=1e-12)

    @contrastive
    def test_rotation(self, loss):
        z, loss = projections(), jax.jit(loss)
        rotation, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(5, 5)))
        assert loss(z @ rotation) == close(loss(z), rel=1e-12)

    def test_redundancy_reduction_ignores_the_affine_map_of_a_dimension(self):
        z = projections()
        rng = np.random.default_rng(3)
        scale, shift = rng.uniform(0.1, 10, size=(2, 1, 5)), rng.normal(size=(2, 1, 5))
        plain, centered = jax.jit(LOSSES["drr"]), jax.jit(LOSSES["drr_centered"])
        assert plain(scale * z) == close(plain(z), rel=1e-12)
        assert centered(scale * z + shift) == close(centered(z), rel=1e-12)
        assert plain(scale * z + shift) != close(plain(z), rel=1e-3)

    def test_redundancy_reduction_is_zero_only_for_decorrelated_equal_views(self):
        z = np.stack([np.linalg.qr(projections()[0])[0]] * 2)  # orthonormal dimensions
        loss = jax.jit(LOSSES["drr"])
        assert loss(z) == close(0.0, rel=0, abs=1e-24)
        assert loss(projections()) > 0.1


def hostile_inputs():
    z = projections(batch=8).astype(np.float32)
    duplicates = z.copy()
    duplicates[:, 1] = duplicates[:, 0]
    partly_constant = z.copy()
    partly_constant[:, :, 0] = 0.1
    zero_image = z.copy()
    zero_image[:, 0] = 0
    return {
        "constant": np.full_like(z, 0.1),
        "zero": np.zeros_like(z),
        "one constant dimension": partly_constant,
        "one zero image": zero_image,
        "duplicate images": duplicates,
        "equal views": np.stack([z[0], z[0]]),
        "huge": z * 1e30,
        "tiny": z * 1e-30,
        "mixed norms": z * np.logspace(-30, 30, 8, dtype=np.float32)[:, None],
        "far from the origin": z * 1e-6 + 1.0,
        "bfloat16": jnp.asarray(z, jnp.bfloat16),
        "float16": jnp.asarray(z, jnp.float16),
    }


@every_loss
def test_stays_finite_on_hostile_inputs(loss):
    gradient_function = jax.jit(jax.value_and_grad(loss))
    for name, z in hostile_inputs().items():
        value, gradient = gradient_function(z)
        assert value.dtype == jnp.float32, name
        assert jnp.isfinite(value), name
        assert jnp.all(jnp.isfinite(gradient)), name
        assert gradient.dtype == z.dtype, name


@contrastive
def test_stays_finite_at_extreme_temperatures(loss):
    gradient_function = jax.jit(jax.value_and_grad(lambda z, temperature: loss(z, temperature=temperature)))
    for temperature in (1e-3, 1e-2, 1e3):
        for name, z in hostile_inputs().items():
            value, gradient = gradient_function(z, temperature)
            assert jnp.isfinite(value), (temperature, name)
            assert jnp.all(jnp.isfinite(gradient)), (temperature, name)


def test_a_constant_dimension_correlates_with_nothing():
    z = hostile_inputs()["one constant dimension"]
    loss = jax.jit(LOSSES["drr_centered"])
    value, gradient = jax.jit(jax.value_and_grad(loss))(z)
    # The constant dimension adds (1 - 0)^2; the others keep their own loss.
    assert value == close(loss(z[:, :, 1:]) + 1.0, rel=1e-5)
    assert not np.any(gradient[:, :, 0])


@every_loss
def test_float32_is_close_to_float64(loss):
    z = projections(batch=32, dim=16)
    with jax.enable_x64(True):
        value, gradient = jax.jit(jax.value_and_grad(loss))(z)
    value32, gradient32 = jax.jit(jax.value_and_grad(loss))(z.astype(np.float32))
    assert value32 == close(value, rel=1e-5)
    assert relative_error(gradient32, gradient) < 1e-5


@every_loss
@pytest.mark.parametrize("devices", [2, 4])
def test_devices_agree_with_one(loss, devices):
    z = projections(views=3, batch=8).astype(np.float32)
    shards = np.stack(np.split(z, devices, axis=1))  # [devices, views, batch / devices, dim]

    def step(weights, shard):
        value, gradient = jax.value_and_grad(lambda w: loss(jnp.tanh(shard @ w), axis_name="batch"))(weights)
        return value, jax.lax.pmean(gradient, "batch")

    weights = np.random.default_rng(5).normal(size=(5, 4)).astype(np.float32)
    found = jax.pmap(step, axis_name="batch", in_axes=(None, 0), out_axes=None, devices=jax.devices()[:devices])
    value, gradient = found(weights, shards)
    expected_value, expected_gradient = jax.jit(jax.value_and_grad(lambda w: loss(jnp.tanh(z @ w))))(weights)
    assert value == close(expected_value, rel=1e-5)
    assert relative_error(gradient, expected_gradient) < 1e-5
