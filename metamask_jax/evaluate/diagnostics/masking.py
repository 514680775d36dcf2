"""How masking dimensions of a fixed representation changes its accuracy (the paper's Figures 2 and `ablmask`)."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from metamask_jax.evaluate.knn import knn_accuracy
from metamask_jax.evaluate.probe import linear_probe

Accuracy = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], float]
"""`(train_h, train_labels, test_h, test_labels) -> accuracy` in [0, 1]."""


class Trials(NamedTuple):
    """Accuracies of one representation under masks, one entry per trial.

    Attributes:
      rates: [trials], the share of the candidate dimensions that was masked.
      accuracies: [trials], in [0, 1].
    """

    rates: np.ndarray
    accuracies: np.ndarray

    def at(self, rate: float) -> np.ndarray:
        """Accuracies of the trials at one rate."""
        return self.accuracies[self.rates == rate]


class Halves(NamedTuple):
    """Accuracies of a probe on the dimensions of below-average mask weight, on the others, and on all.

    Attributes:
      below: on those whose weight is below the mean only; NaN if there are none.
      others: on the rest only.
      all: on both.
      below_count: how many dimensions are below the mean.
    """

    below: float
    others: float
    all: float
    below_count: int


def knn(*, num_classes: int, k: int, temperature: float | None) -> Accuracy:
    """Accuracy by nearest neighbours, by the cosine; see `knn_accuracy`."""
    return partial(knn_accuracy, k=k, temperature=temperature, num_classes=num_classes)


def linear(*, num_classes: int, seed: int) -> Accuracy:
    """Accuracy by a linear probe; see `linear_probe`."""
    return lambda *data: linear_probe(*data, num_classes=num_classes, seed=seed).accuracy


def random_masks(candidates: np.ndarray, *, dim: int, rate: float, trials: int, seed: int) -> np.ndarray:
    """Which dimensions are kept, bool [trials, dim], when a share of the candidates is masked at random.

    A rate that masks none or all of the candidates leaves nothing to draw, and gives one row.

    Args:
      candidates: int [candidates], dimensions that may be masked.
      dim: number of dimensions.
      rate: share of the candidates to mask, in [0, 1]; rounded to whole dimensions.
      trials: number of masks.
      seed: of the draws, which also depend on the rate.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"{rate=}; expected a share in [0, 1]")
    masked = round(rate * len(candidates))
    if masked in (0, len(candidates)):
        trials = 1
    kept = np.ones((trials, dim), bool)
    random = np.random.default_rng((seed, round(1e6 * rate)))
    for row in kept:
        row[random.permutation(candidates)[:masked]] = False
    return kept


def masked_accuracies(
    train_h: np.ndarray,
    train_labels: np.ndarray,
    test_h: np.ndarray,
    test_labels: np.ndarray,
    *,
    accuracy: Accuracy,
    candidates: np.ndarray,
    rates: Sequence[float],
    trials: int,
    seed: int,
) -> Trials:
    """Accuracy with random candidates set to zero in training and test features, for every rate and trial.

    Args:
      train_h: features [train, dim].
      train_labels: int [train].
      test_h: features [test, dim].
      test_labels: int [test].
      accuracy: what judges features, such as `knn(...)` or `linear(...)`.
      candidates: int [candidates], dimensions that may be masked: all of them (Fig. 2) or `below_average` (`ablmask`).
      rates: shares of the candidates to mask.
      trials: masks per rate; only one where the rate leaves nothing to draw.
      seed: of the masks.
    """
    dim = train_h.shape[1]
    found = [
        (rate, accuracy(train_h * kept, train_labels, test_h * kept, test_labels))
        for rate in rates
        for kept in random_masks(candidates, dim=dim, rate=rate, trials=trials, seed=seed)
    ]
    return Trials(*np.array(found, np.float64).reshape(-1, 2).T)


def below_average(weights: np.ndarray) -> np.ndarray:
    """Dimensions, int [count], whose mask weight [dim] is below the mean: the suspects of Fig. `ablmask`.

    Example:
      >>> below_average(np.array([0.2, 0.9, 0.4]))
      array([0, 2])
    """
    return np.flatnonzero(weights < np.mean(weights, dtype=np.float64))


def probe_halves(
    train_h: np.ndarray,
    train_labels: np.ndarray,
    test_h: np.ndarray,
    test_labels: np.ndarray,
    *,
    weights: np.ndarray,
    accuracy: Accuracy,
) -> Halves:
    """Accuracy on the dimensions of below-average mask weight alone, on the others alone, and on all.

    Dimensions left out are removed, not zeroed. Arguments as for `masked_accuracies`; `weights` [dim] are the mask's.
    """
    below = np.isin(np.arange(len(weights)), below_average(weights))

    def judge(kept: np.ndarray) -> float:
        if not kept.any():
            return float("nan")
        return accuracy(train_h[:, kept], train_labels, test_h[:, kept], test_labels)

    return Halves(judge(below), judge(~below), judge(np.ones_like(below)), int(below.sum()))
