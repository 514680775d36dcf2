"""Q, beyond the paper: what the quickstart shows, with other seeds and beside the paper's judge."""

from metamask_jax.config import apply_overrides, load_config
from metamask_jax.experiments.base import Cell, Experiment, Report, Results, Table
from metamask_jax.experiments.names import ACCURACIES, FOUND, SAME_RUN
from metamask_jax.experiments.scales import Scale
from metamask_jax.experiments.statistics import adjusted_p, difference_text, mean_text, paired_difference

_FIXED = "SimCLR + Barlow Twins, mask fixed"
# Name in the table -> configuration file and what is changed in it.
_RUNS = {
    _FIXED: ("quickstart", {"mask.learn": "false"}),
    "MetaMask, labels of 5 %, trial step of the heads": ("quickstart", {}),
    "MetaMask, the paper's judge": ("quickstart:paper", {}),
}
_KEPT = {"checkpoint.keep_last": "1", "log.tensorboard": "false", "eval.least_times": "0"}
_SMOKE = {
    "train.batch_size": "8",
    "train.steps": "2",
    "data.size": "32",
    "data.options.train_size": "64",
    "data.options.test_size": "32",
    "encoder.width": "0.0625",
    "encoder.features": "16",
    "method.head": "(16, 8)",
    "loss.drr_head": "(16,)",
    "eval.size": "64",
}
_STATED = (
    "the quickstart's setting at any scale: 10,000 confounded shapes at 28 pixels, `conv` of width 1/8 with a last "
    "layer of 256, batch 128, 360 steps; 2,000 test images"
)
_CAPTION = (
    "Mean ± deviation (seeds); differences of kNN are paired by seed, the p-values of the first adjusted for the "
    "number of judges (Holm):"
)
_HEADER = (
    "",
    *ACCURACIES,
    SAME_RUN,
    "p, adjusted",
    "kNN of h*m, to a fixed mask [95 %]",
    FOUND,
)


def _cells(scale: Scale) -> list[Cell]:
    cells = []
    for run, (source, changes) in _RUNS.items():
        config = apply_overrides(load_config(source), _KEPT | changes | (_SMOKE if scale.name == "smoke" else {}))
        measures = ("knn", "linear") if run == _FIXED else ("knn", "linear", "mask", "agreement")
        cells.append(Cell({"run": run}, config, measures))
    return cells


def _report(results: Results) -> Report:
    fixed = results.where(run=_FIXED).of("knn.accuracy")
    runs = {str(run): results.where(run=run) for run in results.levels("run")}
    gains = {
        run: paired_difference(part.of("knn.masked"), part.of("knn.accuracy"))
        for run, part in runs.items()
        if run != _FIXED
    }
    adjusted, rows = adjusted_p(gains), []
    for run, part in runs.items():
        row = [run, *(mean_text(part.of(quantity)) for quantity in ACCURACIES.values())]
        if run == _FIXED:
            row += [""] * 4
        else:
            found = {seed: auc for seed, auc in part.of("agreement.auc").items() if auc is not None}
            row += [
                difference_text(gains[run]),
                f"{adjusted[run]:.3f}" if run in adjusted else "",
                difference_text(paired_difference(part.of("knn.masked"), fixed)) if fixed else "",
                mean_text(found, scale=1.0),
            ]
        rows.append(tuple(row))
    return Report([Table(_CAPTION, _HEADER, rows)], {})


Q = Experiment(
    "The quickstart, with other seeds",
    "beyond the paper",
    _cells,
    _report,
    dict.fromkeys(("full", "cpu", "day"), _STATED),
)
