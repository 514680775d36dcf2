"""F1a and F1b, Figure 1: what dimensions tell about classes, and Barlow Twins against the width of its projection."""

import numpy as np

from metamask_jax.experiments.base import Cell, Experiment, Report, Results, Table
from metamask_jax.experiments.compared_runs import compared_cells
from metamask_jax.experiments.output import lines
from metamask_jax.experiments.scales import Scale
from metamask_jax.experiments.statistics import mean_text
from metamask_jax.reporting import plots


def _map_cells(scale: Scale) -> list[Cell]:
    names = ("SimCLR", "SimCLR + Barlow Twins", "MetaMask")
    return compared_cells(scale, names, ("classes", "similarity", "correlation"))


def _map_report(results: Results) -> Report:
    figures = {}
    rows = []
    for name in results.levels("run"):
        part = results.where(run=name)
        matrix = np.array(next(iter(part.of("classes.class_dimension_map").values())), float)
        slug = str(name).lower().replace(" + ", "_").replace(" ", "_")
        figures[f"classes_{slug}"] = plots.heat_map(
            matrix,
            limits=(-2.0, 2.0),
            label="class mean (standard deviations)",
            xlabel=f"feature dimension of {name}",
            ylabel="class",
        )
        rows.append(
            (
                str(name),
                mean_text(part.of("correlation.mean_absolute_off_diagonal"), scale=1.0, digits=3),
                mean_text(part.of("classes.mean_strongest"), scale=1.0, digits=2),
            )
        )
    caption = "Correlation of two dimensions, absolute, on average; strongest class mean of a dimension in deviations:"
    return Report([Table(caption, ("", "|correlation|", "strongest class"), rows)], figures)


def _width_cells(scale: Scale) -> list[Cell]:
    return [
        Cell(
            {"method": "Barlow Twins", "width": float(width)},
            scale.config(method="barlow_twins", variant="alone", method__head=str((width, width))),
            ("knn",),
        )
        for width in scale.widths
    ]


def _width_report(results: Results) -> Report:
    rows = [(f"{w:g}", mean_text(results.where(width=w).of("knn.accuracy"))) for w in results.levels("width")]
    figure = lines(
        results,
        by="method",
        over="width",
        quantity="knn.accuracy",
        xlabel="width of the projection head",
        ylabel="kNN accuracy (%)",
        names={},
        log=True,
    )
    table = Table("Barlow Twins alone, kNN accuracy in percent:", ("projection width", "accuracy (%)"), rows)
    return Report([table], {"widths": figure})


F1A = Experiment(
    "Feature heat maps: class by dimension, and similarity of dimensions", "Figure 1a", _map_cells, _map_report
)
F1B = Experiment("Barlow Twins against projection dimensionality", "Figure 1b", _width_cells, _width_report)
