"""The dimensional mask: one learnable weight for every dimension of the representation (paper Eq. 4)."""

import jax
import jax.numpy as jnp

ACTIVATIONS = ("sigmoid", "identity")


def init_mask(dim: int, *, activation: str) -> jax.Array:
    """Starting logits [dim] of a mask: all weights are one half under `sigmoid`, one under `identity`.

    Example:
      >>> init_mask(3, activation="identity")
      Array([1., 1., 1.], dtype=float32)
    """
    if dim < 1:
        raise ValueError(f"dim={dim}; expected a whole number >= 1")
    _require_activation(activation)
    return jnp.zeros(dim) if activation == "sigmoid" else jnp.ones(dim)


def mask_weights(logits: jax.Array, *, activation: str) -> jax.Array:
    """Turns logits [dim] into the weights [dim] that multiply the representation.

    Example:
      >>> mask_weights(jnp.zeros(2), activation="sigmoid")
      Array([0.5, 0.5], dtype=float32)
    """
    _require_activation(activation)
    return jax.nn.sigmoid(logits) if activation == "sigmoid" else logits


def apply_mask(h: jax.Array, weights: jax.Array) -> jax.Array:
    """Multiplies features [..., dim] by weights [dim] (paper Eq. 4).

    Example:
      >>> apply_mask(jnp.ones((2, 3)), jnp.array([1.0, 0.5, 0.0]))
      Array([[1. , 0.5, 0. ],
             [1. , 0.5, 0. ]], dtype=float32)
    """
    if weights.ndim != 1 or h.ndim < 1 or h.shape[-1] != weights.shape[0]:
        raise ValueError(f"weights.shape={weights.shape}; expected [dim] with the dim of h.shape={h.shape}")
    return h * weights.astype(h.dtype)


def _require_activation(activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r}; expected one of {', '.join(map(repr, ACTIVATIONS))}")
