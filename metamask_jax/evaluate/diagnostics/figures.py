"""The plots of the diagnostics: each takes what a diagnostic has measured and gives a Matplotlib figure."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from metamask_jax.evaluate.diagnostics.bounds import Bounds, ConditionalVariance
from metamask_jax.evaluate.diagnostics.information import Agreement, Information
from metamask_jax.evaluate.diagnostics.masking import Halves, Trials
from metamask_jax.reporting.plots import (
    BLUE,
    INK,
    NARROW,
    ORANGE,
    SLATE,
    TEAL,
    VIOLET,
    WIDTH,
    legend,
    legend_above,
    new_figure,
    new_panels,
    style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_JITTER = 0.006  # of the rate, so that equal accuracies stay visible


def distances(positive: np.ndarray, other: np.ndarray, *, alignment: float, uniformity: float) -> "Figure":
    """Squared distances on the unit sphere, of two views of one image [pairs] and of different images [pairs]."""
    figure, axis = new_figure(WIDTH)
    bins = np.linspace(0, max(positive.max(), other.max(), 1e-6), 50).tolist()
    named = ((positive, BLUE, f"views of one image (alignment {alignment:.3f})"), (other, SLATE, "different images"))
    for values, color, label in named:
        axis.hist(values, bins=bins, density=True, color=color, alpha=0.6, label=label)
    axis.axvline(alignment, color=INK, linewidth=1.2, linestyle="--")
    style(axis, "squared distance of features of length one", "density")
    legend(axis)
    axis.set_title(f"uniformity {uniformity:.3f}", fontsize=9, color=INK, loc="right")
    return figure


def trials(found: Trials, *, classifier: str) -> "Figure":
    """Accuracy of every trial over the share of masked dimensions, and of the unmasked features (Fig. 2)."""
    figure, axis = new_figure(WIDTH)
    _scatter(axis, found)
    if len(unmasked := found.at(0.0)):
        axis.axhline(100 * unmasked[0], color=ORANGE, linewidth=1.4, linestyle="--", label="no dimension masked")
    style(axis, "masked at random (% of the dimensions)", f"{classifier} accuracy (%)")
    legend(axis)
    return figure


def below_average(found: Trials, halves: Halves, *, classifier: str) -> "Figure":
    """Trials of masking dimensions of below-average weight, and probes on only those or the others (`ablmask`)."""
    figure, (left, right) = new_panels(2, width=NARROW)
    _scatter(left, found)
    for rate, color, label in ((0.0, ORANGE, "none masked"), (1.0, BLUE, "all below average masked")):
        if len(ends := found.at(rate)):
            left.axhline(100 * ends[0], color=color, linewidth=1.2, linestyle="--", label=label)
    style(left, f"masked (% of the {halves.below_count} dimensions below average)", f"{classifier} accuracy (%)")
    legend_above(left, columns=2)
    names = ("all", "others\nonly", "below average\nonly")
    values = 100 * np.array((halves.all, halves.others, halves.below))
    bars = right.bar(names, np.nan_to_num(values), color=(SLATE, TEAL, VIOLET), width=0.6)
    right.bar_label(bars, [f"{value:.1f}" for value in values], color=INK, fontsize=9, padding=2)
    style(right, "dimensions given to a linear probe", "linear accuracy (%)")
    right.margins(y=0.12)
    return figure


def information(weights: np.ndarray, found: Information, agreement: Agreement) -> "Figure":
    """What each dimension tells over its mask weight, and how the weights' ranks go with it."""
    figure, (left, right) = new_panels(2, width=NARROW)
    left.scatter(weights, found.about_class, s=14, color=BLUE, alpha=0.75, linewidth=0, label="class")
    if found.about_factor:
        left.scatter(weights, found.nuisance, s=14, color=ORANGE, alpha=0.75, linewidth=0, label="strongest nuisance")
    style(left, "mask weight", "information of a dimension (bits)")
    legend(left)
    rows = {"class": agreement.with_class, **agreement.with_factor}
    order = ["class", *sorted(agreement.with_factor)][::-1]
    colors = [BLUE if name == "class" else ORANGE for name in order]
    right.barh([_spoken(name) for name in order], [np.nan_to_num(rows[name]) for name in order], color=colors)
    right.axvspan(-2 * agreement.chance, 2 * agreement.chance, color=SLATE, alpha=0.15, linewidth=0)
    right.axvline(0, color=INK, linewidth=0.8)
    right.set_xlim(-1, 1)
    right.set_ylim(-0.6, max(len(order), 8) - 0.4)  # a lonely bar stays a bar
    style(right, "rank correlation with the mask (grey: two deviations of chance)", "")
    right.tick_params(axis="y", labelsize=7.5)
    right.xaxis.label.set_fontsize(8)
    return figure


