"""What each dimension tells about the class and the nuisance factors, and whether the mask goes with that.

Information is estimated from counts in bins of equal frequency, so any increasing function of a dimension has the
same. Counts alone overestimate; the correction of Miller (1955) takes the leading term of that bias off. Where there is
nothing to know, this leaves values around zero, of either sign.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

BINS = 16


class Information(NamedTuple):
    """Information of every dimension, in bits.

    Attributes:
      about_class: [dim].
      about_factor: [dim] for each nuisance factor, by name.
    """

    about_class: np.ndarray
    about_factor: dict[str, np.ndarray]

    @property
    def nuisance(self) -> np.ndarray:
        """Information [dim] about the nuisance factor that a dimension tells most about; -inf if no factor is known.

        Not their sum: factors may depend on each other, and what they share would count twice.
        """
        return np.max([np.full_like(self.about_class, -np.inf), *self.about_factor.values()], axis=0)

    @property
    def strongest(self) -> list[str]:
        """Name of that factor for each dimension; empty if no factor is known."""
        names = list(self.about_factor)
        return [names[i] for i in np.argmax(list(self.about_factor.values()), axis=0)] if names else []

    @property
    def dominated(self) -> np.ndarray:
        """Which dimensions, bool [dim], tell more about some nuisance factor than about the class."""
        return self.nuisance > self.about_class


class Agreement(NamedTuple):
    """How the mask's weights go with what the dimensions tell; NaN where one of the two is constant.

    Attributes:
      with_class: rank correlation with the information about the class: positive if the mask does what it should.
      with_factor: rank correlation with the information about each nuisance factor: negative if it does.
      with_difference: rank correlation with class minus strongest nuisance.
      auc: probability that a dimension dominated by a nuisance has a lower weight than one that is not; 1/2 is chance.
      chance: standard deviation that a rank correlation of as many unrelated numbers has.
      auc_chance: the same of the AUC, if no two weights are equal.
    """

    with_class: float
    with_factor: dict[str, float]
    with_difference: float
    auc: float
    chance: float
    auc_chance: float


def discretize(values: np.ndarray, *, bins: int) -> np.ndarray:
    """Bin, int [size, ...], of every value among its column's; bins hold equally many, and equals share one.

    Example:
      >>> discretize(np.array([0.1, 0.7, 0.2, 0.9]), bins=2).tolist()
      [0, 1, 0, 1]
    """
    values = np.asarray(values)
    if np.issubdtype(values.dtype, np.integer):
        return np.unique(values, return_inverse=True)[1].reshape(values.shape)
    edges = np.quantile(values, np.arange(1, bins) / bins, axis=0)
    return sum((values > edge for edge in edges), start=np.zeros(values.shape, int))


def mutual_information(h: np.ndarray, target: np.ndarray, *, bins: int) -> np.ndarray:
    """Mutual information, in bits [dim], of each dimension with a target.

    The counts' value sum p(a, b) log2[p(a, b) / (p(a) p(b))] minus its leading bias
    (K_ab - K_a - K_b + 1) / (2 size ln 2), where the K are the numbers of bins that are not empty. What is left of the
    bias is small where `size` is several times `bins` times the number of categories.

    Args:
      h: features [size, dim]; real numbers.
      target: [size]; whole numbers are taken for categories, real ones are put into bins.
      bins: number of bins of a real-valued variable.
    """
    if h.ndim != 2 or np.shape(target) != h.shape[:1]:
        raise ValueError(f"shapes {h.shape} and {np.shape(target)}; expected features (size, dim) and target (size,)")
    categories = discretize(target, bins=bins)
    rows, columns = bins, int(categories.max()) + 1
    cells = discretize(np.asarray(h, np.float64), bins=bins) * columns + categories[:, None]
    cells += np.arange(h.shape[1]) * rows * columns  # one table per dimension
    counts = np.bincount(cells.ravel(), minlength=h.shape[1] * rows * columns).reshape(-1, rows, columns)
    marginals = (counts.reshape(len(counts), -1), counts.sum(axis=2), counts.sum(axis=1))
    joint, own, other = (_entropy(table) for table in marginals)
    return own + other - joint


def measure(h: np.ndarray, labels: np.ndarray, factors: Mapping[str, np.ndarray], *, bins: int) -> Information:
    """Information of each dimension of features [size, dim] about labels [size] and factors [size] by name."""
    return Information(
        mutual_information(h, labels, bins=bins),
        {name: mutual_information(h, values, bins=bins) for name, values in factors.items()},
    )


def agreement(weights: np.ndarray, information: Information) -> Agreement:
    """Compares the mask's weights [dim] with what the dimensions tell."""
    dominated = int(information.dominated.sum())
    pairs = dominated * (len(weights) - dominated)
    return Agreement(
        with_class=spearman(weights, information.about_class),
        with_factor={name: spearman(weights, known) for name, known in information.about_factor.items()},
        with_difference=spearman(weights, information.about_class - information.nuisance),
        auc=auc(-weights, information.dominated),
        chance=(len(weights) - 1) ** -0.5,
        auc_chance=(((len(weights) + 1) / (12 * pairs)) ** 0.5) if pairs else float("nan"),
    )


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation of two vectors [size]; NaN if one is constant.

    Example:
      >>> round(spearman(np.array([1.0, 2.0, 9.0]), np.array([5.0, 6.0, 7.0])), 6)
      1.0
    """
    from scipy.stats import spearmanr  # heavy: only who measures information waits for it

    if np.all(a == a[0]) or np.all(b == b[0]):
        return float("nan")
    return float(spearmanr(a, b).statistic)


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Probability that a positive row's score [size] exceeds another's, ties counting half; NaN without both kinds.

    Example:
      >>> auc(np.array([0.9, 0.8, 0.1]), np.array([True, False, False]))
      1.0
    """
    from scipy.stats import mannwhitneyu

    if positive.all() or not positive.any():
        return float("nan")
    above, below = scores[positive], scores[~positive]
    # Mann and Whitney's statistic counts the pairs; the p-value beside it is not used and should cost nothing.
    return float(mannwhitneyu(above, below, method="asymptotic").statistic / (len(above) * len(below)))


def _entropy(counts: np.ndarray) -> np.ndarray:
    """Entropy in bits [tables] of counts [tables, cells], Miller's correction (K - 1) / (2 size) included."""
    from scipy.stats import entropy

    correction = (np.count_nonzero(counts, axis=1) - 1) / (2 * counts.sum(axis=1) * np.log(2))
    return np.asarray(entropy(counts, base=2, axis=1)) + correction
