"""When a run is evaluated while it goes on, and words of warning: of rounding, and of features that collapse."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from ml_collections import ConfigDict

from metamask_jax.training.state import TrainState


class Evaluator(Protocol):
    """What judges the features of a state; `evaluate.online` has the usual one.

    It may also have a method `check()`, which is called before the first step and refuses what it could not judge.
    """

    def __call__(self, state: TrainState) -> dict[str, float]:
        """Measures by name: `effective_rank`, and `knn_accuracy` where there are labels."""
        ...

    def arrays(self) -> dict[str, np.ndarray]:
        """What else the report shows of the state last judged."""
        ...


class Monitor:
    """Asks an evaluator at the right steps and keeps its latest answer."""

    def __init__(self, config: ConfigDict, evaluator: Evaluator | None) -> None:
        """Without an evaluator nothing is ever due."""
        self._config, self._evaluator = config, evaluator
        self.latest: dict[str, float] = {}

    def check(self) -> None:
        """Lets the evaluator refuse, before the first step, what it would fail on after many."""
        check = getattr(self._evaluator, "check", None)
        if check is not None:
            check()

    def due(self, step: int, *, steps_per_epoch: int, total_steps: int) -> bool:
        """Whether to evaluate after this step: every few epochs, or more often in a run of few, and at the end."""
        settings = self._config.eval
        intervals = [settings.every_epochs * steps_per_epoch]
        if settings.least_times:
            intervals.append(-(-total_steps // settings.least_times))
        every = min(filter(None, intervals), default=0)
        return self._evaluator is not None and (step == total_steps or (every > 0 and step % every == 0))

    def __call__(self, state: TrainState) -> dict[str, float]:
        """Evaluates a state; nothing without an evaluator."""
        self.latest = {} if self._evaluator is None else self._evaluator(state)
        return self.latest

    def before(self, initial: TrainState) -> dict[str, float]:
        """Measures of the state that training began with, under names such as `knn_accuracy_before`."""
        values = {} if self._evaluator is None else self._evaluator(initial)
        return {f"{name}_before": values[name] for name in ("knn_accuracy", "effective_rank") if name in values}

    def arrays(self) -> dict[str, np.ndarray]:
        """The evaluator's arrays of the state last evaluated."""
        return {} if self._evaluator is None else self._evaluator.arrays()

    def warnings(self, values: Mapping[str, float], feature_std: float) -> list[str]:
        """Sentences about features that carry next to nothing."""
        guard, found = self._config.guard, []
        if feature_std < guard.min_feature_std:
            found.append(f"features are almost constant (spread {feature_std:.3f} < {guard.min_feature_std})")
        rank = values.get("effective_rank")
        if rank is not None and rank < guard.min_effective_rank:
            found.append(
                f"features fill hardly any dimensions (effective rank {rank:.1f} < {guard.min_effective_rank})"
            )
        return found


def rounding_warning(config: ConfigDict, platform: str) -> str | None:
    """A sentence if the mask is learned from a difference that rounding drowns; see docs/meta_gradient.md.

    Args:
      config: a validated configuration.
      platform: what it runs on, such as `tpu`.
    """
    if not config.mask.learn or config.meta.estimator != "finite_difference":
        return None
    if config.train.dtype == "bfloat16":
        found = "config.train.dtype='bfloat16'"
    elif platform == "tpu" and config.train.precision == "default":
        found = "config.train.precision='default' on a TPU"
    else:
        return None
    return (
        f"config.meta.estimator='finite_difference' with {found}: the small difference of two gradients is mostly "
        "rounding; 'exact' does without it, or set train.dtype=float32 and train.precision=highest"
    )
