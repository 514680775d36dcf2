"""B, beyond the paper: SimCLR, Barlow Twins, both and MetaMask, each at its own best of the same settings."""

from metamask_jax.experiments.base import Cell, Experiment, Label, Report, Results, Table
from metamask_jax.experiments.compared_runs import COMPARED, compared_cells
from metamask_jax.experiments.scales import Scale
from metamask_jax.experiments.statistics import difference_text, mean_text, paired_difference

# Factors of the scale's learning rate, and temperatures: one of the two is varied at a time.
_SETTINGS = ((1.0, 0.2), (0.5, 0.2), (2.0, 0.2), (1.0, 0.1), (1.0, 0.5))
_SHORTER = {"day": {"train__epochs": "4", "eval__every_epochs": "0"}}  # by scale: settings for long runs, by short ones
_REFERENCE = "SimCLR + Barlow Twins"


def _cells(scale: Scale) -> list[Cell]:
    rate = scale.config().optimizer.learning_rate
    cells = []
    for name in COMPARED:
        for factor, temperature in _SETTINGS[:1] if scale.name == "smoke" else _SETTINGS:
            setting = f"rate {rate * factor:g}"
            overrides = {"optimizer__learning_rate": str(rate * factor), **_SHORTER.get(scale.name, {})}
            if name != "Barlow Twins":
                setting += f", temperature {temperature:g}"
                overrides["method__temperature"] = str(temperature)
            elif temperature != _SETTINGS[0][1]:  # it has none
                continue
            cells += compared_cells(scale, (name,), ("knn", "validation"), {"setting": setting}, **overrides)
    return cells


def _report(results: Results) -> Report:
    best = {run: _best(results.where(run=run)) for run in results.levels("run")}
    chosen = {run: results.where(run=run, setting=setting).of("knn.accuracy") for run, setting in best.items()}
    rows = [
        (
            str(run),
            str(len(results.where(run=run).levels("setting"))),
            str(best[run]),
            mean_text(chosen[run]),
            difference_text(paired_difference(chosen[run], chosen[_REFERENCE]))
            if run != _REFERENCE and _REFERENCE in chosen
            else "",
        )
        for run in best
    ]
    caption = "kNN on the test images at the setting chosen on held-out training images, mean over seeds:"
    header = ("", "settings tried", "chosen", "accuracy (%)", f"difference to {_REFERENCE} [95 %]")
    every = [
        (str(run), str(setting), mean_text(part.of("validation.accuracy")), mean_text(part.of("knn.accuracy")))
        for run in results.levels("run")
        for setting in results.where(run=run).levels("setting")
        for part in (results.where(run=run, setting=setting),)
    ]
    tables = [
        Table(caption, header, rows),
        Table("All settings:", ("", "setting", "held-out training images (%)", "test images (%)"), every),
    ]
    return Report(tables, {})


def _best(results: Results) -> Label:
    """The setting with the highest mean on held-out training images."""
    return max(
        results.levels("setting"),
        key=lambda setting: float(results.where(setting=setting).stacked("validation.accuracy").mean()),
    )


B = Experiment(
    "Each at its own best of the same settings",
    "beyond the paper",
    _cells,
    _report,
    {"day": "runs of four epochs, otherwise as D; held-out images are a fifth of the training images"},
)
