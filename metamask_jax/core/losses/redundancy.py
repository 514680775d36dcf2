"""Dimensional redundancy reduction (paper Eq. 2-3)."""

import itertools

import jax
import jax.numpy as jnp
from jax import lax

from metamask_jax.core import collectives
from metamask_jax.core.arrays import (
    as_projections,
    batch_mean,
    map_rows,
    matmul,
    peak_magnitude,
    require_flag,
    require_number,
)

_MANY = 256  # dimensions: with fewer, the matrix of all their pairs costs next to nothing


def redundancy_reduction(
    z: jax.Array,
    *,
    off_diagonal_weight: float | jax.Array = 0.0051,
    centered: bool = True,
    unbiased: bool = False,
    epsilon: float = 1e-6,
    chunk_size: int | None = None,
    axis_name: str | None = None,
) -> jax.Array:
    """Dimensional redundancy reduction (paper Eq. 2-3): cross-correlations of every pair of views against the identity.

    Args:
      z: projections [views, batch, dim].
      off_diagonal_weight: lambda of Eq. 2. The default is that of Barlow Twins' program; its paper rounds to 0.005.
      centered: subtract each dimension's mean over the batch first, as Barlow Twins and the program of MetaMask's
        authors do. False is Eq. 3 to the letter.
      unbiased: divide by the unbiased standard deviation, as the program of MetaMask's authors does: every correlation
        shrinks by (batch - 1) / batch.
      epsilon: a dimension whose deviation is at most this fraction of its root mean square counts as constant; it
        correlates with nothing (C = 0) and receives no gradient, where Eq. 3 would divide rounding errors by zero.
      chunk_size: rows held in memory at a time of the largest matrix, that of all pairs of dimensions or, where these
        are at least four times as many, of examples; None holds all of them.
      axis_name: the mapped axis over which the batch is split, if any.

    Returns:
      The loss summed over pairs of views and over dimensions, a scalar.

    Example:
      >>> z = jnp.array([[[1.0, 1.0], [-1.0, 1.0]]] * 2)  # two equal views, uncorrelated dimensions
      >>> float(redundancy_reduction(z, centered=False))
      0.0
    """
    z = as_projections(z)
    require_number("off_diagonal_weight", off_diagonal_weight, lambda weight: weight >= 0, "a number >= 0")
    require_number("epsilon", epsilon, lambda epsilon: epsilon >= 0, "a number >= 0")
    for name, flag in (("centered", centered), ("unbiased", unbiased)):
        require_flag(name, flag)
    batch = z.shape[1] * collectives.device_count(axis_name)
    z = _unit_variance(z, centered=centered, epsilon=epsilon, axis_name=axis_name)
    scale = (batch - 1) / batch if unbiased else 1.0

    def pair_loss(a: jax.Array, b: jax.Array) -> jax.Array:
        diagonal = scale * batch_mean(a * b, axis_name, axis=0)  # C_kk, [dim]
        if a.shape[1] >= max(4 * batch, _MANY):
            off_diagonal = _squares_by_examples(a, b, scale, chunk_size, axis_name) - jnp.sum(diagonal**2)
        else:
            off_diagonal = _off_diagonal_squares(a, b, scale, chunk_size, axis_name)
        return jnp.sum((1.0 - diagonal) ** 2) + off_diagonal_weight * off_diagonal

    return sum((pair_loss(a, b) for a, b in itertools.combinations(z, 2)), start=jnp.zeros((), z.dtype))


def _off_diagonal_squares(
    a: jax.Array, b: jax.Array, scale: float, chunk_size: int | None, axis_name: str | None
) -> jax.Array:
    """Sum of the squared entries off the diagonal of C = scale * mean over the batch of a_k b_k', from C itself."""

    def row(dimension_and_column: tuple[jax.Array, jax.Array]) -> jax.Array:
        dimension, column = dimension_and_column  # dimension k of the first view over the batch, [batch]
        correlations = scale / len(column) * matmul(column, b)  # C_kk' for all k', [dim]
        correlations = collectives.mean(correlations, axis_name)
        return jnp.sum(jnp.where(jnp.arange(b.shape[1]) == dimension, 0.0, correlations) ** 2)

    return jnp.sum(map_rows(row, (jnp.arange(a.shape[1]), a.T), chunk_size))


def _squares_by_examples(
    a: jax.Array, b: jax.Array, scale: float, chunk_size: int | None, axis_name: str | None
) -> jax.Array:
    """Sum of all squared entries of C, without C: scale^2 times the mean of (a_i . a_j) (b_i . b_j) over examples.

    A matrix of examples is smaller than one of dimensions where they are fewer, and C cannot then be close to a
    diagonal matrix: its rank is at most the batch, so the sum of all squares is at least dim / batch times that of a
    diagonal of ones. With four times as many dimensions, subtracting the diagonal costs a fraction of a bit.
    """
    others = tuple(collectives.gather(view, axis_name, axis=0) for view in (a, b))

    def row(example: tuple[jax.Array, jax.Array]) -> jax.Array:
        first, second = (matmul(view, all_.T) for view, all_ in zip(example, others, strict=True))
        return jnp.mean(first * second)

    return scale**2 * batch_mean(map_rows(row, (a, b), chunk_size), axis_name)


def _unit_variance(z: jax.Array, *, centered: bool, epsilon: float, axis_name: str | None) -> jax.Array:
    """Divides each view's dimensions [views, batch, dim] by their root mean square over the batch of all devices."""
    z = z / peak_magnitude(z, axis=1, axis_name=axis_name)
    offset = batch_mean(z, axis_name, axis=1) if centered else jnp.zeros(z.shape[::2], z.dtype)
    z = z - offset[:, None]
    power = batch_mean(z * z, axis_name, axis=1)
    constant = power <= epsilon**2 * (power + offset**2)
    return jnp.where(constant[:, None], 0.0, z * lax.rsqrt(jnp.where(constant, 1.0, power))[:, None])
