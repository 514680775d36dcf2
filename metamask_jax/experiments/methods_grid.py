"""What Tables 1 and 2 share: base methods, each alone and with MetaMask, on several datasets and encoders."""

from collections.abc import Mapping, Sequence

from metamask_jax.experiments.base import Cell, Report, Results, Table
from metamask_jax.experiments.names import DATASET_NAMES, METHOD_NAMES
from metamask_jax.experiments.scales import Scale
from metamask_jax.experiments.statistics import difference_text, mean_text, paired_difference

Pair = tuple[float, float]  # alone, + MetaMask
VARIANTS = ("alone", "metamask")


def cells(
    scale: Scale,
    *,
    methods: Sequence[str],
    datasets: Sequence[str],
    encoders: Sequence[str],
    measures: tuple[str, ...],
) -> list[Cell]:
    """The whole grid; in a smoke test two methods stand for all."""
    return [
        Cell(
            {"method": method, "variant": variant, "dataset": dataset, "encoder": encoder},
            scale.config(dataset=dataset, encoder=encoder, method=method, variant=variant),
            measures,
        )
        for dataset in datasets
        for encoder in encoders
        for method in (methods[:2] if scale.name == "smoke" else methods)
        for variant in VARIANTS
    ]


def report(results: Results, *, quantity: str, what: str, paper: Mapping[tuple[str, str, str], Pair]) -> Report:
    """One table per dataset and encoder: both variants, their difference with its interval, and the paper's numbers."""
    tables = []
    for dataset in results.levels("dataset"):
        for encoder in results.levels("encoder"):
            part = results.where(dataset=dataset, encoder=encoder)
            rows = [
                _row(
                    part.where(method=method),
                    str(method),
                    quantity,
                    paper.get((str(dataset), str(encoder), str(method))),
                )
                for method in part.levels("method")
            ]
            name = DATASET_NAMES.get(str(dataset), str(dataset))
            tables.append(
                Table(
                    f"**{name}, {encoder}**, {what} accuracy in percent, mean ± standard deviation (seeds):",
                    ("", "alone", "+ MetaMask", "difference [95 %]", "paper alone", "paper + MetaMask"),
                    rows,
                )
            )
    return Report(tables, {})


def _row(results: Results, method: str, quantity: str, paper: Pair | None) -> tuple[str, ...]:
    alone, masked = (results.where(variant=variant).of(quantity) for variant in VARIANTS)
    return (
        METHOD_NAMES[method],
        mean_text(alone),
        mean_text(masked),
        difference_text(paired_difference(masked, alone)),
        *(f"{value:.2f}" for value in paper or ()),
        *("",) * (0 if paper else 2),
    )
