"""What representations are judged on: the labelled splits of a set, or a part of its training pictures held out."""

from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from metamask_jax.data.in_memory import ArraySource
from metamask_jax.data.sources import MissingSplitError, Source, configured_options, open_source

HELD_OUT = 0.2  # share of every class that is held out of a set without labelled test pictures
_SEED = 0  # of what is held out: the same pictures for every run, so that runs can be compared


class Splits(NamedTuple):
    """The pictures to judge a representation on.

    Attributes:
      train: what a classifier is fitted to.
      test: what it is measured on; without labels any pictures, for measures that need none.
      labelled: whether there is something to classify: a label of every picture, and two classes or more.
      held_out: how many of the training pictures are `test` because the set has no labelled ones for that; 0 where it
        has.
      note: a sentence about what is not as usual; empty where nothing is.
    """

    train: Source
    test: Source
    labelled: bool
    held_out: int
    note: str


def open_splits(name: str, *, data_dir: str, view_size: int | None = None, **options: Any) -> Splits:
    """Opens what a representation is judged on.

    Without labelled test pictures, a fixed part of the labelled training pictures is held out: a fifth of every class.
    It is held out of the classifiers alone: pretraining, which sees no labels, still learns from all pictures. Pictures
    without a label are left out where others have one.

    Args:
      name: as in `open_source`.
      data_dir: likewise.
      view_size: likewise.
      **options: likewise.
    """
    settings = {"data_dir": data_dir, "view_size": view_size, **options}
    train = open_source(name, split="train", **settings)
    try:
        test = open_source(name, split="test", **settings)
    except MissingSplitError:
        test = None
    known_train = _labelled(train, read=test is None)
    known_test = None if test is None else _labelled(test, read=False)
    lacking = "no test split" if test is None else "no labels in its test split"
    if known_train is not None and known_test is not None:
        left_out = len(train) - len(known_train) + len(test or ()) - len(known_test)
        note = f"{left_out} pictures of {name!r} have no label and are left out of the evaluation" if left_out else ""
        return Splits(known_train, known_test, True, 0, note)
    if known_train is None:
        reason = "one class" if train.num_classes == 1 else "no labels"
        return Splits(
            train, test or train, False, 0, f"{name!r} has {reason}: what needs classes, such as kNN, is left out"
        )
    held_out = held_out_rows(known_train.labels)
    if not held_out.any():
        return Splits(
            train,
            test or train,
            False,
            0,
            f"{name!r} has {lacking} and no class of two pictures: what needs classes, such as kNN, is left out",
        )
    note = (
        f"{name!r} has {lacking}: {held_out.sum()} of its {len(known_train)} labelled pictures, {HELD_OUT:.0%} of "
        "every class, are held out to be tested on; pretraining, which sees no labels, learns from them too"
    )
    rows = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    return Splits(known_train.take(rows[0]), known_train.take(rows[1]), True, len(rows[1]), note)


def configured_splits(data: ConfigDict) -> Splits:
    """Opens what the set of the `data` section of a configuration is judged on."""
    return open_splits(
        data.name, data_dir=data.dir, view_size=data.image_size, **configured_options(data, split="test")
    )


def held_out_rows(labels: np.ndarray) -> np.ndarray:
    """Marks the rows to hold out, bool [size]: a fifth of every class, of two rows or more at least one, never all.

    Args:
      labels: int [size], all at least 0.

    Example:
      >>> labels = np.array([0] * 10 + [1] * 2 + [2])
      >>> np.bincount(labels[held_out_rows(labels)], minlength=3).tolist()
      [2, 1, 0]
    """
    # NumPy promises the raw bits of a bit generator in all versions, but not what its distributions make of them.
    keys = np.random.Philox(np.random.SeedSequence(_SEED)).random_raw(len(labels))
    held_out = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = max(1, round(HELD_OUT * len(rows))) if len(rows) > 1 else 0
        held_out[rows[np.argsort(keys[rows], kind="stable")[:count]]] = True
    return held_out


def _labelled(source: Source, *, read: bool) -> Source | None:
    """The pictures that have a label; None where there are none, or where there is but one class.

    Of a large stream the labels are read only if `read`, or where some may be missing: a public set has all or none.
    """
    if source.num_classes < 2:
        return None
    if not (read or isinstance(source, ArraySource) or source.name == "image_folder"):
        return source
    rows = np.flatnonzero(source.labels >= 0)
    if len(rows) == len(source):
        return source
    return source.take(rows) if len(rows) else None
