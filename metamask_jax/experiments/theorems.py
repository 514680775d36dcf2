"""TH, Section 4 and its appendix: the conditional variance and the bounds of Theorem 1, measured on trained runs."""

from metamask_jax.experiments.base import Cell, Experiment, Report, Results, Table
from metamask_jax.experiments.compared_runs import compared_cells
from metamask_jax.experiments.scales import Scale
from metamask_jax.experiments.statistics import difference_text, mean_text, paired_difference


def _cells(scale: Scale) -> list[Cell]:
    return compared_cells(scale, ("SimCLR", "SimCLR + Barlow Twins", "MetaMask"), ("variance", "bounds"))


def _report(results: Results) -> Report:
    variance, bounds = [], []
    for run in results.levels("run"):
        part = results.where(run=run)
        phi = {
            kind: {r.seed: r.values["variance.g(h)"][kind]["whole"] for r in part.items}
            for kind in ("unmasked", "masked")
        }
        difference = difference_text(paired_difference(phi["masked"], phi["unmasked"]), scale=1.0)
        variance.append((str(run), *(mean_text(phi[kind], scale=1.0, digits=4) for kind in phi), difference))
        sides = {
            kind: [
                {r.seed: r.values[f"bounds.{kind}"]["bounds"][side] for r in part.items} for side in ("lower", "upper")
            ]
            for kind in ("unmasked", "masked")
        }
        held = {r.seed: sum(r.values["bounds.inside"].values()) for r in part.items}
        count = len(part.items[0].values["bounds.inside"])
        bounds.append(
            (
                str(run),
                *(" to ".join(mean_text(side, scale=1.0) for side in sides[kind]) for kind in sides),
                f"{mean_text(held, scale=1.0, digits=1)} of {count}",
            )
        )
    return Report(
        [
            Table(
                "Conditional variance of projections of length one, given the class (smaller is tighter):",
                ("", "unmasked", "masked", "masked - unmasked [95 %]"),
                variance,
            ),
            Table(
                "Bounds of Theorem 1 in nats, and how many readings of the theorem lie between the masked ones:",
                ("", "unmasked", "masked", "readings that hold"),
                bounds,
            ),
        ],
        {},
    )


TH = Experiment("Conditional variance and the bounds of Theorem 1", "Section 4 and appendix", _cells, _report)
