"""How features fill their space: spectrum, effective rank, alignment, uniformity, correlation."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import entr

from metamask_jax.core.arrays import matmul, unit_norm

_CHUNK = 1024  # rows compared with all others at a time
_RIDGE, _SMALLEST_SHARE = 1e-4, 1e-7  # LiDAR's own constants


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


def alpha_req(h: np.ndarray, *, ranks: tuple[int, int] = (4, 100)) -> float:
    """How fast the covariance's eigenvalues of features [size, dim] decay: the alpha of rank^-alpha.

    Alpha-ReQ (Agrawal et al. 2022) with the fit of its authors' program: least squares of logarithms over a range of
    ranks, each weighted by 1/rank. They find good features near 1; more is fewer directions, less is noise. Computed in
    float64; ranks beyond the rounding of float32 are left out, and NaN is returned if fewer than two are left.

    Example:
      >>> spectrum = np.arange(1, 31) ** -0.75  # singular values, whose squares are eigenvalues
      >>> round(alpha_req(np.vstack([np.diag(spectrum), -np.diag(spectrum)])), 6)
      1.5
    """
    centered = np.asarray(h, np.float64) - np.mean(h, axis=0, dtype=np.float64)
    values = np.linalg.svd(centered, compute_uv=False)
    known = values > values[0] * max(h.shape) * np.finfo(np.float32).eps
    rank = np.arange(1, len(values) + 1)
    fitted = known & (rank >= ranks[0]) & (rank <= ranks[1])
    if fitted.sum() < 2:
        return float("nan")
    slope, _ = np.polyfit(np.log(rank[fitted]), np.log(values[fitted] ** 2), 1, w=rank[fitted] ** -0.5)
    return float(-slope)


def lidar(views: np.ndarray) -> float:
    """Effective rank of what tells images apart, beside what changes from view to view, of features [views, size, dim].

    LiDAR (Thilak et al. 2023, Eq. 1-4): exp of the entropy of the eigenvalues of between-image covariance, whitened by
    within-image covariance. From 1 to min(size - 1, dim). Computed in float64; the paper takes 1,000 images or more of
    10 or 50 views each.

    Example:
      >>> signal = np.kron([[1.0], [-1.0]], np.eye(4))  # eight images in four directions, alike in all views
      >>> round(lidar(np.stack([signal, signal])), 3)
      4.0
    """
    h = np.asarray(views, np.float64)
    means = h.mean(axis=0)
    deviations, spread = (h - means).reshape(-1, h.shape[-1]), means - means.mean(axis=0)
    within = deviations.T @ deviations / len(deviations) + _RIDGE * np.eye(h.shape[-1])
    factor = np.linalg.cholesky(within)
    whitened = np.linalg.solve(factor, spread.T)  # any root of the inverse gives the same eigenvalues
    values = np.linalg.svd(whitened, compute_uv=False) ** 2
    shares = values / max(values.sum(), np.finfo(np.float64).tiny) + _SMALLEST_SHARE
    return float(np.exp(-np.sum(shares * np.log(shares))))


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
