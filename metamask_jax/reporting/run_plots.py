"""Which plots a run's data allow, and what to say of each."""

from collections.abc import Container, Iterator
from typing import Any, NamedTuple

import numpy as np

from metamask_jax.reporting import feature_plots, plots
from metamask_jax.reporting.gallery import class_names
from metamask_jax.reporting.plots import BLUE, ORANGE, SLATE, TEAL, VIOLET, Curve

_CLASSES = 100  # of a confusion matrix that can still be read


class LoggedRun(NamedTuple):
    """What the files of a run tell about it.

    Attributes:
      name: of its workdir.
      config: values by dotted key.
      curves: logged metrics by name.
      result: final numbers.
      arrays: what `reporting.arrays` has found good: the mask, the spectrum, pictures and more, each if known.
      evaluation: `rows` of a table, if the run was evaluated.
      notes: one sentence for each file that could not be read.
    """

    name: str
    config: dict[str, Any]
    curves: dict[str, Curve]
    result: dict[str, Any]
    arrays: dict[str, np.ndarray]
    evaluation: dict[str, Any]
    notes: list[str]


class Plot(NamedTuple):
    """Figures that belong together, as SVG, ready for a page."""

    title: str
    caption: str
    figures: list[str]


def learned(run: LoggedRun) -> Iterator[Plot]:
    """What the features tell of the classes."""
    if curve := from_the_start(run, "knn_accuracy"):
        others = {row["name"]: row["knn"] for row in run.result.get("table", []) if row.get("knn") is not None}
        lines = references(run)
        for name, value in others.items():
            if not np.isclose([curve.values[-1], *lines.values()], value).any():
                lines[name] = value
        figure = plots.knn_curve(curve, references=lines, interval=knn_interval(run))
        caption = "Share of test pictures whose class their nearest training pictures tell, while training."
        if knn_interval(run) is not None:
            caption += " The bar is the 95 % interval over test pictures."
        yield _plot("Accuracy while training", caption, figure)
    arrays, names = run.arrays, class_names(run.arrays)
    if "map_points" in arrays:
        figure = feature_plots.feature_map(
            arrays["map_points"], arrays["map_labels"], names=names, shares=arrays["map_shares"].tolist()
        )
        what = f"{len(arrays['map_points'])} {'test ' if names else ''}pictures"
        caption = f"{what} by the two directions in which their features differ most"
        yield _plot("Map of the features", caption + (", coloured by class." if names else "."), figure)
    if "knn_confusion" in arrays and len(arrays["knn_confusion"]) <= _CLASSES:
        caption = "Each row is a class: which classes its test pictures were taken for by their nearest neighbours."
        figures = [feature_plots.confusion(arrays["knn_confusion"], names)]
        if len(names) <= feature_plots.NAMED:
            caption += " Beside it the share of each class that was recognised."
            figures.append(feature_plots.recognised(arrays["knn_confusion"], names))
        yield _plot("Which classes are confused", caption, *figures)


def from_the_start(run: LoggedRun, metric: str) -> Curve | None:
    """A curve of the evaluation, with what was measured before the first step; None if it was not logged."""
    curve, before = run.curves.get(metric), run.result.get(f"{metric}_before")
    if curve is None or before is None or curve.steps[0] <= 0:
        return curve
    return Curve(np.r_[0, curve.steps], np.r_[before, curve.values])


def references(run: LoggedRun) -> dict[str, float]:
    """Accuracies that need no training, by name."""
    found = {}
    if "knn_accuracy_before" in run.result:
        found["before training"] = run.result["knn_accuracy_before"]
    if (counts := run.arrays.get("knn_confusion")) is not None and counts.sum() > 0:
        found["chance"] = float(counts.sum(axis=1).max() / counts.sum())  # who always names the largest class
    return found


def knn_interval(run: LoggedRun) -> np.ndarray | None:
    """The interval [2] of the accuracy of nearest neighbours, if known."""
    return run.arrays.get("knn_interval")


