"""How features fill their space: spectrum, effective rank, alignment, uniformity, correlation."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import entr

from metamask_jax.core.arrays import matmul, unit_norm

_CHUNK = 1024  # rows compared with all others at a time


@jax.jit
def singular_values(h: jax.Array) -> jax.Array:
    """Singular values [min(size, dim)] of features [size, dim], the largest first; not centred.

    Example:
      >>> singular_values(jnp.diag(jnp.array([1.0, 3.0]))).tolist()
      [3.0, 1.0]
    """
    return jnp.linalg.svd(h, compute_uv=False)


@jax.jit
def effective_rank(h: jax.Array) -> jax.Array:
    """Effective rank, scalar, of features [size, dim]: from 1 (collapsed onto a line) to min(size, dim).

    exp of the entropy of the singular values' shares in their sum (RankMe, Garrido et al. 2023, Eq. 1).

    Example:
      >>> round(float(effective_rank(jnp.eye(5))), 4)
      5.0
    """
    values = singular_values(h)
    return jnp.exp(jnp.sum(entr(values / jnp.maximum(jnp.sum(values), jnp.finfo(values.dtype).tiny))))


@jax.jit
def alignment(h: jax.Array, other: jax.Array) -> jax.Array:
    """Mean squared distance, scalar, on the unit sphere between features [size, dim] of two views of the same images.

    Wang and Isola 2020 with exponent 2; zero if the views agree, 2 on average if they have nothing in common.
    """
    return jnp.mean(jnp.sum((unit_norm(h) - unit_norm(other)) ** 2, axis=1))


@jax.jit
def uniformity(h: jax.Array, t: float) -> jax.Array:
    """Log of the mean Gaussian potential exp(-t * distance^2), scalar, over all pairs of features [size, dim].

    Wang and Isola 2020, who take t=2: zero if all fall on one point, the lower the better they spread over the
    unit sphere. Pairs are compared in chunks, so memory grows with `size` only.
    """
    h = unit_norm(h)
    size, chunk = len(h), min(_CHUNK, len(h))
    padded = jnp.pad(h, ((0, -size % chunk), (0, 0))).reshape(-1, chunk, h.shape[1])

    def potential(start_and_rows: tuple[jax.Array, jax.Array]) -> jax.Array:
        start, rows = start_and_rows
        index = start + jnp.arange(chunk)
        pair = (index[:, None] < size) & (index[:, None] != jnp.arange(size))
        cosine = matmul(rows, h.T)
        return jnp.sum(jnp.where(pair, jnp.exp(-2 * t * (1 - cosine)), 0.0))

    sums = lax.map(potential, (chunk * jnp.arange(len(padded)), padded))
    return jnp.log(jnp.sum(sums / size) / (size - 1))


@jax.jit
def cross_correlation(h: jax.Array) -> jax.Array:
    """Correlation [dim, dim] of the dimensions of features [size, dim] with one another; zero where one is constant."""
    centered = h - jnp.mean(h, axis=0)
    centered -= jnp.mean(centered, axis=0)  # what rounding left of the mean, which could pass for a signal
    norms = jnp.linalg.norm(centered, axis=0)
    constant = norms <= jnp.finfo(h.dtype).eps * jnp.linalg.norm(h, axis=0)
    scaled = centered / jnp.where(constant, jnp.inf, norms)
    return matmul(scaled.T, scaled)
