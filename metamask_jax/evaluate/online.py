"""Pretraining as it is usually run: evaluated while it goes on, with a report at the end."""

import dataclasses
import logging
import os
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from metamask_jax.core.mask import mask_weights
from metamask_jax.data.sources import Source
from metamask_jax.data.splits import Splits, configured_splits
from metamask_jax.errors import ConfigError, DataError
from metamask_jax.evaluate import gallery
from metamask_jax.evaluate.features import Extractor, extract_source, make_extractor
from metamask_jax.evaluate.knn import Neighbors, nearest_neighbors, votes
from metamask_jax.evaluate.metrics import confusion_matrix, top_k_accuracy
from metamask_jax.evaluate.samples import draw_samples
from metamask_jax.evaluate.sharding import gathered, share_of, total
from metamask_jax.evaluate.spectrum import cross_correlation, effective_rank, singular_values
from metamask_jax.training import loop
from metamask_jax.training.profile import Steps
from metamask_jax.training.registry import Registry
from metamask_jax.training.settings import Programs
from metamask_jax.training.state import TrainState

_log = logging.getLogger(__name__)
_FEW = 2048  # test pictures: enough for a spectrum and what the report shows
_LEAST_IMAGES = 2  # one has no spread
_SAMPLES = 6  # training pictures that the report shows with their views


def pretrain(
    config: ConfigDict,
    workdir: str | os.PathLike[str],
    *,
    accept_changes: bool = False,
    restart: bool = False,
    registry: Registry | None = None,
    programs: Programs | None = None,
    profile: Steps | None = None,
) -> dict[str, Any]:
    """Trains in a working directory, or goes on where it left off: `training.loop.train` with kNN and a report.

    Args:
      config: the configuration; see `metamask_jax.config`.
      workdir: holds everything the run writes. If it holds checkpoints of this run already, training goes on from the
        newest whole one exactly as if it had never stopped.
      accept_changes: go on even though the configuration is not the one the run was started with.
      restart: begin anew; what is in the working directory is kept in a folder there.
      registry: what the configuration's names stand for; None is ours and `config.plugins`.
      programs: shared by runs that follow each other in this process, so that equal programs are compiled once.
      profile: steps of which the main process writes a trace into the workdir, for XProf.

    Returns:
      What is in `result.json`.
    """
    programs = Programs() if programs is None else programs
    result = loop.train(
        config,
        workdir,
        accept_changes=accept_changes,
        restart=restart,
        registry=registry,
        make_evaluator=partial(make_evaluator, programs=programs, given=registry),
        programs=programs,
        profile=profile,
    )
    if jax.process_index() == 0:
        from metamask_jax.reporting.report import write_report  # matplotlib is heavy

        _log.info("report: %s", write_report(workdir))
    return result


class _Votes(NamedTuple):
    """What nearest neighbours tell; the same on all processes.

    Attributes:
      neighbors: of the first test pictures, among the training pictures.
      confusion: counts [class, predicted class] over all test pictures.
      among_five: how many of them have their class among the five with the most votes; None with so few classes.
    """

    neighbors: Neighbors
    confusion: np.ndarray
    among_five: int | None


class _Seen(NamedTuple):
    """What is kept of an evaluation for the report; the same on all processes.

    Attributes:
      h: features [few, dim] of the first test pictures, not masked.
      labels: int [few].
      weights: of the mask [dim].
      votes: None without labels.
    """

    h: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    votes: _Votes | None


def make_evaluator(
    config: ConfigDict, registry: Registry | None = None, *, programs: Programs, given: Registry | None = None
) -> "OnlineEvaluator":
    """Builds what evaluates the states of a run.

    Args:
      config: a validated configuration.
      registry: what the configuration's names stand for; None is ours and `config.plugins`.
      programs: shared by runs that follow each other in this process.
      given: the registry as the caller of the run gave it.
    """

    def build(identity: str) -> Extractor:
        made = make_extractor(config, registry=registry)
        run = programs.keep(made.run, identity, config, given)
        run_cropped = programs.keep(made.run_cropped, f"cropped {identity}", config, given)
        return dataclasses.replace(made, run=run, run_cropped=run_cropped)

    return OnlineEvaluator(config, registry, extract=programs.evaluation(config, given, build))


