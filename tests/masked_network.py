"""A network small enough for exact arithmetic: BatchNorm in its encoder, and a mask between encoder and head."""

import jax
import jax.numpy as jnp
import numpy as np

from metamask_jax import mask_weights, nt_xent

ESTIMATORS = ("exact", "first_order", "finite_difference")


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
