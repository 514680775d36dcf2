"""Means, deviations and differences of a few seeds, and how they are written."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np


class Difference(NamedTuple):
    """Mean of paired differences and its 95 % confidence interval (Student's t); infinite from a single pair.

    Attributes:
      mean: of the differences.
      half_width: of the interval.
      pairs: how many there are.
      p: probability of a mean at least as far from zero if there is no difference; 1 from a single pair.
    """

    mean: float
    half_width: float
    pairs: int
    p: float = 1.0

    @property
    def beyond_noise(self) -> bool:
        """Whether the interval leaves out zero."""
        return abs(self.mean) > self.half_width


def paired_difference(values: Mapping[int, float], base: Mapping[int, float]) -> Difference:
    """Difference of two quantities over the seeds they share.

    Example:
      >>> paired_difference({0: 3.0, 1: 5.0, 2: 4.0}, {0: 2.0, 1: 3.0}).mean
      1.5
    """
    from scipy.stats import t

    seeds = sorted(values.keys() & base.keys())
    differences = np.array([values[seed] - base[seed] for seed in seeds])
    count = len(differences)
    if count < 2:
        return Difference(float(differences.mean()) if count else float("nan"), float("inf"), count)
    error = differences.std(ddof=1) / np.sqrt(count)
    mean = float(differences.mean())
    p = 2 * t.sf(abs(mean) / error, count - 1) if error > 0 else float(mean == 0)
    return Difference(mean, float(t.ppf(0.975, count - 1) * error), count, float(p))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts the p-values of several comparisons so that one level holds for all of them (Holm 1979).

    Example:
      >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
      [0.03, 0.06, 0.06]
    """
    adjusted, least = np.empty(len(p_values)), 0.0
    for rank, place in enumerate(np.argsort(p_values, kind="stable")):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return adjusted.tolist()


def adjusted_p(differences: Mapping[str, Difference]) -> dict[str, float]:
    """Holm's p-values of the comparisons that have one: a single pair tests nothing, so it is not of the family.

    Example:
      >>> adjusted_p({"a": Difference(0.2, 0.1, 3, p=0.01), "b": Difference(0.3, float("inf"), 1)})
      {'a': 0.01}
    """
    tested = {name: difference.p for name, difference in differences.items() if difference.pairs > 1}
    return dict(zip(tested, holm(list(tested.values())), strict=True))


def detectable(deviation: float, pairs: int, *, power: float = 0.8, level: float = 0.05) -> float:
    """The mean difference that a paired t-test finds with a given probability: what a study could see.

    Args:
      deviation: standard deviation of the differences.
      pairs: number of seeds.
      power: probability to find it.
      level: of the two-sided test.

    Example:
      >>> round(detectable(1.0, 8), 2)
      1.16
    """
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    freedom, limit = pairs - 1, t.ppf(1 - level / 2, pairs - 1)
    # A difference of the wrong sign is no finding, so the other tail does not count.
    shift = brentq(lambda shift: nct.sf(limit, freedom, shift) - power, 0.0, limit + 8.0)
    return float(shift * deviation / np.sqrt(pairs))


class RankCorrelation(NamedTuple):
    """How well one quantity ranks what another ranks.

    Attributes:
      spearman: rank correlation.
      kendall: tau-b.
      low: lower end of the 95 % interval of Spearman's.
      high: upper end.
    """

    spearman: float
    kendall: float
    low: float
    high: float


def rank_correlation(x: np.ndarray, y: np.ndarray, *, resamples: int = 2000) -> RankCorrelation:
    """Rank correlations of two quantities [count], with percentiles of resampled pairs; NaN where all are equal.

    Example:
      >>> found = rank_correlation(np.arange(5), np.arange(5) ** 3)
      >>> f"{found.spearman:.2f} {found.kendall:.2f}"
      '1.00 1.00'
    """
    from scipy.stats import kendalltau, rankdata

    def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Of rows [..., count]."""
        a, b = (rankdata(values, axis=-1) - (values.shape[-1] + 1) / 2 for values in (x, y))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray((a * b).sum(-1) / np.sqrt((a**2).sum(-1) * (b**2).sum(-1)))

    draws = np.random.default_rng(0).integers(0, len(x), (resamples, len(x)))
    sampled = spearman(x[draws], y[draws])
    sampled = sampled[np.isfinite(sampled)]  # a resample may have one run only
    low, high = np.percentile(sampled, (2.5, 97.5)) if len(sampled) else (np.nan, np.nan)
    return RankCorrelation(float(spearman(x, y)), float(kendalltau(x, y).statistic), float(low), float(high))


def mean_text(values: Mapping[int, float], *, scale: float = 100.0, digits: int = 2) -> str:
    """Mean and standard deviation over seeds, by default in percent: `43.21 ± 0.54 (3)`."""
    numbers = scale * np.array(list(values.values()), float)
    if not len(numbers):
        return ""
    spread = f" ± {numbers.std(ddof=1):.{digits}f}" if len(numbers) > 1 else ""
    return f"{numbers.mean():.{digits}f}{spread} ({len(numbers)})"


def difference_text(difference: Difference, *, scale: float = 100.0) -> str:
    """A difference and its interval: `+1.20 [+0.31, +2.09]`, followed by `within noise` if zero is in the interval."""
    if not difference.pairs:
        return ""
    if not np.isfinite(difference.half_width):
        return f"{scale * difference.mean:+.2f}"
    low, high = (scale * (difference.mean + sign * difference.half_width) for sign in (-1, 1))
    noise = "" if difference.beyond_noise else ", within noise"
    return f"{scale * difference.mean:+.2f} [{low:+.2f}, {high:+.2f}]{noise}"
