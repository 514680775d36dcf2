"""D, beyond the paper: SimCLR, Barlow Twins, both, and masks with several judges, trained until they are worth judging.

Made for `--scale day`. All runs have the scale's rate and temperature: `B --scale day`, which chooses them for each
method on held-out training images, has not been run yet.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from metamask_jax.experiments.base import Cell, Experiment, Report, Results, Table
from metamask_jax.experiments.output import COLORS
from metamask_jax.experiments.scales import Scale
from metamask_jax.experiments.statistics import adjusted_p, difference_text, mean_text, paired_difference
from metamask_jax.reporting import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_REFERENCE = "SimCLR + Barlow Twins"
_LABELS = {"meta__outer": "labels", "meta__labels": "0.05"}
_HEADS = {"meta__scope": "head"}
# Name in the tables -> method, variant and settings of the mask.
_RUNS: Mapping[str, tuple[str, str, Mapping[str, str]]] = {
    "SimCLR": ("simclr", "alone", {}),
    "Barlow Twins": ("barlow_twins", "alone", {}),
    _REFERENCE: ("simclr", "without_meta", {}),
    "MetaMask (the paper's judge)": ("simclr", "metamask", {}),
    "MetaMask, labels of 5 %, trial step of the heads": ("simclr", "metamask", _LABELS | _HEADS),
    "MetaMask, trial step of the heads": ("simclr", "metamask", _HEADS),
    "MetaMask, every 4th step": ("simclr", "metamask", {"meta__every": "4"}),
}
_MEASURES = ("knn", "knn_k200", "linear", "mask", "curve", "cost")


def _cells(scale: Scale) -> list[Cell]:
    measures = tuple(name for name in _MEASURES if scale.name != "smoke" or name != "knn_k200")  # it has 64 images
    return [
        Cell({"run": name}, scale.config(method=method, variant=variant, **settings), measures)
        for name, (method, variant, settings) in _RUNS.items()
    ]


def _report(results: Results) -> Report:
    caption = (
        f"Mean ± deviation (seeds); differences of kNN (k = 5) of h*m to {_REFERENCE}, paired by seed, their p-values "
        "adjusted for the number of comparisons with at least two seeds (Holm):"
    )
    tables = [
        Table(caption, _HEADER, _rows(results)),
        Table("kNN (k = 5) while training, by epoch, first seed:", *_curves(results)),
    ]
    return Report(tables, {"curves": _figure(results)})


_HEADER = (
    "",
    "kNN of h, k = 5 (%)",
    "kNN of h*m, k = 5 (%)",
    "kNN of h, k = 200 (%)",
    "linear of h (%)",
    "difference [95 %]",
    "p, adjusted",
    "spread of the mask",
    "minutes of training",
)


def _rows(results: Results) -> list[tuple[str, ...]]:
    runs = [str(run) for run in results.levels("run")]
    base = results.where(run=_REFERENCE).of("knn.masked")
    masked = {run: results.where(run=run).of("knn.masked") for run in runs}
    differences = {run: paired_difference(masked[run], base) for run in runs if base and run != _REFERENCE}
    adjusted = adjusted_p(differences)
    rows: list[tuple[str, ...]] = []
    for run in runs:
        part, difference = results.where(run=run), differences.get(run)
        rows.append(
            (
                run,
                mean_text(part.of("knn.accuracy")),
                mean_text(masked[run]),
                mean_text(part.of("knn_k200.accuracy")),
                mean_text(part.of("linear.accuracy")),
                difference_text(difference) if difference else "",
                f"{adjusted[run]:.3f}" if run in adjusted else "",
                mean_text(part.of("mask.std"), scale=1.0, digits=3) if run.startswith("MetaMask") else "",
                mean_text(part.of("cost.seconds"), scale=1 / 60, digits=0),
            )
        )
    return rows


def _curves(results: Results) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows of accuracies by epoch, one column per run, of the first seed that is there."""
    found = {str(run): _curve(results, str(run)) for run in results.levels("run")}
    epochs = sorted({epoch for curve in found.values() for epoch in curve})
    rows = [
        (f"{epoch:g}", *(f"{100 * curve[epoch]:.2f}" if epoch in curve else "" for curve in found.values()))
        for epoch in epochs
    ]
    return ("epoch", *found), rows


def _curve(results: Results, run: str) -> dict[float, float]:
    """Accuracy by epoch of the first seed."""
    part = results.where(run=run)
    seed = min(part.of("curve.epoch"))
    return dict(zip(part.of("curve.epoch")[seed], part.of("curve.accuracy")[seed], strict=True))


def _figure(results: Results) -> "Figure":
    figure, axis = plots.new_figure(plots.WIDTH)
    for place, run in enumerate(results.levels("run")):
        curve = _curve(results, str(run))
        axis.plot(
            list(curve),
            [100 * accuracy for accuracy in curve.values()],
            color=COLORS[place % len(COLORS)],
            linestyle="-" if place < len(COLORS) else "--",
            marker="o",
            markersize=4,
            label=str(run),
        )
    plots.style(axis, "epoch", "kNN accuracy (%)")
    plots.legend(axis)
    return figure


D = Experiment("Long runs, with and without a mask", "beyond the paper", _cells, _report)
