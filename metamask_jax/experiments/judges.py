"""J, beyond the paper: which judge of the mask earns its keep where the confounders are known (confounded_shapes)?"""

from metamask_jax.experiments.base import Cell, Experiment, Report, Results, Table
from metamask_jax.experiments.scales import Scale
from metamask_jax.experiments.statistics import difference_text, mean_text, paired_difference

_MEASURES = ("knn", "linear", "mask", "information")
_BASE = "no mask"
# Name in the table -> settings. Labels never reach the network, only the mask.
_JUDGES = {
    "the same batch (the paper's)": {},
    "the next batch": {"meta__outer": "next"},
    "other views": {"meta__outer": "views"},
    "labels of 1 %": {"meta__outer": "labels", "meta__labels": "0.01"},
    "labels of 5 %": {"meta__outer": "labels", "meta__labels": "0.05"},
    "all labels": {"meta__outer": "labels", "meta__labels": "1.0"},
    "labels of 5 %, trial step of the heads": {"meta__outer": "labels", "meta__labels": "0.05", "meta__scope": "head"},
}


def _cells(scale: Scale) -> list[Cell]:
    # A mask of 32 dimensions of which a few are not dominated by a nuisance can show nothing.
    wide = {"dataset": "confounded_shapes", "encoder__features": "256" if scale.name != "smoke" else "16"}
    return [
        Cell({"run": _BASE}, scale.config(variant="without_meta", **wide), ("knn", "linear")),
        *(Cell({"run": name}, scale.config(**wide, **settings), _MEASURES) for name, settings in _JUDGES.items()),
    ]


def _report(results: Results) -> Report:
    """Accuracies of plain and of masked features beside those without a mask, and what the mask found."""
    base = {quantity: results.where(run=_BASE).of(quantity) for quantity in ("knn.accuracy", "linear.accuracy")}
    rows = []
    for run in results.levels("run"):
        part = results.where(run=run)
        # Without a mask, h and h*m are the same.
        differences = [
            difference_text(paired_difference(part.of(quantity), base[f"{quantity.split('.')[0]}.accuracy"]))
            for quantity in ("knn.accuracy", "knn.masked", "linear.accuracy")
            if run != _BASE
        ]
        found = [r.values["information.rank_correlation"] for r in part.items if r.values.get("mask.std") is not None]
        seeds = [r.seed for r in part.items if r.values.get("mask.std") is not None]
        agreement = [
            mean_text({s: f[key] for s, f in zip(seeds, found, strict=True) if f[key] is not None}, scale=1.0)
            for key in ("with_difference", "auc")
        ]
        rows.append(
            (
                str(run),
                mean_text(part.of("knn.accuracy")),
                mean_text(part.of("linear.accuracy")),
                *(differences or ("", "", "")),
                mean_text(part.of("mask.std"), scale=1.0, digits=3),
                *agreement,
            )
        )
    header = (
        "judge",
        "kNN of h (%)",
        "linear of h (%)",
        "kNN of h, to no mask [95 %]",
        "kNN of h*m, to no mask [95 %]",
        "linear, to no mask [95 %]",
        "spread of the mask",
        "rank correlation with class minus nuisance",
        "AUC: a low weight means confounder",
    )
    caption = (
        "Judges of the mask on confounded_shapes, 256 dimensions: mean ± deviation (seeds); differences are paired by "
        "seed. Chance is a rank correlation of 0, an AUC of 0.5."
    )
    return Report([Table(caption, header, rows)], {})


J = Experiment("Which judge of the mask helps", "beyond the paper", _cells, _report)
