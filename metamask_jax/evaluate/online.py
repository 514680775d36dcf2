"""Pretraining as it is usually run: evaluated while it goes on, with a report at the end."""

import logging
import os
import pathlib
from functools import cached_property
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from metamask_jax.config import flatten
from metamask_jax.core.mask import mask_weights
from metamask_jax.data.sources import Source
from metamask_jax.data.splits import Splits, configured_splits
from metamask_jax.errors import ConfigError, DataError
from metamask_jax.evaluate.features import extract_source, make_extractor
from metamask_jax.evaluate.knn import knn_accuracy
from metamask_jax.evaluate.sharding import gathered, share_of, total
from metamask_jax.evaluate.spectrum import cross_correlation, effective_rank, singular_values
from metamask_jax.training import loop
from metamask_jax.training.registry import Registry
from metamask_jax.training.state import TrainState

_log = logging.getLogger(__name__)
_SPECTRUM_IMAGES = 2048  # enough for a spectrum
_LEAST_IMAGES = 2  # one has no spread
_LABEL_USERS = {"method.name": "supervised", "meta.outer": "labels"}  # what learns from the labels of the set


def pretrain(
    config: ConfigDict,
    workdir: str | os.PathLike[str],
    *,
    accept_changes: bool = False,
    restart: bool = False,
    registry: Registry | None = None,
) -> dict[str, Any]:
    """Trains in a working directory, or goes on where it left off: `training.loop.train` with kNN and a report.

    Args:
      config: the configuration; see `metamask_jax.config`.
      workdir: holds everything the run writes. If it holds checkpoints of this run already, training goes on from the
        newest whole one exactly as if it had never stopped.
      accept_changes: go on even though the configuration is not the one the run was started with.
      restart: begin anew; what is in the working directory is kept in a folder there.
      registry: what the configuration's names stand for; None is ours and `config.plugins`.

    Returns:
      What is in `result.json`.
    """
    workdir = pathlib.Path(workdir)
    result = loop.train(
        config,
        workdir,
        accept_changes=accept_changes,
        restart=restart,
        registry=registry,
        make_evaluator=OnlineEvaluator,
    )
    if jax.process_index() == 0:
        from metamask_jax.reporting.report import write_report  # matplotlib is heavy

        _log.info("report: %s", write_report(workdir))
    return result


class OnlineEvaluator:
    """Judges the features of a state by the labelled pictures of the training data, or where there are none by rank."""

    def __init__(self, config: ConfigDict, registry: Registry | None = None) -> None:
        """Opens nothing yet; `check` does."""
        self._config = config
        self._extract = make_extractor(config, registry=registry)
        self._judged: np.ndarray | None = None  # the features whose spectrum was looked at last

    def check(self) -> None:
        """Refuses what could not be evaluated, before the first step is taken; says what is not as usual.

        Raises:
          ConfigError, DataError: the pictures or the settings do not allow an evaluation.
        """
        (train, test), settings = self.splits, self._config.eval
        if jax.process_index() == 0 and self._opened.note:
            _log.info("%s", self._opened.note)
        if len(test) < _LEAST_IMAGES:
            wrong, where = (
                (f"config.eval.size={settings.size}", f"config.eval.size, or None for all {len(self._opened.test)}")
                if settings.size is not None
                else (f"{test.name!r} has {len(test)} picture to evaluate", "them")
            )
            raise ConfigError(f"{wrong}; expected at least {_LEAST_IMAGES} for {where}: a spectrum needs them")
        if self._opened.labelled and settings.k > len(train):
            raise ConfigError(
                f"config.eval.k={settings.k}; expected at most {len(train)}, the training pictures of {train.name!r} "
                "that kNN has here"
            )
        labels_used = [key for key, value in _LABEL_USERS.items() if flatten(self._config).get(key) == value]
        if self._opened.held_out and labels_used:
            raise DataError(
                f"{train.name!r} has no labelled test split, and config.{labels_used[0]}="
                f"{_LABEL_USERS[labels_used[0]]!r} would learn the labels that it is judged by; expected a folder "
                "test/ beside train/"
            )

    def __call__(self, state: TrainState) -> dict[str, float]:
        """Effective rank of the features of the test pictures and, if they have labels, the accuracy of kNN on them.

        `held_out_images` is among the values where the test pictures are training pictures held out. Processes share
        the work and get the same values.
        """
        train, test = self.splits
        test_features, test_labels = self.features(state, test)
        first = max(0, _SPECTRUM_IMAGES - share_of(len(test_features)).start)
        self._judged = gathered(test_features[:first])
        values = {"effective_rank": float(effective_rank(self._judged))}
        if self._opened.labelled and not total(np.array([np.count_nonzero(test_labels < 0)])).any():
            values["knn_accuracy"] = knn_accuracy(
                *self.features(state, train),
                test_features,
                test_labels,
                k=self._config.eval.k,
                temperature=self._config.eval.temperature,
                num_classes=train.num_classes,
            )
            if self._opened.held_out:
                values["held_out_images"] = len(test)
        return values

    def arrays(self) -> dict[str, np.ndarray]:
        """Spectrum and correlations of the features last evaluated, for the report."""
        if (h := self._judged) is None:
            return {}
        return {"singular_values": np.asarray(singular_values(h)), "correlation": np.asarray(cross_correlation(h))}

    @cached_property
    def splits(self) -> tuple[Source, Source]:
        """The training and test pictures, no more than `eval.size` of either."""
        train, test, size = self._opened.train, self._opened.test, self._config.eval.size
        return (train, test) if size is None else (train.first(min(size, len(train))), test.first(min(size, len(test))))

    @cached_property
    def _opened(self) -> Splits:
        return configured_splits(self._config.data)

    def features(self, state: TrainState, source: Source) -> tuple[np.ndarray, np.ndarray]:
        """Features [n, dim] and labels [n] of this process's part of a split, masked if the configuration says so."""
        h, labels = extract_source(self._extract, state.params, state.batch_stats, source)
        if self._config.eval.masked:
            h = h * np.asarray(mask_weights(state.mask, activation=self._config.mask.activation))
        return h, labels
