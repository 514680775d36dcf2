"""A complete evaluation: reads a working directory and writes its `evaluation.json`."""

import dataclasses
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metamask_jax.core.places import Place
from metamask_jax.core.storage import write_atomically
from metamask_jax.data.sources import Source, configured_options
from metamask_jax.data.splits import Splits, open_splits
from metamask_jax.errors import CheckpointError, ConfigError, DataError
from metamask_jax.evaluate.metrics import summarize
from metamask_jax.evaluate.protocols import GROUPS, LEAST_IMAGES, PROTOCOLS, Data, ProtocolResult, Settings
from metamask_jax.evaluate.rows import all_finite
from metamask_jax.evaluate.sharding import gathered
from metamask_jax.evaluate.workdir import Run, features, load_run
from metamask_jax.reporting.tables import markdown_table
from metamask_jax.training.distributed import is_main
from metamask_jax.training.processes import main_first
from metamask_jax.training.registry import Registry
from metamask_jax.version import __version__

_log = logging.getLogger(__name__)
Entry = dict[str, Any]
_DEFAULT_SETTINGS = Settings()
_IDENTITY = ("step", "dataset", "train_size", "test_size", "protocol", "features", "seed")


def evaluate_run(
    workdir: str | os.PathLike[str] | Run,
    *,
    step: int | str = "last",
    protocols: Sequence[str] = ("linear", "knn"),
    dataset: str | None = None,
    data_dir: str | None = None,
    options: Mapping[str, Any] | None = None,
    size: int | None = None,
    dtype: str | None = None,
    settings: Settings = _DEFAULT_SETTINGS,
    registry: Registry | None = None,
) -> list[Entry]:
    """Judges a pretrained encoder, which stays as it is, and adds the results to `evaluation.json` in its workdir.

    Several processes that have joined each other share the work and all get the results; the main one writes them.

    The defaults are those of the command. For example, the accuracies of a linear probe and of nearest neighbours:

        for entry in evaluate_run("runs/cifar10"):
            print(entry["protocol"], entry["features"], entry["top1"])

    Args:
      workdir: of the run; or a run that is loaded already, whose `workdir` gets the results.
      step: a step that was saved, `last` for the newest, or `best` for the one with the highest online kNN accuracy.
      protocols: keys of `protocols.PROTOCOLS`, or of `protocols.GROUPS` such as `all` or `knn`.
      dataset: the set of images to judge on; None for the one it was pretrained on.
      data_dir: where prepared datasets are; None for where they were when the run was pretrained.
      options: of the dataset, added to those of the run if it is the run's dataset; None for no more.
      size: only the first so many training images; None for all. The test set is always whole.
      dtype: of the encoder's computation, `float32` or `bfloat16`; None for that of the run.
      settings: hyper-parameters of the protocols.
      registry: what the configuration's names stand for; None is ours and `config.plugins`.

    Returns:
      The new results, one for each protocol and kind of features: `h`, as the encoder gives them, and `h*m`, multiplied
      by the mask. An entry tells what was evaluated (`step`, `dataset`, `train_size`, `test_size`, `protocol`,
      `features`, `seed`) and what was found (`top1` in [0, 1], its 95 % `interval`, `top5`, `per_class`, `confusion`,
      the hyper-parameters `chosen`, accuracies `held_out`); `same_for` names other kinds of features for which the
      result is the same by construction, and which therefore have no entry of their own.

    Raises:
      ConfigError: there is no such run, step, protocol or dataset, or the workdir cannot be written.
      DataError: the images or their labels cannot be used.
      CheckpointError: the checkpoint is damaged or another model's.
    """
    names = expand(protocols)
    run = workdir if isinstance(workdir, Run) else load_run(workdir, step=step, registry=registry)
    run = _computing_in(dtype, run)
    results = read_results(run.workdir)
    splits = main_first(lambda: _open(run, dataset, data_dir, options or {}, size))
    _check(splits.train, splits.test)
    names = _fitting(splits.train, names, asked_for=protocols)
    data = load_data(run, splits.train, splits.test)
    if not splits.labelled:
        raise DataError(f"{splits.note}; expected two pictures or more of every class")
    new: list[Entry] = []
    for name in names:
        started = time.monotonic()
        by_features = PROTOCOLS[name](data, settings)
        seconds = round(time.monotonic() - started, 2)
        found = [
            _entry(data, settings, name, kind, result, seconds) | {"held_out_images": splits.held_out}
            for kind, result in by_features.items()
        ]
        new += found
        results = merge(results, new)
        if is_main():
            _log.info("%s: %s (%.1f s)", name, ", ".join(f"{e['features']} {e['top1']:.2%}" for e in found), seconds)
            _write(run.workdir, results)  # after each, so that a kill costs only the protocol it hit
    return new


def _computing_in(dtype: str | None, run: Run) -> Run:
    """The run with its encoder computing in another precision."""
    if dtype is None:
        return run
    config = run.config.copy_and_resolve_references()
    config.eval.dtype = dtype
    return run._replace(config=config)


def _entry(data: Data, settings: Settings, name: str, kind: str, result: ProtocolResult, seconds: float) -> Entry:
    return {
        "step": data.run.step,
        "dataset": data.train.name,
        "train_size": len(data.train),
        "test_size": len(data.test),
        "protocol": name,
        "features": kind,
        "same_for": list(result.same_for),
        "seed": settings.seed,
        **summarize(gathered(result.scores), data.test_labels, class_names=data.train.class_names),
        "chosen": result.chosen,
        "held_out": result.held_out,
        "settings": dataclasses.asdict(settings),
        "dtype": data.run.config.eval.dtype or data.run.config.train.dtype,
        "seconds": seconds,  # of both kinds of features together
        "version": __version__,
    }


