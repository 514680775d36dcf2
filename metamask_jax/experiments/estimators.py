"""C4, beyond the paper: what each way to the meta-gradient costs, and what it brings."""

from metamask_jax.core.meta import TRAINING_ESTIMATORS
from metamask_jax.experiments.base import Cell, Experiment, Report, Results, Table
from metamask_jax.experiments.scales import Scale
from metamask_jax.experiments.statistics import difference_text, mean_text, paired_difference

_DATASETS = {"cifar10": "CIFAR-10", "confounded_shapes": "Confounded shapes"}
_BASE = "no mask"
_RUNS: dict[str, dict[str, str]] = {
    _BASE: {"variant": "without_meta"},
    **{name: {"meta__estimator": name} for name in TRAINING_ESTIMATORS},
    **{f"exact, every {k} steps": {"meta__every": str(k)} for k in (2, 4)},
}


def _cells(scale: Scale) -> list[Cell]:
    runs = _RUNS if scale.name != "smoke" else {name: _RUNS[name] for name in (_BASE, "exact, every 2 steps")}
    return [
        Cell({"dataset": dataset, "run": name}, scale.config(dataset=dataset, **settings), ("knn", "cost"))
        for dataset in _DATASETS
        for name, settings in runs.items()
    ]


def _report(results: Results) -> Report:
    tables = []
    for dataset in results.levels("dataset"):
        here = results.where(dataset=dataset)
        accuracy, seconds = (here.where(run=_BASE).of(name) for name in ("knn.accuracy", "cost.seconds_per_epoch"))
        rows = []
        for run in here.levels("run"):
            part = here.where(run=run)
            cost = part.of("cost.seconds_per_epoch")
            rows.append(
                (
                    str(run),
                    mean_text({seed: cost[seed] / seconds[seed] for seed in cost.keys() & seconds.keys()}, scale=1.0),
                    mean_text(part.of("knn.accuracy")),
                    difference_text(paired_difference(part.of("knn.accuracy"), accuracy)) if run != _BASE else "",
                )
            )
        caption = f"**{_DATASETS[str(dataset)]}**, mean ± deviation (seeds):"
        header = ("", "time of a step / without a mask", "kNN (%)", "difference to no mask [95 %]")
        tables.append(Table(caption, header, rows))
    return Report(tables, {})


C4 = Experiment("What each way to the meta-gradient costs and brings", "beyond the paper", _cells, _report)
