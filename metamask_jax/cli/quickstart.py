"""The first thing a newcomer runs: two short pretrainings on the embedded data, evaluated side by side."""

import json
import os
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
from metamask_jax.training.state import TrainState, init_state

_OPENING = (
    "Quickstart: two short trainings on pictures that come with the package, with and without mask learning, compared "
    "with raw pixels and an untrained encoder. Two to six minutes on two CPU cores; nothing is downloaded."
)
_NEXT = {
    "python run_pretrain.py --config image_folder:PATH,SIZE --workdir runs/mine": "your own pictures",
    "python examples/own_model_linen.py": "your own model",
    "python run_linear.py --workdir {run}": "evaluate this one: neighbours and a linear classifier, with intervals",
}
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
    without = config.copy_and_resolve_references()
    without.mask.learn = False
    monitor = make_evaluator(config, programs=programs)
    rows = [_row("raw pixels, half size", monitor, config, None)]
    rows.append(_row("untrained encoder", monitor, config, init_state(config)))
    for name, run, folder in (("SimCLR + BT, mask fixed", without, "fixed_mask"), ("MetaMask", config, "metamask")):
        pretrain(run, place / folder, programs=programs)
        rows.append(_row(name, monitor, config, load_run(place / folder, step="last").state))
    report = _add_table(place / "metamask", rows)
    print(f"\n{'':28}{'kNN':>8}{'linear':>9}")
    for row in rows:
        print(f"{row['name']:28}{row['knn']:8.1%}{row['linear']:9.1%}")
    classes = len(monitor.splits[1].class_names)
    say(f"\n{_lesson(rows, chance=1 / classes)}\n\nreport: {report}\n\nTo try next:")
    for command, what in _NEXT.items():
        print(f"  # {what}\n  {runnable(command.format(run=place / 'metamask'))}")
    return rows


def _lesson(rows: list[dict[str, Any]], *, chance: float) -> str:
    """What the four rows of the table say, in words."""
    _, untrained, fixed, learned = rows
    change = 100 * (learned["knn"] - fixed["knn"])
    return (
        f"What was learned, without a single label: nearest neighbours tell the class of {learned['knn']:.1%} of the "
        f"test pictures, where an untrained encoder's tell {untrained['knn']:.1%} and chance {chance:.0%}. Learning "
        f"the mask changed that by {change:+.1f} points, which in one short run is no evidence either way; "
        "docs/results.md has many."
    )


def _row(name: str, monitor: OnlineEvaluator, config: ConfigDict, state: TrainState | None) -> dict[str, Any]:
    """Accuracies of the features of a state, or of the pixels themselves."""
    train, test = monitor.splits
    features = partial(monitor.features, state) if state is not None else _pixels
    data = (*features(train), *features(test))
    classes = train.num_classes
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
