"""Plots of arrays in one style, as Matplotlib figures. Matplotlib is imported when the first is drawn.

On a page their ink, lines and background are the page's own (`to_svg`), so that they are as legible on a dark one.
"""

import io
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Curve(NamedTuple):
    """Values [points] over training steps [points]."""

    steps: np.ndarray
    values: np.ndarray


BLUE, ORANGE, TEAL, VIOLET, SLATE = "#2563eb", "#ea580c", "#0d9488", "#7c3aed", "#64748b"
INK, _LINE, _GRID, _SHEET = "#334155", "#cbd5e1", "#eef2f7", "#fefefe"
_OF_THE_PAGE = {INK: "--ink", _LINE: "--rule", _GRID: "--grid", _SHEET: "--sheet"}
CATEGORIES = (BLUE, ORANGE, TEAL, VIOLET, "#db2777", "#ca8a04", "#65a30d", "#0891b2", "#dc2626", "#78716c")
WIDTH, NARROW = 5.6, 4.2  # inches, of a figure in two columns and in three
_ON_A_PAGE = (0.84, 0.9)  # of a figure's size: the page is scaled, and its text should be legible on a phone
_SMOOTH = 120  # a longer curve is drawn with its running mean


def to_svg(figure: "Figure") -> str:
    """The figure as an SVG element for a page, the same for the same figure.

    What is neither data nor colour scale takes its colours from the page's style: `--ink`, `--rule`, `--grid` and
    `--sheet`. Texts are texts in the page's own font.
    """
    import matplotlib

    text = io.StringIO()
    figure.set_size_inches(*(figure.get_size_inches() * _ON_A_PAGE))
    figure.patch.set_alpha(0.0)
    for axis in figure.axes:
        axis.patch.set_alpha(0.0)
    with matplotlib.rc_context({"svg.hashsalt": "metamask_jax", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'^<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" role="img">', svg)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--font)", svg)
    for color, variable in _OF_THE_PAGE.items():
        svg = svg.replace(color, f"var({variable})")
    return svg


def to_png(figure: "Figure") -> bytes:
    """The figure as PNG, the same for the same figure."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=160, metadata={"Software": None})
    return file.getvalue()


def curves(panel: Mapping[str, tuple[Curve, str]], *, label: str, log: bool, width: float) -> "Figure":
    """Curves over training steps.

    Args:
      panel: curves by name, with their colours.
      label: of the axis.
      log: whether values are on a logarithmic axis, where those that are not positive are left out.
      width: of the figure in inches.
    """
    figure, axis = new_figure(width)
    for (name, ((steps, values), color)), dashes in zip(panel.items(), ("-", (0, (4, 2)), ":"), strict=False):
        shown = values > 0 if log else np.ones(len(values), bool)
        _draw(axis, steps[shown], values[shown], color=color, label=name, linestyle=dashes)
    if log:
        axis.set_yscale("log")
    style(axis, "step", label)
    if len(panel) > 1:
        legend(axis)
    return figure


def knn_curve(curve: Curve, *, references: Mapping[str, float], interval: np.ndarray | None = None) -> "Figure":
    """Accuracy in percent over steps, with horizontal lines for what to compare it with.

    Args:
      curve: of the accuracy in [0, 1].
      references: other accuracies in [0, 1] by name.
      interval: in which the last accuracy of the curve lies [2], if known.
    """
    figure, axis = new_figure(WIDTH)
    axis.plot(curve.steps, 100 * curve.values, color=BLUE, linewidth=1.8, marker="o", markersize=4, label="this run")
    if interval is not None and interval[0] <= curve.values[-1] <= interval[1]:
        middle = 50 * (interval[0] + interval[1])
        error = 50 * (interval[1] - interval[0])
        axis.errorbar(curve.steps[-1:], [middle], yerr=error, color=BLUE, capsize=4, linewidth=1.4, linestyle="none")
    for (name, value), dashes in zip(references.items(), ("--", ":", "-.", (0, (1, 3)), (0, (6, 3))), strict=False):
        axis.axhline(100 * value, color=SLATE, linewidth=1.2, linestyle=dashes, label=name)
    axis.set_xlim(left=-0.03 * float(curve.steps[-1]))  # a single point would get an arbitrary axis
    style(axis, "step", "kNN accuracy (%)")
    if references:
        legend_above(axis, columns=2)
    return figure


def overlay(curves: Mapping[str, Curve], *, xlabel: str, ylabel: str, log: bool = False) -> "Figure":
    """The same curve of several runs, by name, in the order of `CATEGORIES`."""
    figure, axis = new_figure(WIDTH)
    for (name, (steps, values)), color in zip(curves.items(), itertools.cycle(CATEGORIES), strict=False):
        shown = values > 0 if log else np.ones(len(values), bool)
        if shown.any():
            _draw(axis, steps[shown], values[shown], color=color, label=name)
    if log:
        axis.set_yscale("log")
    style(axis, xlabel, ylabel)
    legend(axis)
    return figure


def mask_histogram(weights: np.ndarray) -> "Figure":
    """Distribution of the mask's weights [dim] and their mean."""
    figure, axis = new_figure(WIDTH)
    axis.hist(weights, bins=_bin_edges(weights), color=VIOLET, alpha=0.85, edgecolor=_SHEET)
    axis.axvline(float(weights.mean()), color=INK, linewidth=1.2, linestyle="--", label=f"mean {weights.mean():.4g}")
    axis.locator_params(axis="y", integer=True)
    axis.ticklabel_format(axis="x", useOffset=False)
    style(axis, "mask weight", "dimensions")
    legend(axis)
    return figure


