"""Pretraining as it is usually run: evaluated while it goes on, with a report at the end."""

import logging
import os
import pathlib
from functools import cached_property
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from metamask_jax.core.mask import mask_weights
from metamask_jax.data.sources import Source, open_configured
from metamask_jax.evaluate.features import extract_source, make_extractor
from metamask_jax.evaluate.knn import knn_accuracy
from metamask_jax.evaluate.spectrum import cross_correlation, effective_rank, singular_values
from metamask_jax.training import loop
from metamask_jax.training.registry import Registry
from metamask_jax.training.state import TrainState

_log = logging.getLogger(__name__)
_SPECTRUM_IMAGES = 2048  # enough for a spectrum


def pretrain(
    config: ConfigDict,
    workdir: str | os.PathLike[str],
    *,
    accept_changes: bool = False,
    registry: Registry | None = None,
) -> dict[str, Any]:
    """Trains in a working directory, or goes on where it left off: `training.loop.train` with kNN and a report.

    Args:
      config: the configuration; see `metamask_jax.config`.
      workdir: holds everything the run writes. If it holds checkpoints of this run already, training goes on from the
        newest whole one exactly as if it had never stopped.
      accept_changes: go on even though the configuration is not the one the run was started with.
      registry: what the configuration's names stand for; None is ours and `config.plugins`.

    Returns:
      What is in `result.json`.
    """
    workdir = pathlib.Path(workdir)
    result = loop.train(
        config, workdir, accept_changes=accept_changes, registry=registry, make_evaluator=OnlineEvaluator
    )
    if jax.process_index() == 0:
        from metamask_jax.reporting.report import write_report  # matplotlib is heavy

        _log.info("report: %s", write_report(workdir))
    return result


class OnlineEvaluator:
    """Judges the features of a state by the labelled splits of the training data."""

    def __init__(self, config: ConfigDict, registry: Registry | None = None) -> None:
        """Opens nothing yet: a run that ends before its first evaluation never pays for the labelled splits."""
        self._config = config
        self._extract = make_extractor(config, registry=registry)
        self._test_features: np.ndarray | None = None

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
        self._test_features = test_features
        return values

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
