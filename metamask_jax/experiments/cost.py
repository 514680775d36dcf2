"""T3 and T4: what MetaMask costs, and what it brings at equal time.

They are the paper's Tables `complexity` and `samecost` (3 and 4 by LaTeX's count).
"""

from metamask_jax.experiments.base import Cell, Experiment, Report, Results, Table
from metamask_jax.experiments.compared_runs import COMPARED, compared_cells
from metamask_jax.experiments.output import comparison
from metamask_jax.experiments.scales import Scale
from metamask_jax.experiments.statistics import mean_text

_PAPER_COST = {"SimCLR": ("13M", 70), "Barlow Twins": ("22.7M", 80), "SimCLR + Barlow Twins": ("24.6M", 85)}
_PAPER_COST["MetaMask"] = ("24.6M + 512", 210)


def _cost_cells(scale: Scale) -> list[Cell]:
    return compared_cells(scale, COMPARED, ("cost",))


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
        "seconds per epoch",
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
        cells += compared_cells(scale, (name,), ("knn", "cost"), **longer)
    return cells


def _equal_report(results: Results) -> Report:
    paper = {"SimCLR": 81.75, "Barlow Twins": 85.71, "SimCLR + Barlow Twins": 85.79, "MetaMask": 86.01}
    table = comparison(
        results,
        caption="Equal time:",
        by="run",
        names={},
        base="SimCLR + Barlow Twins",
        quantity="knn.accuracy",
        paper=paper,
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


T3 = Experiment("Parameters and seconds per epoch", "Table complexity", _cost_cells, _cost_report)
T4 = Experiment("Accuracy at equal wall-clock time", "Table samecost", _equal_cells, _equal_report)
