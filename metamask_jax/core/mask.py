"""The dimensional mask: one learnable weight for every dimension of the representation (paper Eq. 4)."""

import jax
import jax.numpy as jnp

from metamask_jax.core.arrays import as_array, require_whole
from metamask_jax.errors import shown

ACTIVATIONS = ("sigmoid", "identity")


def init_mask(dim: int, *, activation: str = "sigmoid") -> jax.Array:
    """Starting logits [dim] of a mask: all weights are one half under `sigmoid`, one under `identity`.

    Args:
      dim: length of the representation.
      activation: what turns logits into weights: `sigmoid`, the default of the authors' program, or `identity`.

    Returns:
      The logits, float32 [dim].

    Example:
      >>> init_mask(3, activation="identity")
      Array([1., 1., 1.], dtype=float32)
    """
    require_whole("dim", dim)
    require_activation(activation)
    return jnp.zeros(dim) if activation == "sigmoid" else jnp.ones(dim)


def mask_weights(logits: jax.Array, *, activation: str = "sigmoid") -> jax.Array:
    """Turns logits [dim] into the weights [dim] that multiply the representation.

    Example:
      >>> mask_weights(jnp.zeros(2))
      Array([0.5, 0.5], dtype=float32)
    """
    require_activation(activation)
    logits = _floating(as_array(logits, "logits"), "logits")
    return jax.nn.sigmoid(logits) if activation == "sigmoid" else logits


def apply_mask(h: jax.Array, weights: jax.Array) -> jax.Array:
    """Multiplies features [..., dim] by weights [dim] (paper Eq. 4); the result has the features' precision.

    Example:
      >>> apply_mask(jnp.ones((2, 3)), jnp.array([1.0, 0.5, 0.0]))
      Array([[1. , 0.5, 0. ],
             [1. , 0.5, 0. ]], dtype=float32)
    """
    h, weights = as_array(h, "h"), as_array(weights, "weights")
    if weights.ndim != 1 or h.ndim < 1 or h.shape[-1] != weights.shape[0]:
        raise ValueError(f"weights.shape={weights.shape}; expected [dim] with the dim of h.shape={h.shape}")
    return _floating(h, "h") * weights.astype(h.dtype)


def _floating(x: jax.Array, name: str) -> jax.Array:
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"{name}.dtype={x.dtype}; expected a floating-point type")
    return x


def require_activation(activation: str) -> None:
    """Refuses what is no activation."""
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ValueError(f"activation={shown(activation)}; expected one of {', '.join(map(repr, ACTIVATIONS))}")
