"""Evaluation while pretraining: online kNN, effective rank, and a word of warning when features collapse."""

from functools import cached_property

import numpy as np
from ml_collections import ConfigDict

from metamask_jax.data.sources import Source, open_configured
from metamask_jax.evaluate.features import extract_source, make_extractor
from metamask_jax.evaluate.knn import knn_accuracy
from metamask_jax.evaluate.spectrum import cross_correlation, effective_rank, singular_values
from metamask_jax.mask import mask_weights
from metamask_jax.train_step import TrainState

_SPECTRUM_IMAGES = 2048  # enough for a spectrum


class Monitor:
    """Judges the features of a state by the labelled splits of the training data."""

    def __init__(self, config: ConfigDict) -> None:
        """Opens nothing yet: a run that ends before its first evaluation never pays for the labelled splits."""
        self._config = config
        self._extract = make_extractor(config)
        self._test_features: np.ndarray | None = None
        self.latest: dict[str, float] | None = None

    def due(self, step: int, *, steps_per_epoch: int, total_steps: int) -> bool:
        """Whether to evaluate after this step: every few epochs, and at the end."""
        every = self._config.eval.every_epochs * steps_per_epoch
        return step == total_steps or (every > 0 and step % every == 0)

    def __call__(self, state: TrainState) -> dict[str, float]:
        """Accuracy of kNN on the test split, if it has labels, and the effective rank of its features."""
        train, test = self.splits
        test_features, test_labels = self.features(state, test)
        values = {"effective_rank": float(effective_rank(test_features[:_SPECTRUM_IMAGES]))}
        if test_labels.min() >= 0:
            train_features, train_labels = self.features(state, train)
            values["knn_accuracy"] = float(
                knn_accuracy(
                    train_features,
                    train_labels,
                    test_features,
                    test_labels,
                    k=self._config.eval.k,
                    temperature=self._config.eval.temperature,
                    num_classes=train.num_classes,
                )
            )
        self._test_features, self.latest = test_features, values
        return values

    def warnings(self, values: dict[str, float], feature_std: float) -> list[str]:
        """Sentences about features that carry next to nothing."""
        guard, found = self._config.guard, []
        if feature_std < guard.min_feature_std:
            found.append(f"features are almost constant (spread {feature_std:.3f} < {guard.min_feature_std})")
        if values["effective_rank"] < guard.min_effective_rank:
            found.append(
                f"features fill hardly any dimensions (effective rank {values['effective_rank']:.1f} < "
                f"{guard.min_effective_rank})"
            )
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """Spectrum and correlations of the features last evaluated, for the report."""
        if self._test_features is None:
            return {}
        h = self._test_features[:_SPECTRUM_IMAGES]
        return {"singular_values": np.asarray(singular_values(h)), "correlation": np.asarray(cross_correlation(h))}

    @cached_property
    def splits(self) -> tuple[Source, Source]:
        """The labelled training and test split."""
        size = self._config.eval.size
        train, test = (open_configured(self._config.data, split=split) for split in ("train", "test"))
        return (train, test) if size is None else (train.first(min(size, len(train))), test.first(min(size, len(test))))

    def features(self, state: TrainState, source: Source) -> tuple[np.ndarray, np.ndarray]:
        """Features [n, dim] and labels [n] of a whole split, masked if the configuration says so."""
        h, labels = extract_source(self._extract, state.params, state.batch_stats, source)
        if self._config.eval.masked:
            h = h * np.asarray(mask_weights(state.mask, activation=self._config.mask.activation))
        return h, labels
