"""Contrastive losses: NT-Xent (paper Eq. 1), its debiased form, and that with hard negatives."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from metamask_jax.core import collectives
from metamask_jax.core.arrays import (
    as_projections,
    batch_mean,
    map_rows,
    matmul,
    require_number,
    require_shape,
    require_temperature,
    unit_norm,
    widen,
)


def nt_xent(
    z: jax.Array,
    *,
    temperature: float | jax.Array = 0.5,
    bank: jax.Array | None = None,
    chunk_size: int | None = None,
    axis_name: str | None = None,
) -> jax.Array:
    """Contrastive loss (paper Eq. 1, SimCLR's NT-Xent), the mean over anchors and their positives.

    Every view of every image is an anchor in turn; its positives are the other views of that image, and the
    denominator runs over everything but the anchor itself.

    Args:
      z: projections [views, batch, dim]; cosine similarity, so their norms do not matter.
      temperature: tau of Eq. 1. The default is SimCLR's for CIFAR-10; it has 0.1 for ImageNet, and the program of
        MetaMask's authors has 0.07.
      bank: past projections [size, dim] that join every denominator as further negatives, without gradient.
      chunk_size: anchors whose similarities are held in memory at a time; memory is then linear in the batch.
        None holds all of them, which is quadratic.
      axis_name: the mapped axis over which the batch is split, if any; negatives come from all devices.

    Returns:
      The loss, a scalar.

    Example:
      >>> z = jnp.stack([jnp.eye(3), jnp.eye(3)])  # two views that agree, three images that do not
      >>> f"{nt_xent(z, temperature=0.1):.5f}"  # log(1 + 4 exp(-10))
      '0.00018'
    """
    positives, (negatives,), _ = _contrast(
        z, temperature=temperature, exponents=(1.0,), bank=bank, chunk_size=chunk_size, axis_name=axis_name
    )
    return _cross_entropy(positives, negatives, axis_name)


def debiased_nt_xent(
    z: jax.Array,
    *,
    temperature: float | jax.Array = 0.5,
    positive_prior: float | jax.Array = 0.1,
    bank: jax.Array | None = None,
    chunk_size: int | None = None,
    axis_name: str | None = None,
) -> jax.Array:
    """Debiased contrastive loss (Chuang et al. 2020, "DCL").

    The sum over negatives of `nt_xent` is replaced by an estimate of what it would be without the false negatives
    that share the anchor's class. With several positives, their mean is the estimate's positive term.

    The defaults are those of the paper's program.

    Args:
      z: projections [views, batch, dim].
      temperature: as in `nt_xent`.
      positive_prior: tau_plus, the probability that a random image shares the anchor's class; 0 gives `nt_xent`.
      bank: as in `nt_xent`.
      chunk_size: as in `nt_xent`.
      axis_name: as in `nt_xent`.

    Returns:
      The loss, a scalar.

    Example:
      >>> z = jnp.stack([jnp.eye(3), jnp.eye(3)])
      >>> bool(debiased_nt_xent(z, positive_prior=0.1) < nt_xent(z))
      True
    """
    _require_prior(positive_prior)
    positives, (negatives,), count = _contrast(
        z, temperature=temperature, exponents=(1.0,), bank=bank, chunk_size=chunk_size, axis_name=axis_name
    )
    negatives = _debias(positives, negatives, count, temperature=temperature, positive_prior=positive_prior)
    return _cross_entropy(positives, negatives, axis_name)


def hard_nt_xent(
    z: jax.Array,
    *,
    temperature: float | jax.Array = 0.5,
    positive_prior: float | jax.Array = 0.1,
    concentration: float | jax.Array = 1.0,
    bank: jax.Array | None = None,
    chunk_size: int | None = None,
    axis_name: str | None = None,
) -> jax.Array:
    """Contrastive loss with hard negatives (Robinson et al. 2021, "HCL").

    As `debiased_nt_xent`, with every negative weighted by its own similarity to the power `concentration`; the
    gradient flows through the weights. The defaults are those of the paper's program.

    Args:
      z: projections [views, batch, dim].
      temperature: as in `nt_xent`.
      positive_prior: as in `debiased_nt_xent`.
      concentration: beta >= 0; 0 gives `debiased_nt_xent`.
      bank: as in `nt_xent`.
      chunk_size: as in `nt_xent`.
      axis_name: as in `nt_xent`.

    Returns:
      The loss, a scalar.

    Example:
      >>> z = jax.random.normal(jax.random.key(0), (2, 4, 3))
      >>> bool(hard_nt_xent(z, concentration=1.0) > debiased_nt_xent(z))
      True
    """
    _require_prior(positive_prior)
    require_number("concentration", concentration, lambda beta: beta >= 0, "a number >= 0")
    positives, (weighted, weights), count = _contrast(
        z,
        temperature=temperature,
        exponents=(1.0 + concentration, concentration),
        bank=bank,
        chunk_size=chunk_size,
        axis_name=axis_name,
    )
    # N * sum(w * neg) / sum(w) with w = neg ** beta, in logarithms.
    negatives = jnp.log(float(count)) + weighted - weights
    negatives = _debias(positives, negatives, count, temperature=temperature, positive_prior=positive_prior)
    return _cross_entropy(positives, negatives, axis_name)


def _contrast(
    z: jax.Array,
    *,
    temperature: float | jax.Array,
    exponents: Sequence[float | jax.Array],
    bank: jax.Array | None,
    chunk_size: int | None,
    axis_name: str | None,
) -> tuple[jax.Array, list[jax.Array], int]:
    """Compares every anchor with its positives and its negatives.

    Args:
      z: this device's projections [views, batch, dim].
      temperature: divides the cosine similarities.
      exponents: powers p for which to sum the negatives.
      bank: further negatives [size, dim] or None.
      chunk_size: anchors at a time, or None for all.
      axis_name: the mapped axis or None.

    Returns:
      Logits of the positives [views - 1, views, batch], the logarithms of sum(exp(p * logit)) over the negatives
      (for each p, [views, batch]), and the number of an anchor's negatives.
    """
    z = as_projections(z)
    require_temperature(temperature)
    views, batch, dim = z.shape
    z = unit_norm(z)
    # Roll r pairs view j with view j + r (modulo views): over all r, each anchor meets each of its positives once.
    positives = jnp.stack([jnp.sum(z * jnp.roll(z, -r, axis=0), axis=-1) for r in range(1, views)]) / temperature

    image = jnp.arange(batch) + collectives.device_index(axis_name) * batch
    candidates = collectives.gather(z, axis_name, axis=1)
    candidate_image = jnp.tile(jnp.arange(candidates.shape[1]), views)
    candidates = candidates.reshape(-1, dim)
    if bank is not None:
        bank = widen(bank, "bank")
        fits = bank.ndim == 2 and bank.shape[1] == dim
        require_shape("bank", bank, fits, f"[size, {dim}] to go with z.shape={(views, batch, dim)}")
        candidates = jnp.concatenate([candidates, lax.stop_gradient(unit_norm(bank.astype(z.dtype)))])
        candidate_image = jnp.concatenate([candidate_image, jnp.full(len(bank), -1)])
    count = len(candidates) - views
    if count == 0:
        raise ValueError(f"z.shape={(views, batch, dim)}; expected at least 2 images in the batch, or a bank")

    def log_sums(row: tuple[jax.Array, jax.Array]) -> jax.Array:
        anchor, anchor_image = row
        logits = matmul(candidates, anchor) / temperature
        negative = candidate_image != anchor_image
        return jnp.stack([jax.nn.logsumexp(p * logits, where=negative) for p in exponents])

    sums = map_rows(log_sums, (z.reshape(-1, dim), jnp.tile(image, views)), chunk_size)  # [anchors, exponents]
    return positives, list(sums.T.reshape(len(exponents), views, batch)), count


def _debias(
    positives: jax.Array,
    negatives: jax.Array,
    count: int,
    *,
    temperature: float | jax.Array,
    positive_prior: float | jax.Array,
) -> jax.Array:
    """Takes the expected false negatives out of the negatives' sum (DCL's N_g); logarithms in and out."""
    # The largest term of each anchor is scaled to one, so that nothing overflows at small temperatures.
    peak = lax.stop_gradient(jnp.maximum(jnp.max(positives, axis=0), negatives))
    positive = jnp.mean(jnp.exp(positives - peak), axis=0)
    unbiased = (jnp.exp(negatives - peak) - positive_prior * count * positive) / (1.0 - positive_prior)
    # A similarity is never below -1, which bounds the true sum. The floor may underflow to zero: its logarithm is
    # then -inf, "no negatives", which is safe beside the positives but whose derivative is not, hence the tiny.
    floor = jnp.maximum(count * jnp.exp(-1.0 / temperature - peak), jnp.finfo(peak.dtype).tiny)
    # Not jnp.maximum: its derivative asks which operand *equals* the result, and a compiler may round the two apart.
    return jnp.log(jnp.where(unbiased > floor, unbiased, floor)) + peak


def _cross_entropy(positives: jax.Array, negatives: jax.Array, axis_name: str | None) -> jax.Array:
    """Mean of -log(positive / (sum of positives + sum of negatives)) over anchors, positives and devices.

    Args:
      positives: logits [views - 1, views, batch].
      negatives: logarithm of the negatives' sum [views, batch].
      axis_name: the mapped axis or None.
    """
    denominator = jnp.logaddexp(jax.nn.logsumexp(positives, axis=0), negatives)
    return batch_mean(denominator - positives, axis_name)


def _require_prior(positive_prior: float | jax.Array) -> None:
    require_number("positive_prior", positive_prior, lambda prior: 0 <= prior < 1, "a number in [0, 1)")
