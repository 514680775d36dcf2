"""L, beyond the paper: which measure of features, taken without labels, ranks runs as a linear probe does?"""

from typing import TYPE_CHECKING

import numpy as np
from ml_collections import ConfigDict

from metamask_jax.experiments.base import Cell, Experiment, Report, Result, Results, Table
from metamask_jax.experiments.scales import Scale
from metamask_jax.experiments.statistics import mean_text, rank_correlation
from metamask_jax.reporting import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINEAR = "linear.accuracy"
_MEASURES = ("linear", "knn", "spectrum", "alignment")

# Name in the tables -> method, variant and what differs from the scale's own settings. A choice as one has it in
# practice: methods, weights of the two losses, temperatures, and runs that were stopped early.
_RUNS: dict[str, tuple[str, str, dict[str, str]]] = {
    "SimCLR": ("simclr", "alone", {}),
    "SimCLR, temperature 0.05": ("simclr", "alone", {"method__temperature": "0.05"}),
    "SimCLR, temperature 2": ("simclr", "alone", {"method__temperature": "2.0"}),
    "SimCLR, an eighth as long": ("simclr", "alone", {}),
    "Barlow Twins": ("barlow_twins", "alone", {}),
    "Barlow Twins, an eighth as long": ("barlow_twins", "alone", {}),
    "both, alpha 1": ("simclr", "without_meta", {"loss__alpha": "1.0"}),
    "both, alpha 100": ("simclr", "without_meta", {}),
    "MetaMask": ("simclr", "metamask", {}),
    "BYOL": ("byol", "alone", {}),
    "SimSiam": ("simsiam", "alone", {}),
    "MoCo": ("moco", "alone", {}),
}


def _cells(scale: Scale) -> list[Cell]:
    runs = list(_RUNS.items())
    return [
        Cell({"run": name}, _config(scale, name, method, variant, changes), _MEASURES)
        for name, (method, variant, changes) in (runs[:4] if scale.name == "smoke" else runs)
    ]


def _config(scale: Scale, name: str, method: str, variant: str, changes: dict[str, str]) -> ConfigDict:
    config = scale.config(method=method, variant=variant, **changes)
    if name.endswith("an eighth as long"):
        length = "epochs" if config.train.steps is None else "steps"
        config.train[length] = max(1, config.train[length] // 8)
    return config


def _judgements(result: Result) -> dict[str, float]:
    """What each measure says of a run, the higher the better as its authors mean it."""
    spectrum = {
        name: result.values[f"spectrum.{name}"]["unmasked"] for name in ("effective_rank", "lidar", "alpha_req")
    }
    views = result.values["alignment.unmasked"]
    return {
        "RankMe": spectrum["effective_rank"],
        "LiDAR": spectrum["lidar"],
        "alpha-ReQ, near 1": -abs(spectrum["alpha_req"] - 1),
        "alpha-ReQ, small": -spectrum["alpha_req"],
        "alignment": -views["alignment"],
        "uniformity": -views["uniformity"],
        "alignment + uniformity": -views["alignment"] - views["uniformity"],
        "kNN (needs labels)": result.values["knn.accuracy"],
    }


def _report(results: Results) -> Report:
    judged = [_judgements(result) for result in results.items]
    accuracies = np.array([result.values[_LINEAR] for result in results.items])
    names = list(judged[0]) if judged else []
    columns = {name: np.array([one[name] for one in judged]) for name in names}
    found = {name: rank_correlation(values, accuracies) for name, values in columns.items()}
    ranking = [
        (name, f"{r.spearman:+.2f} [{r.low:+.2f}, {r.high:+.2f}]", f"{r.kendall:+.2f}")
        for name, r in sorted(found.items(), key=lambda pair: -np.nan_to_num(pair[1].spearman, nan=-2.0))
    ]
    correlations = Table(
        f"Rank correlation with linear accuracy over {len(accuracies)} runs; 95 % intervals of Spearman's by "
        "resampling runs (percentiles):",
        ("measure", "Spearman", "Kendall"),
        ranking,
    )
    shown = ("RankMe", "LiDAR", "alpha-ReQ, small", "alignment", "uniformity")
    rows = [
        (
            str(run),
            mean_text(results.where(run=run).of(_LINEAR)),
            mean_text(results.where(run=run).of("knn.accuracy")),
            *(f"{np.mean([columns[name][i] for i in _places(results, run)]):.3g}" for name in shown),
        )
        for run in results.levels("run")
    ]
    header = ("run", "linear", "kNN", "RankMe", "LiDAR", "- alpha-ReQ", "- alignment", "- uniformity")
    runs = Table("The runs, means over seeds; accuracies in percent:", header, rows)
    return Report([correlations, runs], {"scatter": _scatter(columns, accuracies)} if judged else {})


def _places(results: Results, run: object) -> list[int]:
    return [i for i, result in enumerate(results.items) if result.labels["run"] == run]


def _scatter(columns: dict[str, np.ndarray], accuracies: np.ndarray) -> "Figure":
    names = ("RankMe", "LiDAR", "alpha-ReQ, small", "uniformity")
    figure, axes = plots.new_panels(len(names), width=3.0)
    for axis, name in zip(axes, names, strict=True):
        axis.plot(columns[name], 100 * accuracies, "o", color=plots.BLUE, markersize=5)
        plots.style(axis, name, "linear accuracy (%)")
    return figure


L = Experiment("Which measure without labels ranks runs?", "beyond the paper", _cells, _report)
