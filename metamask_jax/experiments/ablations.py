"""F8, the paper's Figure `abltest` (10 by LaTeX's count): MetaMask without meta-learning or redundancy reduction."""

from metamask_jax.experiments.base import Cell, Experiment, Report, Results
from metamask_jax.experiments.compared_runs import RUNS, compared_cells
from metamask_jax.experiments.output import bars, comparison
from metamask_jax.experiments.scales import Scale

_KNN = "knn.accuracy"


def _ablated_cells(scale: Scale) -> list[Cell]:
    return compared_cells(scale, tuple(RUNS), ("knn",))


def _ablated_report(results: Results) -> Report:
    # Figure abltest has no numbers; its text gives these differences for ResNet-18.
    paper = {"SimCLR": 81.73, "Barlow Twins": 85.72, "SimCLR + Barlow Twins": 85.76, "MetaMask w/o drr": 81.93}
    paper["MetaMask"] = 86.01
    table = comparison(
        results, caption="Ablations, kNN:", by="run", names={}, base="SimCLR + Barlow Twins", quantity=_KNN, paper=paper
    )
    figure = bars(
        results,
        by="run",
        quantity=_KNN,
        names={name: name.replace(" + ", " +\n") for name in RUNS},
        ylabel="kNN accuracy (%)",
        paper={},
    )
    return Report([table], {"ablations": figure})


F8 = Experiment(
    "Without meta-learning, without redundancy reduction", "Figure abltest", _ablated_cells, _ablated_report
)
