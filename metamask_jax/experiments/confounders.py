"""C1, C2, C3, beyond the paper: does the mask find the confounders where they are known (confounded_shapes)?"""

from metamask_jax.core.meta import TRAINING_ESTIMATORS
from metamask_jax.experiments.base import Cell, Experiment, Label, Report, Results, Table
from metamask_jax.experiments.compared_runs import COMPARED, compared_cells
from metamask_jax.experiments.output import lines
from metamask_jax.experiments.scales import Scale
from metamask_jax.experiments.statistics import difference_text, mean_text, paired_difference

_MEASURES = ("knn", "mask", "information", "meta_norms")
_SHAPES = "confounded_shapes"


def _estimator_cells(scale: Scale) -> list[Cell]:
    return [
        Cell({"run": name}, scale.config(dataset=_SHAPES, meta__estimator=name), _MEASURES)
        for name in TRAINING_ESTIMATORS
    ] + [Cell({"run": "no mask"}, scale.config(dataset=_SHAPES, variant="without_meta"), ("knn",))]


def _agreement_rows(results: Results, base: Label) -> list[tuple[str, ...]]:
    reference = results.where(run=base).of("knn.accuracy")
    rows = []
    for run in results.levels("run"):
        part = results.where(run=run)
        found = {r.seed: r.values["information.rank_correlation"] for r in part.items if "meta_norms.ratio" in r.values}
        rows.append(
            (
                str(run),
                mean_text(part.of("knn.accuracy")),
                difference_text(paired_difference(part.of("knn.accuracy"), reference)) if run != base else "",
                mean_text(part.of("mask.std"), scale=1.0, digits=4),
                *(
                    mean_text(
                        {seed: values[key] for seed, values in found.items() if values[key] is not None}, scale=1.0
                    )
                    for key in ("with_class", "with_difference", "auc")
                ),
                mean_text({s: v for s, v in part.of("meta_norms.ratio").items() if v is not None}, scale=1.0, digits=4),
            )
        )
    return rows


_HEADER = (
    "",
    "kNN (%)",
    "difference to no mask [95 %]",
    "spread of the mask",
    "rank correlation with class information",
    "with class minus nuisance",
    "AUC: a low weight means confounder",
    "second-order / direct part",
)


def _estimator_report(results: Results) -> Report:
    caption = (
        "Estimators of the meta-gradient: mean ± deviation (seeds). Chance is a rank correlation of 0, an AUC of 0.5."
    )
    return Report([Table(caption, _HEADER, _agreement_rows(results, "no mask"))], {})


def _rate_cells(scale: Scale) -> list[Cell]:
    rates = (1e-3, 1e-2, 1e-1, 1.0) if scale.name != "smoke" else (1e-3, 1.0)
    return [
        Cell(
            {"run": f"{activation}, {rate:g}", "activation": activation, "rate": rate},
            scale.config(dataset=_SHAPES, mask__activation=activation, mask__learning_rate=str(rate)),
            _MEASURES,
        )
        for activation in ("sigmoid", "identity")
        for rate in rates
    ] + [Cell({"run": "no mask"}, scale.config(dataset=_SHAPES, variant="without_meta"), ("knn",))]


def _rate_report(results: Results) -> Report:
    caption = "Parametrisation and learning rate of the mask (the authors': sigmoid, 0.001):"
    return Report([Table(caption, _HEADER, _agreement_rows(results, "no mask"))], {})


def _strength_cells(scale: Scale) -> list[Cell]:
    return [
        cell
        for strength in ((0.0, 0.5, 1.0) if scale.name != "smoke" else (1.0,))
        for cell in compared_cells(
            scale,
            COMPARED,
            ("knn",),
            {"strength": strength},
            dataset=_SHAPES,
            data__options__strength=str(strength),
        )
    ]


def _strength_report(results: Results) -> Report:
    strengths = results.levels("strength")
    rows = [
        (str(run), *(mean_text(results.where(run=run, strength=s).of("knn.accuracy")) for s in strengths))
        for run in results.levels("run")
    ]
    base = {s: results.where(run="SimCLR + Barlow Twins", strength=s).of("knn.accuracy") for s in strengths}
    gain = [
        difference_text(paired_difference(results.where(run="MetaMask", strength=s).of("knn.accuracy"), base[s]))
        for s in strengths
    ]
    rows.append(("MetaMask - (SimCLR + Barlow Twins) [95 %]", *gain))
    figure = lines(
        results,
        by="run",
        over="strength",
        quantity="knn.accuracy",
        xlabel="strength of the confounders",
        ylabel="kNN accuracy (%)",
        names={},
        log=False,
    )
    caption = "kNN accuracy in percent against the strength of the confounders:"
    return Report([Table(caption, ("", *(f"{s:g}" for s in strengths)), rows)], {"strength": figure})


C1 = Experiment(
    "Does the mask find known confounders, by estimator", "beyond the paper", _estimator_cells, _estimator_report
)
C2 = Experiment("What it takes for the mask to move", "beyond the paper", _rate_cells, _rate_report)
C3 = Experiment("Accuracy against confounder strength", "beyond the paper", _strength_cells, _strength_report)