def _bin_edges(weights: np.ndarray) -> list[float]:
    """Edges of a histogram's bins, wide enough to be told apart where the weights are nearly equal."""
    low, high = float(weights.min()), float(weights.max())
    least = 0.02 * max(abs(low), abs(high), 1e-3)  # of the range: a mask that has hardly moved is one bar, not noise
    margin = max(0.0, least - (high - low)) / 2
    edges: list[float] = np.linspace(low - margin, high + margin, 1 + min(40, max(10, len(weights) // 8))).tolist()
    return edges


def mask_trajectory(steps: np.ndarray, trajectory: np.ndarray) -> "Figure":
    """Mask weights [points, dim] over steps [points]: their range, the middle half, the median and some single ones."""
    figure, axis = new_figure(WIDTH)
    low, first, median, third, high = np.percentile(trajectory, (0, 25, 50, 75, 100), axis=1)
    axis.fill_between(steps, low, high, color=VIOLET, alpha=0.12, linewidth=0, label="all dimensions")
    axis.fill_between(steps, first, third, color=VIOLET, alpha=0.25, linewidth=0, label="middle half")
    order = np.argsort(trajectory[-1])
    for dimension in order[np.linspace(0, len(order) - 1, min(9, len(order))).round().astype(int)]:
        axis.plot(steps, trajectory[:, dimension], color=VIOLET, linewidth=0.7, alpha=0.55)
    axis.plot(steps, median, color=INK, linewidth=1.8, label="median")
    style(axis, "step", "mask weight")
    legend(axis)
    return figure


def heat_map(
    matrix: np.ndarray, *, limits: tuple[float, float], label: str, xlabel: str, ylabel: str, rows: Sequence[str] = ()
) -> "Figure":
    """Heat map of numbers [rows, columns].

    Args:
      matrix: the numbers; what is beyond a limit has the colour of the limit.
      limits: of the colours, which tell signs apart if the lower one is negative.
      label: what the colours mean.
      xlabel: what the columns are.
      ylabel: what the rows are.
      rows: their names, if they have any.
    """
    figure, axis = new_figure(WIDTH)
    square = matrix.shape[0] == matrix.shape[1]
    if square:
        figure.set_layout_engine("compressed")  # keeps a square picture and its bar together
    low, high = limits
    image = axis.imshow(
        matrix,
        cmap="RdBu_r" if low < 0 else "viridis",
        vmin=low,
        vmax=high,
        interpolation="nearest",
        aspect="equal" if square else "auto",
    )
    bar = figure.colorbar(image, ax=axis, fraction=0.046, pad=0.03)
    bar.set_label(label, color=INK, fontsize=9)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, labelsize=8.5, length=0)
    style(axis, xlabel, ylabel)
    if rows:
        axis.set_yticks(range(len(rows)), rows)
    axis.grid(False)
    return figure


def new_figure(width: float) -> tuple["Figure", "Axes"]:
    """An empty figure of the usual height, and its axes."""
    figure, (axis,) = new_panels(1, width=width)
    return figure, axis


def new_panels(count: int, *, width: float) -> tuple["Figure", Sequence["Axes"]]:
    """An empty figure with axes side by side, each of a width in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(count * width, 3.3), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False)[0]


def _draw(axis: "Axes", steps: np.ndarray, values: np.ndarray, **style: Any) -> None:
    """A curve; a long one faintly, under its running mean."""
    if len(values) <= _SMOOTH:
        axis.plot(steps, values, linewidth=1.8, marker="o" if len(values) == 1 else None, **style)
        return
    window = len(values) // 40
    smooth = np.convolve(values, np.ones(window) / window, mode="valid")
    axis.plot(steps, values, color=style["color"], linewidth=0.8, alpha=0.25, rasterized=True)
    axis.plot(steps[window // 2 :][: len(smooth)], smooth, linewidth=1.8, **style)


def style(axis: "Axes", xlabel: str, ylabel: str) -> None:
    """Labels and the look of all axes."""
    axis.set_xlabel(xlabel, color=INK, fontsize=9.5)
    axis.set_ylabel(ylabel, color=INK, fontsize=9.5)
    axis.tick_params(colors=INK, labelsize=8.5, length=0, which="both")
    axis.grid(True, color=_GRID, linewidth=1)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color(_LINE)


def legend(axis: "Axes") -> None:
    """A legend in the look of all figures."""
    axis.legend(frameon=False, fontsize=8.5, labelcolor=INK, handlelength=1.6)


def legend_above(axis: "Axes", *, columns: int) -> None:
    """A legend above the axes, for plots whose data fill them."""
    axis.legend(
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=columns,
        frameon=False,
        fontsize=8.5,
        labelcolor=INK,
        handlelength=1.6,
    )
