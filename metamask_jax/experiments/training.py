"""F4, F5, T3, T4, T5, T6, F8: grids over how the network is trained."""

from metamask_jax.experiments.ablations import ABLATIONS, COMPARED, ablation_cells
from metamask_jax.experiments.base import Cell, Experiment, Report, Results, Table
from metamask_jax.experiments.names import METHOD_NAMES
from metamask_jax.experiments.output import bars, comparison, lines
from metamask_jax.experiments.scales import Scale
from metamask_jax.experiments.statistics import mean_text

_KNN = "knn.accuracy"


def _width_cells(scale: Scale) -> list[Cell]:
    runs = {
        "SimCLR": ("simclr", "alone", {}),
        "Barlow Twins": ("barlow_twins", "alone", {}),
        "MetaMask": ("simclr", "metamask", {}),
        "MetaMask*": ("simclr", "metamask", {"optimizer__schedule": "constant"}),
    }
    return [
        Cell(
            {"run": name, "width": float(width)},
            scale.config(
                method=method,
                variant=variant,
                method__head=str((width, width)),
                loss__drr_head=str((width, width)),
                **overrides,
            ),
            ("knn",),
        )
        for width in scale.widths[-4:]
        for name, (method, variant, overrides) in runs.items()
    ]


def _width_report(results: Results) -> Report:
    widths = results.levels("width")
    rows = [
        (str(run), *(mean_text(results.where(run=run, width=width).of(_KNN)) for width in widths))
        for run in results.levels("run")
    ]
    figure = lines(
        results,
        by="run",
        over="width",
        quantity=_KNN,
        xlabel="width of the projection heads",
        ylabel="kNN accuracy (%)",
        names={},
        log=True,
    )
    caption = "kNN accuracy in percent against projection width (MetaMask*: constant learning rate):"
    return Report([Table(caption, ("", *(f"{w:g}" for w in widths)), rows)], {"widths": figure})


def _alpha_cells(scale: Scale) -> list[Cell]:
    return [
        Cell({"run": "MetaMask", "alpha": alpha}, scale.config(loss__alpha=str(alpha)), ("knn",))
        for alpha in ((0.1, 1.0, 10.0, 100.0, 1000.0) if scale.name != "smoke" else (1.0, 100.0))
    ]


def _alpha_report(results: Results) -> Report:
    rows = [(f"{a:g}", mean_text(results.where(alpha=a).of(_KNN))) for a in results.levels("alpha")]
    figure = lines(
        results, by="run", over="alpha", quantity=_KNN, xlabel="alpha", ylabel="kNN accuracy (%)", names={}, log=True
    )
    caption = "kNN accuracy in percent against alpha (the paper's peak: 100):"
    return Report([Table(caption, ("alpha", "accuracy (%)"), rows)], {"alpha": figure})


_PAPER_COST = {"SimCLR": ("13M", 70), "Barlow Twins": ("22.7M", 80), "SimCLR + Barlow Twins": ("24.6M", 85)}
_PAPER_COST["MetaMask"] = ("24.6M + 512", 210)


def _cost_cells(scale: Scale) -> list[Cell]:
    return ablation_cells(scale, COMPARED, ("cost",))


def _cost_report(results: Results) -> Report:
    base = results.where(run="SimCLR").of("cost.seconds_per_epoch")
    rows = []
    for run in results.levels("run"):
        part = results.where(run=run)
        seconds = part.of("cost.seconds_per_epoch")
        parameters, paper_seconds = _PAPER_COST[str(run)]
        rows.append(
            (
                str(run),
                f"{next(iter(part.of('cost.parameters').values())):,}",
                mean_text(seconds, scale=1.0, digits=1),
                mean_text({s: seconds[s] / base[s] for s in seconds.keys() & base.keys()}, scale=1.0),
                parameters,
                f"{paper_seconds} ({paper_seconds / 70:.2f})",
            )
        )
    header = (
        "",
        "parameters",
        "seconds an epoch",
        "times SimCLR",
        "paper's parameters",
        "paper's seconds (times SimCLR)",
    )
    return Report([Table("Cost on this machine:", header, rows)], {})


