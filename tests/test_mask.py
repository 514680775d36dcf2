"""The dimensional mask: where it starts, what it multiplies, what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metamask_jax import apply_mask, init_mask, mask_weights


def test_sigmoid_starts_at_one_half_and_identity_at_one():
    assert np.array_equal(mask_weights(init_mask(4, activation="sigmoid"), activation="sigmoid"), np.full(4, 0.5))
    assert np.array_equal(mask_weights(init_mask(4, activation="identity"), activation="identity"), np.ones(4))


def test_sigmoid_equals_its_formula():
    logits = np.linspace(-30, 30, 7)
    with jax.enable_x64(True):
        weights = mask_weights(jnp.asarray(logits), activation="sigmoid")
    assert np.allclose(weights, 1 / (1 + np.exp(-logits)), rtol=1e-12)


def test_apply_scales_each_dimension_and_keeps_the_features_precision():
    h = np.arange(12.0).reshape(2, 2, 3)
    weights = jnp.array([1.0, 0.5, 0.0])
    assert np.array_equal(apply_mask(jnp.asarray(h), weights), h * np.array([1.0, 0.5, 0.0]))
    assert apply_mask(jnp.asarray(h, jnp.bfloat16), weights).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    "call", [lambda a: init_mask(3, activation=a), lambda a: mask_weights(jnp.ones(3), activation=a)]
)
def test_unknown_activation(call):
    with pytest.raises(ValueError, match="activation='relu'; expected one of 'sigmoid', 'identity'"):
        call("relu")


def test_dimension_mismatch():
    with pytest.raises(ValueError, match=r"weights\.shape=\(4,\); expected \[dim\] with the dim of h\.shape=\(2, 3\)"):
        apply_mask(jnp.ones((2, 3)), jnp.ones(4))


def test_empty_mask():
    with pytest.raises(ValueError, match="dim=0; expected a whole number >= 1"):
        init_mask(0, activation="sigmoid")


@pytest.mark.parametrize("dim", [2.5, 3.0, "3", None], ids=repr)
def test_size_that_is_no_whole_number(dim):
    with pytest.raises(TypeError, match=f"dim={dim!r}; expected a whole number >= 1"):
        init_mask(dim)


def test_sigmoid_is_the_default():
    assert np.array_equal(init_mask(4), init_mask(4, activation="sigmoid"))
    assert np.array_equal(mask_weights(jnp.arange(3.0)), mask_weights(jnp.arange(3.0), activation="sigmoid"))


def test_whole_features_are_refused_not_rounded():
    with pytest.raises(TypeError, match=r"h\.dtype=int32; expected a floating-point type"):
        apply_mask(jnp.ones((2, 3), jnp.int32), jnp.full(3, 0.5))
