"""M, beyond the paper: what every base method learns, alone and with MetaMask, where the confounders are known."""

from metamask_jax.experiments import methods_grid
from metamask_jax.experiments.base import Cell, Experiment, Report, Results, Table
from metamask_jax.experiments.names import METHOD_NAMES
from metamask_jax.experiments.scales import Scale
from metamask_jax.experiments.statistics import difference_text, mean_text, paired_difference


def _cells(scale: Scale) -> list[Cell]:
    return methods_grid.cells(
        scale,
        methods=tuple(METHOD_NAMES),
        datasets=("confounded_shapes",),
        encoders=("conv",),
        measures=("knn", "untrained"),
    )


def _report(results: Results) -> Report:
    rows = []
    for method in results.levels("method"):
        alone, masked = (results.where(method=method, variant=variant) for variant in methods_grid.VARIANTS)
        untrained = alone.of("untrained.accuracy")
        gains = [paired_difference(part.of("knn.accuracy"), untrained) for part in (alone, masked)]
        rows.append(
            (
                METHOD_NAMES[str(method)],
                mean_text(untrained),
                mean_text(alone.of("knn.accuracy")),
                mean_text(masked.of("knn.accuracy")),
                *map(difference_text, gains),
                difference_text(paired_difference(masked.of("knn.accuracy"), alone.of("knn.accuracy"))),
            )
        )
    header = (
        "",
        "untrained",
        "alone",
        "+ MetaMask",
        "alone - untrained",
        "+ MetaMask - untrained",
        "+ MetaMask - alone",
    )
    caption = "**Confounded shapes**, kNN in percent, mean ± deviation (seeds), differences with 95 % intervals:"
    return Report([Table(caption, header, rows)], {})


M = Experiment("Every method alone and with MetaMask on known confounders", "beyond the paper", _cells, _report)
