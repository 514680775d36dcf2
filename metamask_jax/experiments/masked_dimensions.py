"""F2, F6 and F7: the accuracy of a fixed representation some of whose dimensions are masked.

F2 is the paper's Figure 2 (`motivmask`), F6 its Figure `weakstrong` and F7 its Figure `ablmask` (8 and 9 by LaTeX's
count).
"""

import numpy as np

from metamask_jax.evaluate.diagnostics import figures
from metamask_jax.evaluate.diagnostics.masking import Halves, Trials
from metamask_jax.experiments.base import Cell, Experiment, Report, Result, Results, Table
from metamask_jax.experiments.scales import Scale
from metamask_jax.experiments.statistics import mean_text
from metamask_jax.reporting import plots


def _trials(result: Result, measure: str) -> Trials:
    return Trials(np.array(result.values[f"{measure}.rates"]), np.array(result.values[f"{measure}.accuracies"]))


def _random_cells(scale: Scale) -> list[Cell]:
    return [Cell({"method": "Barlow Twins"}, scale.config(method="barlow_twins", variant="alone"), ("random_masks",))]


def _random_report(results: Results) -> Report:
    rows = []
    for rate in np.unique(_trials(results.items[0], "random_masks").rates):
        by_seed = {r.seed: _trials(r, "random_masks").at(rate) for r in results.items}
        base = {r.seed: _trials(r, "random_masks").at(0.0)[0] for r in results.items}
        better = {seed: float(np.mean(found > base[seed])) for seed, found in by_seed.items()}
        rows.append(
            (
                f"{100 * rate:.0f}",
                mean_text({seed: float(found.mean()) for seed, found in by_seed.items()}),
                mean_text({seed: float(found.max()) for seed, found in by_seed.items()}),
                mean_text(better, digits=0) if rate else "",
            )
        )
    header = ("masked (%)", "mean accuracy (%)", "best mask (%)", "masks better than none (%)")
    # The best of ten masks is chosen on the test set: it shows that such masks exist, not that one could be found.
    caption = "kNN accuracy of fixed Barlow Twins features, dimensions masked at random, ten masks per rate and seed:"
    figure = figures.trials(_trials(results.items[0], "random_masks"), classifier="kNN")
    return Report([Table(caption, header, rows)], {"random_masks": figure})


def _encoder_cells(scale: Scale) -> list[Cell]:
    encoders = {"weak": "conv", "strong": "fc" if scale.name == "smoke" else "resnet18"}
    dataset = "cifar100" if "cifar100" in scale.datasets else "cifar10"
    return [
        Cell(
            {"encoder": name},
            scale.config(method="byol", variant="alone", encoder=encoder, dataset=dataset),
            ("random_masks",),
        )
        for name, encoder in encoders.items()
    ]


def _encoder_report(results: Results) -> Report:
    figure, axis = plots.new_figure(plots.WIDTH)
    rows = []
    for place, encoder in enumerate(results.levels("encoder")):
        part = results.where(encoder=encoder)
        unmasked = {r.seed: _trials(r, "random_masks").at(0.0)[0] for r in part.items}
        masked = {r.seed: _trials(r, "random_masks").at(0.05) for r in part.items}
        # The seeds side by side, with the tick in their middle.
        for shift, found in zip(0.08 * (np.arange(len(masked)) - (len(masked) - 1) / 2), masked.values(), strict=True):
            color = (plots.BLUE, plots.ORANGE)[place]
            axis.plot(np.full(len(found), place + shift), 100 * found, "o", color=color, markersize=4)
        rows.append(
            (
                str(encoder),
                mean_text(unmasked),
                mean_text({seed: float(found.mean()) for seed, found in masked.items()}),
                mean_text({seed: float(np.ptp(found)) for seed, found in masked.items()}),
                {"weak": "1.34", "strong": "0.35"}[str(encoder)],
            )
        )
    axis.set_xticks(range(len(rows)), [row[0] for row in rows])
    plots.style(axis, "encoder", "kNN accuracy with 5 % of the dimensions masked (%)")
    header = ("encoder", "unmasked (%)", "5 % masked (%)", "range of ten masks (points)", "paper's range (points)")
    caption = "BYOL alone, ten random masks of 5 % of the dimensions per seed:"
    return Report([Table(caption, header, rows)], {"weak_strong": figure})


def _below_cells(scale: Scale) -> list[Cell]:
    return [Cell({"method": "MetaMask"}, scale.config(), ("below_average",))]


def _below_report(results: Results) -> Report:
    rows = []
    for rate in np.unique(_trials(results.items[0], "below_average").rates):
        by_seed = {r.seed: float(_trials(r, "below_average").at(rate).mean()) for r in results.items}
        rows.append((f"{100 * rate:.0f}", mean_text(by_seed)))
    linear = {r.seed: Halves(**r.values["below_average.linear"]) for r in results.items}
    probes = [
        ("all dimensions", mean_text({s: h.all for s, h in linear.items()}), "86.01"),
        ("only the others", mean_text({s: h.others for s, h in linear.items()}), "79.09"),
        ("only those below average", mean_text({s: h.below for s, h in linear.items()}), "56.30"),
    ]
    first = results.items[0]
    figure = figures.below_average(_trials(first, "below_average"), linear[first.seed], classifier="kNN")
    tables = [
        Table(
            "Masking the dimensions of below-average weight at random, kNN:",
            ("of them masked (%)", "accuracy (%)"),
            rows,
        ),
        Table("Linear probes:", ("features", "accuracy (%)", "paper (%)"), probes),
    ]
    return Report(tables, {"below_average": figure})


F2 = Experiment("Randomly masked dimensions of a fixed representation", "Figure 2", _random_cells, _random_report)
F6 = Experiment("Weak and strong encoder under 5 % random masks", "Figure weakstrong", _encoder_cells, _encoder_report)
F7 = Experiment("Masking below-average dimensions in the test", "Figure ablmask", _below_cells, _below_report)
