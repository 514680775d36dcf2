"""T2, Table 2: six base methods alone and with MetaMask, ResNet-18, kNN."""

from metamask_jax.experiments import methods_grid
from metamask_jax.experiments.base import Cell, Experiment, Report, Results
from metamask_jax.experiments.scales import Scale

_DATASETS = ("cifar10", "cifar100", "stl10", "tiny_imagenet")
_PAPER = {
    "barlow_twins": ((85.72, 60.31, 73.62, 45.10), (87.53, 61.42, 73.97, 46.81)),
    "simclr": ((81.73, 58.27, 70.09, 44.46), (86.01, 61.03, 74.90, 45.87)),
    "byol": ((88.05, 60.94, 72.04, 46.72), (87.53, 61.42, 73.97, 46.81)),
    "dcl": ((85.61, 59.29, 71.18, 45.77), (86.47, 60.82, 74.79, 46.35)),
    "hcl": ((85.27, 61.21, 71.92, 46.90), (85.97, 61.63, 74.03, 46.06)),
    "nnclr": ((81.44, 61.64, 71.89, 47.10), (85.78, 61.89, 74.02, 46.90)),
}


def _cells(scale: Scale) -> list[Cell]:
    return methods_grid.cells(
        scale,
        methods=tuple(_PAPER),
        datasets=_DATASETS if scale.name == "full" else ("cifar10",),
        encoders=(scale.encoder if scale.name == "smoke" else "resnet18",),
        measures=("knn",),
    )


def _report(results: Results) -> Report:
    paper = {
        (dataset, str(encoder), method): (alone[column], masked[column])
        for encoder in results.levels("encoder")  # the paper's is ResNet-18, whatever stands in for it
        for method, (alone, masked) in _PAPER.items()
        for column, dataset in enumerate(_DATASETS)
    }
    return methods_grid.report(results, quantity="knn.accuracy", what="kNN", paper=paper)


T2 = Experiment(
    "Base methods alone and with MetaMask, ResNet-18",
    "Table 2",
    _cells,
    _report,
    {
        "cpu": "miniature: 5,000 images at 24 pixels, ResNet-18 of width 1/8, batch 64, 160 steps; kNN among 5,000 "
        "training images, 5,000 test images"
    },
)
