"""T6, the paper's Table `inresnet50` (6 by LaTeX's count): linear evaluation on ImageNet with ResNet-50.

Smaller scales than `full` put CIFAR-100 and their own encoder in its place.
"""

from metamask_jax.experiments.base import Cell, Experiment, Report, Results
from metamask_jax.experiments.names import METHOD_NAMES
from metamask_jax.experiments.output import comparison
from metamask_jax.experiments.scales import Scale
from metamask_jax.experiments.statistics import mean_text

_IMAGENET = {"supervised": 76.5, "moco": 60.6, "simclr": 69.3, "simsiam": 71.3, "byol": 74.3, "barlow_twins": 73.2}


def _imagenet_cells(scale: Scale) -> list[Cell]:
    full = scale.name == "full"
    common = {
        "dataset": "imagenet2012" if full else "cifar100",
        "encoder": "resnet50" if full else scale.encoder,
    }
    methods = ("moco", "simclr") if scale.name == "smoke" else tuple(_IMAGENET)
    rows = {METHOD_NAMES[method]: (method, "alone") for method in methods} | {"MetaMask": ("simclr", "metamask")}
    return [
        Cell({"run": name}, scale.config(method=method, variant=variant, **common), ("linear",))
        for name, (method, variant) in rows.items()
    ]


def _imagenet_report(results: Results) -> Report:
    paper = {METHOD_NAMES[method]: value for method, value in _IMAGENET.items()} | {"MetaMask": 73.9}
    table = comparison(
        results,
        caption="Linear probe, top-1:",
        by="run",
        names={},
        base="SimCLR",
        quantity="linear.accuracy",
        paper=paper,
    )
    top5 = [(row[0], *row[1:], mean_text(results.where(run=row[0]).of("linear.top5"))) for row in table.rows]
    return Report([table._replace(header=(*table.header, "top-5 (%)"), rows=top5)], {})


T6 = Experiment("Linear evaluation of many methods", "Table inresnet50", _imagenet_cells, _imagenet_report)