class OnlineEvaluator:
    """Judges the features of a state by the labelled pictures of the training data, or where there are none by rank."""

    def __init__(
        self, config: ConfigDict, registry: Registry | None = None, *, extract: Extractor | None = None
    ) -> None:
        """Opens nothing yet; `check` does. `extract` is for those who have built it before."""
        self._config, self._registry = config, registry
        self._extract = extract or make_extractor(config, registry=registry)
        self._seen: _Seen | None = None

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
        if self._opened.held_out and self._config.method.name == "supervised":
            raise DataError(
                f"{train.name!r} has no labelled test split, and config.method.name='supervised' would learn the "
                "labels that it is judged by; expected a folder test/ beside train/"
            )

    def __call__(self, state: TrainState) -> dict[str, float]:
        """Effective rank of the features of the test pictures and, if they have labels, the accuracy of kNN on them.

        `held_out_images` is among the values where the test pictures are training pictures held out. Processes share
        the work and get the same values.
        """
        test = self.splits[1]
        own, own_labels = self._unmasked(state, test)
        weights = self._weights(state)
        first = max(0, _FEW - share_of(len(own)).start)
        h, labels = gathered(own[:first]), gathered(own_labels[:first])
        values = {"effective_rank": float(effective_rank(self._masked(h, weights)))}
        voted = None
        if self._opened.labelled and not total([float(np.count_nonzero(own_labels < 0))]).any():
            voted = self._vote(state, self._masked(own, weights), own_labels, first)
            values["knn_accuracy"] = float(np.trace(voted.confusion) / voted.confusion.sum())
            if self._opened.held_out:
                values["held_out_images"] = len(test)
        self._seen = _Seen(h, labels, weights, voted)
        return values

    def _vote(self, state: TrainState, own: np.ndarray, own_labels: np.ndarray, first: int) -> _Votes:
        """Lets the nearest training pictures vote on this process's test pictures, whose masked features are `own`."""
        train, settings = self.splits[0], self._config.eval
        train_h, train_labels = self.features(state, train)
        found = nearest_neighbors(train_h, own, k=settings.k, metric="cosine")
        classes = train.num_classes
        scores = votes(found, gathered(train_labels), temperature=settings.temperature, num_classes=classes)
        among_five = top_k_accuracy(scores, own_labels, k=5) * len(own) if len(own) else 0.0
        few = (gathered(np.asarray(part)[:first, : gallery.NEIGHBORS]) for part in found)
        return _Votes(
            Neighbors(*few),
            total(confusion_matrix(scores.argmax(axis=1), own_labels, num_classes=classes)),
            round(float(total([among_five])[0])) if classes > 5 else None,
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """What the report shows of the features last evaluated: spectrum, correlations, and `evaluate.gallery`."""
        if (seen := self._seen) is None:
            return {}
        train, test = self.splits
        masked, rows = self._masked(seen.h, seen.weights), gallery.query_rows(seen.labels)
        if seen.votes is None:
            shown = gallery.neighbor_arrays(gallery.neighbors_within(masked, rows), rows, test, test)
        else:
            neighbors = Neighbors(*(np.asarray(part)[rows] for part in seen.votes.neighbors))
            shown = gallery.neighbor_arrays(neighbors, rows, test, train)
            shown |= gallery.accuracy_arrays(seen.votes.confusion, seen.votes.among_five, test.class_names)
        examples = min(_SAMPLES, self._config.train.batch_size)
        samples = draw_samples(self._config, step=0, examples=examples, registry=self._registry)
        return {
            "singular_values": np.asarray(singular_values(masked)),
            "correlation": np.asarray(cross_correlation(masked)),
            **gallery.sample_arrays(samples),
            **shown,
            **gallery.map_arrays(masked, seen.labels),
            **gallery.dimension_arrays(seen.h, seen.labels, seen.weights, test),
        }

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
        h, labels = self._unmasked(state, source)
        return self._masked(h, self._weights(state)), labels

    def _unmasked(self, state: TrainState, source: Source) -> tuple[np.ndarray, np.ndarray]:
        return extract_source(self._extract, state.params, state.batch_stats, source)

    def _masked(self, h: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return h * weights if self._config.eval.masked else h

    def _weights(self, state: TrainState) -> np.ndarray:
        return np.asarray(mask_weights(state.mask, activation=self._config.mask.activation))
