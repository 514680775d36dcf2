"""Section 4 of the paper, measured: the conditional variance Phi, and the two bounds of Theorem 1.

Theorem 1 (Theorem 4.1 by LaTeX's count), with z = g(h * m) the projection of masked features, y the class, M the number
of negatives and D the dimensionality of the representation:

    L_contrast(z) - sqrt(Phi(z|y)) - 1/2 sum_k Phi([z]^k|y) - O(M^-1/2)
        <= L_crossentropy(h) + log(M / D)
        <= L_contrast(z) + sqrt(Phi(z|y)) + O(M^-1/2)

where Phi(z|y) = E_y E_{z|y} delta(z, E_{z|y}[z]). It extends Theorem 4.2 of Wang et al. 2022 ("Chaos is a ladder"),
whose features have length one, whose temperature is one, whose classifier's weights are the class means, and which has
the number of classes where the paper writes D. Nothing here presumes that the inequalities hold: they are measured.
"""

from typing import NamedTuple

import numpy as np

from metamask_jax.evaluate.diagnostics.classes import class_means, unit_length


class ConditionalVariance(NamedTuple):
    """Phi of a set of features, with the squared distance for delta.

    Attributes:
      whole: Phi(z|y), a scalar, the sum of what follows.
      per_dimension: Phi([z]^k|y) [dim].
    """

    whole: float
    per_dimension: np.ndarray


class Bounds(NamedTuple):
    """Both sides of Theorem 1, without the remainder.

    Attributes:
      lower: L_contrast - sqrt(Phi) - 1/2 sum_k Phi_k.
      upper: L_contrast + sqrt(Phi).
      remainder: M^-1/2, the order of what is neglected on either side; its factor is unknown.
    """

    lower: float
    upper: float
    remainder: float


def conditional_variance(z: np.ndarray, labels: np.ndarray) -> ConditionalVariance:
    """Phi(z|y) and Phi([z]^k|y) with delta(a, b) = |a - b|^2 (Theorem 1): the mean variance within a class.

    A mask that shrinks features shrinks this as well: compare features of length one (`unit_length`).

    Example:
      >>> conditional_variance(np.array([[0.0, 1.0], [2.0, 1.0]]), np.array([0, 0]))
      ConditionalVariance(whole=1.0, per_dimension=array([1., 0.]))

    Args:
      z: features [size, dim].
      labels: int [size].
    """
    differences = z - class_means(z, labels)[labels]
    per_dimension = np.mean(differences**2, axis=0)  # over all rows: classes count by how frequent they are
    return ConditionalVariance(float(per_dimension.sum()), per_dimension)


def conditional_angle(z: np.ndarray, labels: np.ndarray) -> float:
    """Phi(z|y) with delta(a, b) = -log cos(a, b), the paper's choice in high dimensions.

    Infinite as soon as one row is at a right angle, or more, to its class's mean. A single dimension has no angle: its
    cosine is 1 or -1 whatever its value, so this Phi has no counterpart for dimensions.
    """
    means = class_means(z, labels)[labels]
    cosines = np.sum(unit_length(z) * unit_length(means), axis=1)
    # Rounding may leave a cosine just above one.
    return float(np.mean(-np.log(np.minimum(cosines, 1.0)))) if np.all(cosines > 0) else float("inf")


def theorem_bounds(contrast: float, phi: ConditionalVariance, *, negatives: int) -> Bounds:
    """The two sides of Theorem 1 (and, for unmasked features, of the proof's comparison with them).

    Args:
      contrast: L_contrast, the mean over anchors of Eq. 1.
      phi: conditional variance of the same projections.
      negatives: M, how many negatives an anchor has.
    """
    spread = phi.whole**0.5
    return Bounds(contrast - spread - 0.5 * float(phi.per_dimension.sum()), contrast + spread, negatives**-0.5)


def cross_entropy(scores: np.ndarray, labels: np.ndarray) -> float:
    """L_crossentropy: mean of -log softmax(scores)[label], for scores [size, classes] and labels [size]."""
    from scipy.special import logsumexp

    scores = np.asarray(scores, np.float64)
    return float(np.mean(logsumexp(scores, axis=1) - scores[np.arange(len(scores)), labels]))


def mean_classifier_scores(z: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Scores [size, classes] of the classifier whose weights are the class means, as in the theorem of Wang et al.

    The proofs of the paper allow mu_y to be the "center of categories' feature" as well. A class without rows has no
    mean and a score of minus infinity.
    """
    scores = np.asarray(z, np.float64) @ class_means(z, labels).T
    return np.where(np.isnan(scores), -np.inf, scores)
