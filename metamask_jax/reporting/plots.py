"""Plots of arrays in one style, as Matplotlib figures. Matplotlib is imported when the first is drawn."""

import io
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
INK, _LINE, _GRID = "#334155", "#cbd5e1", "#eef2f7"
WIDTH, NARROW = 5.6, 4.2  # inches, of a figure in two columns and in three
_SMOOTH = 120  # a longer curve is drawn with its running mean


def to_svg(figure: "Figure") -> str:
    """The figure as SVG text, the same for the same figure."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "metamask_jax"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


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


def knn_curve(curve: Curve, *, references: Mapping[str, float]) -> "Figure":
    """Accuracy in percent over steps, with horizontal lines for what to compare it with."""
    figure, axis = new_figure(WIDTH)
    axis.plot(curve.steps, 100 * curve.values, color=BLUE, linewidth=1.8, marker="o", markersize=4, label="this run")
    for (name, value), dashes in zip(references.items(), ("--", ":", "-.", (0, (1, 3))), strict=False):
        axis.axhline(100 * value, color=SLATE, linewidth=1.2, linestyle=dashes, label=name)
    axis.set_xlim(left=0)  # a single point would get an arbitrary axis
    style(axis, "step", "kNN accuracy (%)")
    if references:
        legend(axis)
    return figure


def mask_histogram(weights: np.ndarray) -> "Figure":
    """Distribution of the mask's weights [dim] and their mean."""
    figure, axis = new_figure(WIDTH)
    axis.hist(weights, bins=_bin_edges(weights), color=VIOLET, alpha=0.85, edgecolor="white")
    axis.axvline(float(weights.mean()), color=INK, linewidth=1.2, linestyle="--", label=f"mean {weights.mean():.4g}")
    axis.locator_params(axis="y", integer=True)
    style(axis, "mask weight", "dimensions")
    legend(axis)
    return figure


def _bin_edges(weights: np.ndarray) -> list[float]:
    """Edges of a histogram's bins, wide enough to be told apart where the weights are nearly equal."""
    low, high = float(weights.min()), float(weights.max())
    least = 1e-4 * max(abs(low), abs(high), 1e-3)  # of the range: a mask that has hardly moved is one bar, not noise
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


def correlation(matrix: np.ndarray) -> "Figure":
    """Heat map of a correlation matrix [dim, dim]."""
    return heat_map(
        matrix, limits=(-1.0, 1.0), label="correlation", xlabel="feature dimension", ylabel="feature dimension"
    )


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