def training(run: LoggedRun) -> Iterator[Plot]:
    """How training went."""
    yield from _curves(
        run,
        "Losses",
        "The network learns by the total, the mask by the method's loss after a trial step.",
        ("total loss", {"loss": ("total", BLUE)}),
        ("redundancy reduction", {"loss_drr": ("redundancy reduction", TEAL)}),
        ("method's loss", {"loss_method": ("regular step", ORANGE), "loss_outer": ("after trial step", VIOLET)}),
    )
    yield from _curves(
        run,
        "Gradients and learning rate",
        "Norms of the gradients: the network's over all weights, and the mask's in its two parts, through the loss "
        "itself and through the trial step. The learning rate is that of the network's optimiser.",
        ("network's gradient", {"gradient_norm": ("gradient", SLATE)}),
        ("meta-gradient", {"meta_direct_norm": ("direct", VIOLET), "meta_second_order_norm": ("second order", ORANGE)}),
        ("learning rate", {"learning_rate": ("learning rate", SLATE)}),
        log=("network's gradient", "meta-gradient"),
    )


def mask(run: LoggedRun) -> Iterator[Plot]:
    """What became of the mask."""
    if (weights := run.arrays.get("mask_final")) is not None:
        figure = plots.mask_histogram(weights)
        yield _plot("Mask at the end", f"Weights of the {len(weights)} feature dimensions.", figure)
    if {"mask_steps", "mask_trajectory"} <= set(run.arrays):
        figure = plots.mask_trajectory(run.arrays["mask_steps"], run.arrays["mask_trajectory"])
        yield _plot("Mask while training", "Thin lines are single dimensions, from lowest to highest.", figure)


def features(run: LoggedRun) -> Iterator[Plot]:
    """How the features fill their space."""
    if (values := run.arrays.get("singular_values")) is not None:
        figure = feature_plots.feature_spectrum(values)
        yield _plot("Feature spectrum", "A steep fall means that few directions are in use.", figure)
    if (matrix := run.arrays.get("correlation")) is not None:
        off_diagonal = matrix[~np.eye(len(matrix), dtype=bool)]
        caption = f"Between feature dimensions; off the diagonal {np.abs(off_diagonal).mean():.3f} on average."
        yield _plot("Correlation", caption, feature_plots.correlation(matrix))
    yield from _curves(
        run,
        "Feature spread",
        "Of features scaled to length one: near one if they fill the sphere, zero if collapsed.",
        ("feature spread", {"feature_std": ("feature spread", TEAL)}),
    )
    yield from _curves(
        run,
        "Effective rank",
        "Of the features of test images: how many directions they use.",
        ("effective rank", {"effective_rank": ("effective rank", TEAL)}),
    )


def _curves(
    run: LoggedRun,
    title: str,
    caption: str,
    *panels: tuple[str, dict[str, tuple[str, str]]],
    log: Container[str] = (),
) -> Iterator[Plot]:
    """A plot of those metrics that were logged, if any.

    Args:
      run: the run.
      title: of the plot.
      caption: what to see in it.
      *panels: for each its label and, by metric, the curves' names and colours.
      log: the labels of those whose axis is logarithmic.
    """
    known = {
        label: {
            name: (curve, color)
            for metric, (name, color) in curves.items()
            if (curve := from_the_start(run, metric)) is not None
        }
        for label, curves in panels
    }
    known = {label: curves for label, curves in known.items() if curves}
    if known:
        width = plots.WIDTH if len(known) == 1 else plots.NARROW
        yield _plot(
            title,
            caption,
            *(plots.curves(panel, label=label, log=label in log, width=width) for label, panel in known.items()),
        )


def _plot(title: str, caption: str, *figures: Any) -> Plot:
    return Plot(title, caption, [plots.to_svg(figure) for figure in figures])