def _equal_cells(scale: Scale) -> list[Cell]:
    """Each method as many epochs as the paper gives it for MetaMask's time; what they take here is in the table."""
    epochs = {"SimCLR": 2400, "Barlow Twins": 2100, "SimCLR + Barlow Twins": 2000, "MetaMask": 800}
    cells = []
    for name, paper in epochs.items():
        train = scale.config().train
        key, length = ("epochs", train.epochs) if train.steps is None else ("steps", train.steps)
        longer = {f"train__{key}": str(length * paper // epochs["MetaMask"])}
        cells += ablation_cells(scale, (name,), ("knn", "cost"), **longer)
    return cells


def _equal_report(results: Results) -> Report:
    paper = {"SimCLR": 81.75, "Barlow Twins": 85.71, "SimCLR + Barlow Twins": 85.79, "MetaMask": 86.01}
    table = comparison(
        results, caption="Equal time:", by="run", names={}, base="SimCLR + Barlow Twins", quantity=_KNN, paper=paper
    )
    rows = [
        (
            row[0],
            mean_text(results.where(run=row[0]).of("cost.steps"), scale=1.0, digits=0),
            mean_text(results.where(run=row[0]).of("cost.seconds"), scale=1.0, digits=0),
            *row[1:],
        )
        for row in table.rows
    ]
    return Report([table._replace(header=("", "steps", "seconds", *table.header[1:]), rows=rows)], {})


_DROPOUT = {
    **{(rate, False): paper for rate, paper in ((0.0, 85.72), (0.01, 85.76), (0.05, 86.11), (0.1, 85.72))},
    **{(0.2, False): 85.13, (0.5, False): 81.54, (0.05, True): 31.17, (0.1, True): 37.15, (0.5, True): 31.62},
}


def _dropout_cells(scale: Scale) -> list[Cell]:
    return [
        Cell(
            {"run": _dropout_name(rate, shared)},
            scale.config(
                method="barlow_twins",
                variant="alone",
                method__dropout=str(rate),
                method__dropout_shared=str(shared),
            ),
            ("knn",),
        )
        for rate, shared in (list(_DROPOUT)[:2] if scale.name == "smoke" else _DROPOUT)
    ]


def _dropout_name(rate: float, shared: bool) -> str:
    return f"{rate:g}, {'shared' if shared else 'independent'}"


def _dropout_report(results: Results) -> Report:
    paper = {_dropout_name(*key): value for key, value in _DROPOUT.items()}
    table = comparison(
        results,
        caption="Barlow Twins with dropout on its features, kNN:",
        by="run",
        names={},
        base=_dropout_name(0.0, False),
        quantity=_KNN,
        paper=paper,
    )
    return Report([table], {})


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


def _ablated_cells(scale: Scale) -> list[Cell]:
    return ablation_cells(scale, tuple(ABLATIONS), ("knn",))


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
        names={name: name.replace(" + ", " +\n") for name in ABLATIONS},
        ylabel="kNN accuracy (%)",
        paper={},
    )
    return Report([table], {"ablations": figure})


F4 = Experiment(
    "Projection dimensionality of all methods", "Figures robust and furtherrobust", _width_cells, _width_report
)
F5 = Experiment("Weight alpha of the method's loss", "Figure alphastudy", _alpha_cells, _alpha_report)
T3 = Experiment("Parameters and seconds per epoch", "Table complexity", _cost_cells, _cost_report)
T4 = Experiment("Accuracy at equal wall-clock time", "Table samecost", _equal_cells, _equal_report)
T5 = Experiment("Dropout on features, shared between views or not", "Table dropout", _dropout_cells, _dropout_report)
T6 = Experiment("Linear evaluation of many methods", "Table inresnet50", _imagenet_cells, _imagenet_report)
F8 = Experiment(
    "Without meta-learning, without redundancy reduction", "Figure abltest", _ablated_cells, _ablated_report
)
