"""T1, Table 1: eight base methods alone and with MetaMask, `conv` and `fc`."""

from metamask_jax.experiments import methods_grid
from metamask_jax.experiments.base import Cell, Experiment, Report, Results
from metamask_jax.experiments.scales import Scale

_COLUMNS = tuple(
    (dataset, encoder) for dataset in ("tiny_imagenet", "stl10", "cifar10", "cifar100") for encoder in ("conv", "fc")
)
_PAPER = {
    "barlow_twins": (
        (39.81, 40.34, 80.97, 81.43, 76.63, 78.49, 52.80, 52.95),
        (42.91, 42.06, 84.96, 86.13, 85.24, 86.90, 58.02, 56.78),
    ),
    "swav": (
        (39.67, 39.02, 74.65, 75.30, 72.19, 72.36, 46.58, 46.75),
        (40.28, 40.05, 81.34, 82.19, 80.37, 77.22, 52.07, 52.98),
    ),
    "simclr": (
        (36.24, 39.83, 75.57, 77.15, 80.58, 80.07, 50.03, 49.82),
        (40.56, 40.82, 81.37, 82.90, 82.85, 81.64, 53.70, 54.24),
    ),
    "cmc": (
        (41.58, 40.11, 83.03, 85.06, 81.31, 83.28, 58.13, 56.72),
        (42.91, 42.06, 84.96, 86.13, 85.24, 86.90, 58.02, 56.78),
    ),
    "byol": (
        (41.59, 41.90, 81.73, 81.57, 77.18, 80.01, 53.64, 53.78),
        (42.72, 43.29, 83.01, 83.44, 79.26, 82.73, 55.68, 54.72),
    ),
    "simsiam": (
        (41.03, 41.27, 80.91, 81.88, 78.14, 81.13, 52.55, 53.52),
        (41.82, 42.67, 82.35, 83.96, 80.03, 81.39, 54.70, 55.02),
    ),
    "dcl": (
        (38.79, 40.26, 77.09, 78.39, 80.89, 80.93, 51.38, 51.09),
        (40.28, 41.69, 80.94, 81.06, 81.33, 81.34, 53.05, 53.74),
    ),
    "hcl": (
        (40.05, 41.23, 79.86, 80.20, 82.13, 82.76, 52.69, 53.13),
        (40.43, 41.01, 81.52, 82.09, 83.65, 83.95, 54.03, 54.26),
    ),
}


def _cells(scale: Scale) -> list[Cell]:
    full = scale.name == "full"
    return methods_grid.cells(
        scale,
        methods=tuple(_PAPER),
        datasets=tuple(dict.fromkeys(dataset for dataset, _ in _COLUMNS)) if full else ("cifar10",),
        encoders=("conv", "fc") if full else ("conv",),
        measures=("mlp", "knn"),
    )


def _report(results: Results) -> Report:
    paper = {
        (dataset, encoder, method): (alone[column], masked[column])
        for method, (alone, masked) in _PAPER.items()
        for column, (dataset, encoder) in enumerate(_COLUMNS)
    }
    return methods_grid.report(results, quantity="mlp.accuracy", what="MLP on frozen features,", paper=paper)


T1 = Experiment("Base methods alone and with MetaMask, conv and fc encoders", "Table 1", _cells, _report)
