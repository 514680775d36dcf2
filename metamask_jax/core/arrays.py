"""What the losses share: checks, normalisation, and sums over the batch of all devices."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

# TPUs and GPUs would otherwise round the operands of a float32 product, and a logit divided by 0.07 shows it.
matmul = partial(jnp.matmul, precision=lax.Precision.HIGHEST)


def unit_norm(z: jax.Array) -> jax.Array:
    """Divides each vector by its Euclidean norm; a zero vector stays zero, with zero gradient."""
    z = z / peak_magnitude(z, axis=-1, axis_name=None)
    square = jnp.sum(z * z, axis=-1, keepdims=True)
    return z * lax.rsqrt(jnp.where(square > 0, square, 1.0))


def peak_magnitude(z: jax.Array, *, axis: int, axis_name: str | None) -> jax.Array:
    """The largest magnitude along an axis, or one where all are zero: squares of z / peak cannot overflow or vanish.

    What is divided by it gets normalised afterwards, so it is a constant to every derivative.
    """
    peak = jnp.max(jnp.abs(lax.stop_gradient(z)), axis=axis, keepdims=True)
    if axis_name is not None:
        peak = lax.pmax(peak, axis_name)
    return jnp.where(peak > jnp.finfo(z.dtype).tiny, peak, 1.0)


def batch_mean(z: jax.Array, axis_name: str | None) -> jax.Array:
    """Mean over the batch, the last axis but one, of all devices."""
    mean = jnp.mean(z, axis=-2)
    return mean if axis_name is None else lax.pmean(mean, axis_name)


def map_rows(function, rows, chunk_size: int | None):  # type: ignore[no-untyped-def]
    """Maps over rows: all at once, or a chunk at a time, recomputing each chunk in the backward pass."""
    if chunk_size is None:
        return jax.vmap(function)(rows)
    if chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size}; expected a whole number >= 1, or None")
    return lax.map(jax.checkpoint(function), rows, batch_size=chunk_size)


def as_projections(z: jax.Array) -> jax.Array:
    """Checks [views, batch, dim] and widens half precision to float32."""
    z = widen(z)
    if z.ndim != 3 or z.shape[0] < 2:
        raise ValueError(f"z.shape={z.shape}; expected [views, batch, dim] with at least 2 views")
    return z


def widen(z: jax.Array) -> jax.Array:
    """Brings half precision to float32, in which losses compute at least."""
    z = jnp.asarray(z)
    if not jnp.issubdtype(z.dtype, jnp.floating):
        raise TypeError(f"z.dtype={z.dtype}; expected a floating-point type")
    return z.astype(jnp.promote_types(z.dtype, jnp.float32))


def require_temperature(temperature: float | jax.Array) -> None:
    """Refuses a temperature that is not positive."""
    if is_concrete(temperature) and not temperature > 0:
        raise ValueError(f"temperature={temperature}; expected a number > 0")


def is_concrete(value: float | jax.Array) -> bool:
    """Whether a hyper-parameter can be checked now: under jit it may be traced."""
    return not isinstance(value, jax.core.Tracer)
