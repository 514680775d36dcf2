"""Plots of features: how they fill their space, where the classes are in it, and which are taken for which."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from metamask_jax.reporting.plots import BLUE, CATEGORIES, INK, TEAL, WIDTH, heat_map, legend, new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMED, _NUMBERED = 24, 12  # classes of a confusion matrix that have room for their names, and for numbers


def feature_spectrum(values: np.ndarray) -> "Figure":
    """Singular values [dim], the largest first, as shares of the largest, and the effective rank they give."""
    figure, axis = new_figure(WIDTH)
    parts = values[values > 0] / values.sum()
    effective_rank = np.exp(-np.sum(parts * np.log(parts)))
    shares = values / max(values[0], np.finfo(values.dtype).tiny)
    positive = shares > 1e-12
    axis.plot(np.arange(1, len(values) + 1)[positive], shares[positive], color=TEAL, linewidth=1.8)
    axis.axvline(effective_rank, color=INK, linewidth=1.2, linestyle="--", label=f"effective rank {effective_rank:.1f}")
    axis.set_yscale("log")
    style(axis, "index of singular value", "singular value / largest")
    legend(axis)
    return figure


def feature_map(points: np.ndarray, labels: np.ndarray, *, names: Sequence[str], shares: Sequence[float]) -> "Figure":
    """Features in two dimensions [points, 2], coloured by class where labels [points] are not negative.

    Args:
      points: places.
      labels: classes.
      names: of the classes; more than there are colours for are coloured, too, but not named.
      shares: of the variance along both axes.
    """
    figure, axis = new_figure(WIDTH)
    known = [label for label in np.unique(labels).tolist() if 0 <= label < len(names)]
    for label in known:
        chosen, color = points[labels == label], CATEGORIES[label % len(CATEGORIES)]
        axis.scatter(
            chosen[:, 0], chosen[:, 1], s=7, color=color, alpha=0.65, linewidths=0, label=names[label], rasterized=True
        )
    others = points[~np.isin(labels, known)]
    axis.scatter(others[:, 0], others[:, 1], s=7, color="#3b82f6", alpha=0.75, linewidths=0, rasterized=True)
    style(axis, *(f"direction {i} ({100 * share:.0f} % of the variance)" for i, share in enumerate(shares, start=1)))
    axis.tick_params(labelbottom=False, labelleft=False)
    if 0 < len(known) <= len(CATEGORIES):
        axis.legend(
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
            frameon=False,
            fontsize=8.5,
            labelcolor=INK,
            handletextpad=0.2,
            markerscale=2.2,
        )
    return figure


def confusion(counts: np.ndarray, names: Sequence[str]) -> "Figure":
    """Shares in percent of each class [classes, predicted classes] that were taken for which."""
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    few = len(names) <= NAMED
    figure = heat_map(
        shares,
        limits=(0.0, 100.0),
        label="share of the class (%)",
        xlabel="taken for",
        ylabel="class",
        rows=names if few else (),
    )
    axis = figure.axes[0]
    if few:
        axis.set_xticks(range(len(names)), names, rotation=35, ha="right")
    if len(names) <= _NUMBERED:
        for row, column in np.ndindex(*shares.shape):
            color = "#0f172a" if shares[row, column] > 60 else "#f8fafc"
            axis.text(column, row, f"{shares[row, column]:.0f}", ha="center", va="center", fontsize=8, color=color)
    return figure


def recognised(counts: np.ndarray, names: Sequence[str]) -> "Figure":
    """Shares in percent of each class that were taken for what they are, the largest first, from counts as above."""
    shares = 100 * np.diag(counts) / np.maximum(counts.sum(axis=1), 1)
    order = np.argsort(shares, kind="stable")
    figure, axis = new_figure(WIDTH)
    bars = axis.barh(range(len(order)), shares[order], color=BLUE, alpha=0.85, height=0.72)
    axis.bar_label(bars, fmt="%.0f", padding=4, fontsize=8.5, color=INK)
    style(axis, "recognised (%)", "")
    axis.set_yticks(range(len(order)), [names[i] for i in order])
    axis.set_xlim(0, min(100, 1.12 * max(shares.max(), 1)))
    axis.grid(False, axis="y")
    return figure


def correlation(matrix: np.ndarray) -> "Figure":
    """Heat map of a correlation matrix [dim, dim]."""
    return heat_map(
        matrix, limits=(-1.0, 1.0), label="correlation", xlabel="feature dimension", ylabel="feature dimension"
    )
