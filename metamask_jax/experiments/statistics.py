"""Means, deviations and differences of a few seeds, and how they are written."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Difference(NamedTuple):
    """Mean of paired differences and its 95 % confidence interval (Student's t); infinite from a single pair."""

    mean: float
    half_width: float
    pairs: int

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
    return Difference(float(differences.mean()), float(t.ppf(0.975, count - 1) * error), count)


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
