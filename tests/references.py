"""Slow transcriptions of the papers' equations, loop by loop in float64 NumPy: what the fast code must equal."""

import math

import numpy as np


def cosine(a, b):
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def redundancy_reduction(z, off_diagonal_weight, centered, unbiased=False):
    """Paper Eq. 2-3. `unbiased` is the authors' program: unbiased standard deviation, product divided by N."""
    views, batch, dim = z.shape
    total = 0.0
    for j in range(views - 1):
        for j_plus in range(j + 1, views):
            for k in range(dim):
                for k_prime in range(dim):
                    a, b = z[j, :, k], z[j_plus, :, k_prime]
                    if centered:
                        a, b = a - a.mean(), b - b.mean()
                    if unbiased:
                        c = np.sum(a / a.std(ddof=1) * b / b.std(ddof=1)) / batch
                    else:
                        c = np.sum(a * b) / (math.sqrt(np.sum(a**2)) * math.sqrt(np.sum(b**2)))
                    total += (1 - c) ** 2 if k == k_prime else off_diagonal_weight * c**2
    return total


def _anchors(z, temperature, bank):
    """Yields, for every anchor, exp(similarity / temperature) of its positives and of its negatives."""
    views, batch, _ = z.shape
    for i in range(batch):
        for j in range(views):

            def similarity(other, anchor=z[j, i]):
                return math.exp(cosine(anchor, other) / temperature)

            positives = [similarity(z[jp, i]) for jp in range(views) if jp != j]
            negatives = [similarity(z[jp, ip]) for ip in range(batch) for jp in range(views) if ip != i]
            if bank is not None:
                negatives += [similarity(entry) for entry in bank]
            yield positives, negatives


def nt_xent(z, temperature, bank=None):
    """Paper Eq. 1 with both directions of each pair, as a mean."""
    terms = [
        -math.log(positive / (sum(positives) + sum(negatives)))
        for positives, negatives in _anchors(z, temperature, bank)
        for positive in positives
    ]
    return float(np.mean(terms))


def debiased_nt_xent(z, temperature, positive_prior, bank=None):
    """Chuang et al. 2020 with M = views - 1 positives in the estimate of the negatives."""
    return hard_nt_xent(z, temperature, positive_prior, 0.0, bank)


def hard_nt_xent(z, temperature, positive_prior, concentration, bank=None):
    """Robinson et al. 2021: debiased, with importance weights neg**concentration on the negatives."""
    terms = []
    for positives, negatives in _anchors(z, temperature, bank):
        n = len(negatives)
        weights = [negative**concentration for negative in negatives]
        reweighted = n * sum(w * negative for w, negative in zip(weights, negatives, strict=True)) / sum(weights)
        estimate = (reweighted - positive_prior * n * np.mean(positives)) / (1 - positive_prior)
        estimate = max(estimate, n * math.exp(-1 / temperature))
        terms += [-math.log(positive / (sum(positives) + estimate)) for positive in positives]
    return float(np.mean(terms))


def central_difference(function, x, step):
    """Gradient of a scalar function of one float64 array by central differences, coordinate by coordinate."""
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        delta = np.zeros_like(x)
        delta[index] = step
        gradient[index] = (float(function(x + delta)) - float(function(x - delta))) / (2 * step)
    return gradient


def relative_error(found, expected):
    """Largest deviation beside the largest expected magnitude."""
    found, expected = np.asarray(found), np.asarray(expected)
    return float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))