def variance(pairs: Mapping[str, tuple[ConditionalVariance, ConditionalVariance]]) -> "Figure":
    """Phi of unmasked and masked features, by name: whole, and dimension by dimension."""
    figure, axes = new_panels(1 + len(pairs), width=NARROW)
    places = np.arange(len(pairs))
    for shift, color, label, which in ((-0.19, SLATE, "unmasked", 0), (0.19, VIOLET, "masked", 1)):
        bars = axes[0].bar(
            places + shift, [pair[which].whole for pair in pairs.values()], 0.36, color=color, label=label
        )
        axes[0].bar_label(bars, fmt="%.3f", color=INK, fontsize=8, padding=2)
    axes[0].set_xticks(places, list(pairs))
    axes[0].margins(y=0.25)
    style(axes[0], "features scaled to length one", "conditional variance, whole")
    legend(axes[0])
    for axis, (name, (unmasked, masked)) in zip(axes[1:], pairs.items(), strict=True):
        top = 1.05 * max(unmasked.per_dimension.max(), masked.per_dimension.max())
        axis.plot((0, top), (0, top), color=SLATE, linewidth=1, linestyle="--")
        axis.scatter(unmasked.per_dimension, masked.per_dimension, s=12, color=VIOLET, alpha=0.7, linewidth=0)
        axis.set_title(name, fontsize=9, color=INK)
        axis.locator_params(nbins=5)
        axis.ticklabel_format(style="sci", scilimits=(-2, 3))
        style(axis, "of a dimension, unmasked", "of a dimension, masked")
    return figure


def bounds(found: Mapping[str, Bounds], between: Mapping[str, float]) -> "Figure":
    """The intervals of Theorem 1 by name, their remainder in a lighter colour, and what should be between the ends."""
    figure, axis = new_figure(WIDTH)
    for place, bound in enumerate(found.values()):
        color = (VIOLET, SLATE)[place % 2]
        width = bound.upper - bound.lower
        axis.barh(place, width + 2 * bound.remainder, left=bound.lower - bound.remainder, color=color, alpha=0.25)
        axis.barh(place, width, left=bound.lower, height=0.5, color=color, alpha=0.85)
    axis.set_yticks(range(len(found)), list(found))
    for (name, value), color, dashes in zip(between.items(), (ORANGE, TEAL, BLUE), ("-", "--", ":"), strict=False):
        axis.axvline(value, color=color, linewidth=1.8, linestyle=dashes, label=f"{name}: {value:.2f}")
    style(axis, "nats (pale: the neglected M^-1/2)", "bounds for g of features")
    axis.invert_yaxis()
    legend_above(axis, columns=1)
    return figure


def _scatter(axis: "Axes", found: Trials) -> None:
    """Every trial as a point, and the mean of each rate as a line."""
    rates = np.unique(found.rates)
    jitter = np.random.default_rng(0).uniform(-_JITTER, _JITTER, len(found.rates))
    axis.scatter(
        100 * (found.rates + jitter),
        100 * found.accuracies,
        s=12,
        color=BLUE,
        alpha=0.6,
        linewidth=0,
        label="one trial",
    )
    axis.plot(100 * rates, [100 * found.at(rate).mean() for rate in rates], color=INK, linewidth=1.2, label="mean")


def _spoken(name: str) -> str:
    return name.replace("_", " ")