def expand(protocols: Sequence[str]) -> list[str]:
    """Names with groups replaced by their members, each once, in the order of `PROTOCOLS`.

    Example:
      >>> expand(["linear", "knn"])
      ['knn_official', 'knn_k200', 'knn_euclidean5', 'linear']
    """
    chosen: set[str] = set()
    for name in protocols:
        if name not in PROTOCOLS and name not in GROUPS:
            allowed = ", ".join(map(repr, (*GROUPS, *PROTOCOLS)))
            raise ConfigError(f"--protocol {name}; expected one or more of {allowed}, separated by commas")
        chosen.update(GROUPS.get(name, (name,)))
    return [name for name in PROTOCOLS if name in chosen]


def read_results(workdir: Place) -> list[Entry]:
    """The results that `evaluation.json` holds; none if there is no such file."""
    path = workdir / "evaluation.json"
    try:
        results = json.loads(path.read_text())["results"]
        for entry in results:
            _identity(entry)
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ConfigError(f"{path} cannot be read; expected earlier results: move it away to start anew") from error
    return list(results)


def merge(old: Sequence[Entry], new: Sequence[Entry]) -> list[Entry]:
    """Old results and new ones, which take the place of those of the same step, data, protocol, features and seed.

    A new result that is the same for other features by construction takes the place of theirs as well.
    """
    merged: dict[tuple[Any, ...], Entry] = {}
    for entry in (*old, *new):
        for kind in entry.get("same_for", ()):
            merged.pop(_identity(entry | {"features": kind}), None)
        merged[_identity(entry)] = entry
    return list(merged.values())


def _identity(entry: Entry) -> tuple[Any, ...]:
    return tuple(entry[key] for key in _IDENTITY)


def _write(workdir: Place, results: list[Entry]) -> None:
    try:
        write_atomically(workdir / "evaluation.json", json.dumps({"results": results}, indent=1))
        write_atomically(workdir / "evaluation.md", markdown_table(results, name=workdir.resolve().name))
    except OSError as error:
        raise ConfigError(f"--workdir {workdir}; expected a folder that can be written, but: {error}") from error


def _open(run: Run, dataset: str | None, data_dir: str | None, options: Mapping[str, Any], size: int | None) -> Splits:
    """The labelled training images, no more than `size`, and the whole test set."""
    section = run.config.data
    own = configured_options(section, split="test") if dataset in (None, section.name) else {}
    found = open_splits(
        dataset or section.name,
        data_dir=data_dir or section.dir,
        view_size=section.image_size,
        **(own | dict(options)),
    )
    if found.note and found.labelled and is_main():
        _log.info("%s", found.note)
    train = found.train
    if size is not None and not 1 <= size <= len(train):
        raise DataError(f"--size {size}; expected 1 to {len(train)}, the number of training images of {train.name!r}")
    return found if size is None else found._replace(train=train.first(size))


def _check(train: Source, test: Source) -> None:
    """Refuses data that no protocol can use."""
    for split, source in (("train", train), ("test", test)):
        if source.num_classes < 2:
            raise DataError(
                f"{source.name!r} has {source.num_classes} classes in its {split} split; expected labels of two or more"
            )
    if train.class_names != test.class_names:
        raise DataError(
            f"{train.name!r} has {train.num_classes} classes to train on and {test.num_classes} to test on; "
            "expected the same ones"
        )


def _fitting(train: Source, protocols: Sequence[str], *, asked_for: Sequence[str]) -> list[str]:
    """The protocols for which there are enough images.

    One that came with a group such as `knn` is left out and said to be, so that few pictures can be judged by the usual
    command; one that was asked for by its name is refused.
    """
    fitting = [name for name in protocols if len(train) >= LEAST_IMAGES.get(name, 1)]
    for name in protocols:
        if name in fitting:
            continue
        found = f"{train.name!r} has {len(train)} training images here"
        if name in asked_for or not fitting:
            raise DataError(
                f"{found}; expected at least {LEAST_IMAGES[name]} for --protocol {name}"
                + (f": --protocol {','.join(fitting)} needs fewer" if fitting else "")
            )
        if is_main():
            _log.info("%s: --protocol %s, which needs %d, is left out", found, name, LEAST_IMAGES[name])
    return fitting


def load_data(run: Run, train: Source, test: Source) -> Data:
    """Features and labels of both sets; refuses labels that no protocol could use."""
    train_h, own_train_labels = features(run, train)
    test_h, own_test_labels = features(run, test)
    train_labels, test_labels = gathered(own_train_labels), gathered(own_test_labels)
    for split, labels in (("train", train_labels), ("test", test_labels)):
        if labels.min() < 0 or labels.max() >= train.num_classes:
            raise DataError(
                f"{train.name!r} has labels {labels.min()} to {labels.max()} in its {split} split; expected a label "
                f"of every image, 0 to {train.num_classes - 1}"
            )
    found = len(np.unique(train_labels))
    if found < train.num_classes:
        raise DataError(
            f"the {len(train)} training images of {train.name!r} show {found} of its {train.num_classes} classes; "
            "expected all of them, so a larger --size"
        )
    if not (all_finite(train_h) and all_finite(test_h)):
        raise CheckpointError(f"the features at step {run.step} are not finite; expected an earlier --step")
    masks = {"h": np.ones_like(run.mask_weights), "h*m": run.mask_weights}
    return Data(run, train, test, train_h, train_labels, test_h, test_labels, masks)
