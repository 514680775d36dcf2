"""The first thing a newcomer runs: two short pretrainings on the embedded data, evaluated side by side."""

import json
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from metamask_jax.cli.terminal import runnable, say
from metamask_jax.core.places import Place, to_place
from metamask_jax.core.storage import write_atomically
from metamask_jax.data.sources import Source
from metamask_jax.evaluate.knn import knn_accuracy
from metamask_jax.evaluate.online import OnlineEvaluator, make_evaluator, pretrain
from metamask_jax.evaluate.probe import linear_probe
from metamask_jax.evaluate.workdir import load_run
from metamask_jax.kernels.programs import programs_folder
from metamask_jax.reporting.report import write_report
from metamask_jax.training.registry import validate
from metamask_jax.training.settings import Programs
from metamask_jax.training.state import init_state

_OPENING = (
    "Quickstart: two short trainings on pictures that come with the package, with and without mask learning, compared "
    "with raw pixels and an untrained encoder. Two to six minutes on two CPU cores; nothing is downloaded."
)
_NEXT = {
    "python run_pretrain.py --config image_folder:PATH,SIZE --workdir runs/mine": "your own pictures",
    "python examples/own_model_linen.py": "your own model",
    "python run_linear.py --workdir {run}": "evaluate this one: neighbours and a linear classifier, with intervals",
}
_Features = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
_SHORT_PROBE: dict[str, Any] = {"l2_grid": (1e-2, 1e-3), "max_iterations": 100}  # hundreds of pixels take their time


def run_quickstart(config: ConfigDict, workdir: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Pretrains with and without mask learning, and compares both with raw pixels and the untrained encoder.

    Args:
      config: the configuration of the run with mask learning.
      workdir: gets one folder for each of the two runs.

    Returns:
      The rows of the table it prints, each with a `name`, and `knn` and `linear` accuracy.
    """
    place, programs = to_place(workdir), Programs(programs_folder())
    say(_OPENING)
    config = validate(config)
    without, plain = (config.copy_and_resolve_references() for _ in range(2))
    without.mask.learn = False
    plain.eval.masked = False
    monitor = make_evaluator(plain, programs=programs)
    judged = partial(_row, config=config, classes=monitor.splits[0].num_classes)
    rows = [judged("raw pixels, half size", _of_both(monitor, _pixels))]
    rows.append(judged("untrained encoder", _of_both(monitor, partial(monitor.features, init_state(config)))))
    pretrain(without, place / "fixed_mask", programs=programs)
    rows.append(judged("SimCLR + BT, mask fixed", _trained(monitor, place / "fixed_mask")[0]))
    pretrain(config, place / "metamask", programs=programs)
    features, weights = _trained(monitor, place / "metamask")
    rows += [judged("MetaMask, features h", features), judged("MetaMask, masked h*m", features, weights)]
    report = _add_table(place / "metamask", rows)
    print(f"\n{'':28}{'kNN':>8}{'linear':>9}")
    for row in rows:
        print(f"{row['name']:28}{row['knn']:8.1%}{row['linear']:9.1%}")
    say(f"\n{_lesson(rows, config, len(monitor.splits[1].class_names))}\n\nreport: {report}\n\nTo try next:")
    for command, what in _NEXT.items():
        print(f"  # {what}\n  {runnable(command.format(run=place / 'metamask'))}")
    return rows


def _lesson(rows: list[dict[str, Any]], config: ConfigDict, classes: int) -> str:
    """What the rows of the table say, in words."""
    _, untrained, _, plain, masked = rows
    judge = "the labels of a few pictures" if config.meta.outer == "labels" else "the network's own loss"
    change = 100 * (masked["knn"] - plain["knn"])
    return (
        f"What was learned: nearest neighbours tell the class of {masked['knn']:.1%} of the test pictures, where an "
        f"untrained encoder's tell {untrained['knn']:.1%} and chance {1 / classes:.0%}. The network never saw a label; "
        f"the mask was judged by {judge}. Weighing the features by it changed the neighbours by {change:+.1f} points "
        "(the last two rows), in one short run; docs/results.md has more of them."
    )


def _trained(monitor: OnlineEvaluator, workdir: Place) -> tuple[_Features, np.ndarray]:
    """The features of a finished run, and the weights of its mask."""
    run = load_run(workdir, step="last")
    return _of_both(monitor, partial(monitor.features, run.state)), run.mask_weights


def _of_both(monitor: OnlineEvaluator, features: Callable[[Source], tuple[np.ndarray, np.ndarray]]) -> _Features:
    """Features and labels of the training pictures, then those of the test pictures."""
    train, test = monitor.splits
    return (*features(train), *features(test))


def _row(
    name: str, features: _Features, weights: np.ndarray | float = 1.0, *, config: ConfigDict, classes: int
) -> dict[str, Any]:
    """Accuracies of features times weights."""
    train, train_labels, test, test_labels = features
    data = (train * weights, train_labels, test * weights, test_labels)
    return {
        "name": name,
        "knn": knn_accuracy(*data, k=config.eval.k, temperature=config.eval.temperature, num_classes=classes),
        "linear": float(linear_probe(*data, num_classes=classes, seed=config.train.seed, **_SHORT_PROBE).accuracy),
    }


def _pixels(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Images as vectors, at half their height and width, and labels."""
    images, labels = source.gather(np.arange(len(source)))
    count, height, width, channels = images.shape
    small = images.reshape(count, height // 2, 2, width // 2, 2, channels).mean((2, 4))
    return small.reshape(count, -1).astype(np.float32) / 255.0, labels


def _add_table(workdir: Place, rows: list[dict[str, Any]]) -> Place:
    """Puts the comparison into the run's result and report."""
    path = workdir / "result.json"
    write_atomically(path, json.dumps(json.loads(path.read_text()) | {"table": rows}, indent=2))
    return write_report(workdir)
