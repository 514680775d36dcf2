"""What the losses share: checks of arguments, normalisation, and means over the batch of all devices."""

import numbers
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from metamask_jax.core import collectives
from metamask_jax.errors import shown

_LARGEST = 3e38  # float32 has no larger number

# TPUs and GPUs would otherwise round the operands of a float32 product, and a logit divided by 0.07 shows it.
matmul = partial(jnp.matmul, precision=lax.Precision.HIGHEST)


def unit_norm(z: jax.Array) -> jax.Array:
    """Divides each vector [..., dim] by its Euclidean norm; a zero vector stays zero, with zero gradient.

    Example:
      >>> unit_norm(jnp.array([[0.0, -2.0], [0.0, 0.0]]))
      Array([[ 0., -1.],
             [ 0.,  0.]], dtype=float32)
    """
    z = z / peak_magnitude(z, axis=-1, axis_name=None)
    square = jnp.sum(z * z, axis=-1, keepdims=True)
    return z * lax.rsqrt(jnp.where(square > 0, square, 1.0))


def peak_magnitude(z: jax.Array, *, axis: int, axis_name: str | None) -> jax.Array:
    """The largest magnitude along an axis, or one where all are zero: squares of z / peak cannot overflow or vanish.

    What is divided by it gets normalised afterwards, so it is a constant to every derivative.
    """
    peak = jnp.max(jnp.abs(lax.stop_gradient(z)), axis=axis, keepdims=True)
    peak = collectives.maximum(peak, axis_name)
    return jnp.where(peak > jnp.finfo(z.dtype).tiny, peak, 1.0)


def batch_mean(values: jax.Array, axis_name: str | None, *, axis: int | None = None) -> jax.Array:
    """Mean along an axis, or over all of them, and over all devices; each has as many values."""
    return collectives.mean(jnp.mean(values, axis=axis), axis_name)


def map_rows(function: Callable[[Any], jax.Array], rows: Any, chunk_size: int | None) -> jax.Array:
    """Maps over rows: all at once, or one chunk after another, each computed again in the backward pass."""
    if chunk_size is None:
        return jax.vmap(function)(rows)
    require_whole("chunk_size", chunk_size, expected="a whole number >= 1, or None")
    return lax.map(jax.checkpoint(function), rows, batch_size=chunk_size)


def as_projections(z: jax.Array, name: str = "z") -> jax.Array:
    """Checks [views, batch, dim] and widens half precision to float32."""
    z = widen(z, name)
    require_shape(name, z, z.ndim == 3 and len(z) >= 2, "[views, batch, dim] with at least 2 views")
    return z


def require_shape(name: str, x: jax.Array, fits: bool, expected: str) -> None:
    """Refuses an array whose shape does not fit or that is empty."""
    if not fits or x.size == 0:
        raise ValueError(f"{name}.shape={x.shape}; expected {expected}{', not empty' if fits else ''}")


def widen(z: jax.Array, name: str = "z") -> jax.Array:
    """Brings half precision to float32: losses compute in float32 or wider."""
    z = as_array(z, name)
    if not jnp.issubdtype(z.dtype, jnp.floating):
        raise TypeError(f"{name}.dtype={z.dtype}; expected a floating-point type")
    return z.astype(jnp.promote_types(z.dtype, jnp.float32))


def as_array(values: Any, name: str) -> jax.Array:
    """Makes an array of what JAX can make one of, and refuses the rest by name.

    Example:
      >>> as_array("x", "z")
      Traceback (most recent call last):
      TypeError: z='x'; expected an array of numbers
    """
    try:
        return jnp.asarray(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name}={shown(values)}; expected an array of numbers") from error


def require_number(name: str, value: Any, allowed: Callable[[Any], bool], expected: str) -> None:
    """Refuses a hyper-parameter that is no number or not an allowed one; under jit it may be traced and is let pass.

    Example:
      >>> require_number("width", -1, lambda width: width > 0, "a number > 0")
      Traceback (most recent call last):
      ValueError: width=-1; expected a number > 0
    """
    if isinstance(value, jax.core.Tracer):
        return
    scalar = getattr(value, "ndim", None) == 0 and getattr(value, "dtype", np.dtype(object)).kind in "fiuV"
    if not isinstance(value, numbers.Real) and not scalar:
        raise TypeError(f"{name}={shown(value)}; expected {expected}")
    if not (allowed(value) and value < _LARGEST):
        raise ValueError(f"{name}={shown(value) if isinstance(value, int) else value}; expected {expected}")


def require_flag(name: str, value: Any) -> None:
    """Refuses what is neither true nor false."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}={shown(value)}; expected True or False")


def require_function(name: str, value: Any) -> None:
    """Refuses what cannot be called.

    Example:
      >>> require_function("loss", 0.5)
      Traceback (most recent call last):
      TypeError: loss=0.5; expected a function
    """
    if not callable(value):
        raise TypeError(f"{name}={shown(value)}; expected a function")


def require_temperature(temperature: float | jax.Array) -> None:
    """Refuses a temperature that is not positive."""
    require_number("temperature", temperature, lambda t: t > 0, "a number > 0")


def require_whole(name: str, value: Any, *, expected: str = "a whole number >= 1") -> int:
    """A whole number of at least one, or a refusal; such numbers decide shapes, so they are never traced.

    Example:
      >>> require_whole("dim", 2.5)
      Traceback (most recent call last):
      TypeError: dim=2.5; expected a whole number >= 1
    """
    if not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}={shown(value)}; expected {expected}")
    if not 1 <= int(value) < 2**31:
        raise ValueError(f"{name}={shown(value)}; expected {expected}")
    return int(value)
