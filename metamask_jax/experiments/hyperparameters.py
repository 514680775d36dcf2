"""F4 and F5: accuracy against the width of the projection heads and against alpha, the weight of the method's loss.

F4 is the paper's Figure `robust` with its continuation `furtherrobust` in the appendix (4 and 7 by LaTeX's count), F5
its Figure `alphastudy` (6).
"""

from metamask_jax.experiments.base import Cell, Experiment, Report, Results, Table
from metamask_jax.experiments.output import lines
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


F4 = Experiment(
    "Projection dimensionality of all methods", "Figures robust and furtherrobust", _width_cells, _width_report
)
F5 = Experiment("Weight alpha of the method's loss", "Figure alphastudy", _alpha_cells, _alpha_report)
