"""JC, beyond the paper: the judge that came out of J, on seeds that J has not seen.

J compares seven judges on eight seeds, and whatever is picked from such a list is flattered by the picking. So one
judge was named before these runs: labels of 5 %, trial step of the heads, which did as well as any on shapes at the
price of no mask. There is one question for each set: are its masked features better neighbours than the features of
runs without a mask?

What can be seen was estimated before it was run. In J the difference had a deviation of 1.58 points of kNN accuracy
from seed to seed on shapes and of 0.67 on CIFAR-10, so that 24 seeds find a true difference of 0.94 and of 0.40 points
four times in five (`statistics.detectable`).
"""

from metamask_jax.experiments.base import Cell, Experiment, Report, Results, Table
from metamask_jax.experiments.judges import NO_MASK, J, datasets_of, judged
from metamask_jax.experiments.names import ACCURACIES, DATASET_NAMES, FOUND, SAME_RUN
from metamask_jax.experiments.scales import Scale
from metamask_jax.experiments.statistics import adjusted_p, difference_text, mean_text, paired_difference

_JUDGE = "labels of 5 %, trial step of the heads"
_MEASURES = {NO_MASK: ("knn", "linear"), _JUDGE: ("knn", "linear", "mask", "agreement")}
_FIRST_SEED = 8  # J has those before
_CAPTION = (
    "Mean ± deviation (seeds); differences are paired by seed. The p-values are adjusted for the number of sets (Holm):"
)
_HEADER = (
    "",
    *ACCURACIES,
    "kNN of h*m, to no mask [95 %]",
    "p, adjusted",
    SAME_RUN,
    "linear, to no mask [95 %]",
    FOUND,
)


def _cells(scale: Scale) -> list[Cell]:
    return [
        Cell({"dataset": dataset, "run": run}, judged(scale, dataset, run), measures)
        for dataset in datasets_of(scale)
        for run, measures in _MEASURES.items()
    ]


def _report(results: Results) -> Report:
    runs = {
        str(dataset): tuple(results.where(dataset=dataset, run=run) for run in (NO_MASK, _JUDGE))
        for dataset in results.levels("dataset")
    }
    differences = {
        dataset: paired_difference(masked.of("knn.masked"), base.of("knn.accuracy"))
        for dataset, (base, masked) in runs.items()
    }
    adjusted, rows = adjusted_p(differences), []
    for dataset, (base, masked) in runs.items():
        name, own = DATASET_NAMES[dataset], masked.of("knn.masked")
        rows += [
            (f"{name}, {NO_MASK}", *_accuracies(base), *[""] * 5),
            (
                f"{name}, {_JUDGE}",
                *_accuracies(masked),
                difference_text(differences[dataset]),
                f"{adjusted[dataset]:.3f}" if dataset in adjusted else "",
                difference_text(paired_difference(own, masked.of("knn.accuracy"))),
                difference_text(paired_difference(masked.of("linear.accuracy"), base.of("linear.accuracy"))),
                mean_text({s: auc for s, auc in masked.of("agreement.auc").items() if auc is not None}, scale=1.0),
            ),
        ]
    return Report([Table(_CAPTION, _HEADER, rows)], {})


def _accuracies(run: Results) -> list[str]:
    return [mean_text(run.of(quantity)) for quantity in ACCURACIES.values()]


JC = Experiment(
    "The judge that came out of J, on new seeds", "beyond the paper", _cells, _report, J.stated, first_seed=_FIRST_SEED
)
