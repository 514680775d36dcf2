"""T5, the paper's Table `dropout` (5 by LaTeX's count): dropout on the features of Barlow Twins in place of a mask."""

from metamask_jax.experiments.base import Cell, Experiment, Report, Results
from metamask_jax.experiments.output import comparison
from metamask_jax.experiments.scales import Scale

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
        quantity="knn.accuracy",
        paper=paper,
    )
    return Report([table], {})


T5 = Experiment("Dropout on features, shared between views or not", "Table dropout", _dropout_cells, _dropout_report)
