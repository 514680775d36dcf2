"""Tables as Markdown and CSV, figures as PNG, and what many experiments draw alike."""

import csv
import io
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from metamask_jax.core.storage import write_atomically
from metamask_jax.experiments.base import Label, Report, Results, Table
from metamask_jax.experiments.statistics import difference_text, mean_text, paired_difference
from metamask_jax.reporting import plots
from metamask_jax.reporting.tables import markdown_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = (plots.BLUE, plots.ORANGE, plots.TEAL, plots.VIOLET, plots.SLATE)


def write(report: Report, folder: pathlib.Path, *, title: str, stated: str, command: str) -> str:
    """Writes README.md, one CSV file per table and one PNG file per figure.

    Args:
      report: what to write.
      folder: where; it is made if need be.
      title: of the page.
      stated: the scale, in words.
      command: what regenerates the page.

    Returns:
      The text of README.md.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = [f"## {title}", f"Scale: {stated}. Command: `{command}`"]
    for number, table in enumerate(report.tables):
        parts += [table.caption, markdown(table)]
        write_atomically(folder / f"table{number or ''}.csv", comma_separated(table))
    for name, figure in report.figures.items():
        write_atomically(folder / f"{name}.png", plots.to_png(figure))
        parts.append(f"![{name}]({name}.png)")
    text = "\n\n".join(parts) + "\n"
    write_atomically(folder / "README.md", text)
    return text


def markdown(table: Table) -> str:
    """A table with aligned columns.

    Example:
      >>> print(markdown(Table("", ("a", "b"), [("1", "22")])))
      | a | b  |
      |---|----|
      | 1 | 22 |
    """
    rows = [[markdown_cell(cell) for cell in row] for row in (table.header, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    rule = "|".join("-" * (w + 2) for w in widths)
    return "\n".join([f"| {lines[0]} |", f"|{rule}|", *(f"| {line} |" for line in lines[1:])])


def comma_separated(table: Table) -> str:
    """A table as CSV."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows((table.header, *table.rows))
    return file.getvalue()


def comparison(
    results: Results,
    *,
    caption: str,
    by: str,
    names: Mapping[Label, str],
    base: Label | None,
    quantity: str,
    paper: Mapping[str, float],
) -> Table:
    """One row per level of a label: mean, difference to the base's with its interval, and the paper's number."""
    reference = results.where(**{by: base}).of(quantity) if base is not None else {}
    rows = []
    for level in results.levels(by):
        values = results.where(**{by: level}).of(quantity)
        difference = paired_difference(values, reference) if reference and level != base else None
        rows.append(
            (
                names.get(level, str(level)),
                mean_text(values),
                difference_text(difference) if difference else "",
                f"{paper[str(level)]:.2f}" if str(level) in paper else "",
            )
        )
    against = f"difference to {names.get(base, str(base))} [95 %]" if base is not None else "difference"
    return Table(caption, ("", "accuracy (%)", against, "paper (%)"), rows)


def lines(
    results: Results,
    *,
    by: str,
    over: str,
    quantity: str,
    xlabel: str,
    ylabel: str,
    names: Mapping[Label, str],
    log: bool,
) -> "Figure":
    """Means over a numeric label with bars of one standard deviation, one line per level of another label."""
    figure, axis = plots.new_figure(plots.WIDTH)
    for level, color in zip(results.levels(by), COLORS, strict=False):
        part = results.where(**{by: level})
        xs = sorted(float(x) for x in part.levels(over))
        samples = [100 * np.array(list(part.where(**{over: x}).of(quantity).values())) for x in xs]
        spread = [s.std(ddof=1) if len(s) > 1 else 0.0 for s in samples]
        axis.errorbar(
            xs,
            [s.mean() for s in samples],
            spread,
            color=color,
            linewidth=1.8,
            marker="o",
            markersize=4,
            capsize=3,
            label=names.get(level, str(level)),
        )
    if log:
        axis.set_xscale("log")
        ticks = sorted(float(x) for x in results.levels(over))
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
    plots.style(axis, xlabel, ylabel)
    plots.legend(axis)
    return figure


def bars(
    results: Results,
    *,
    by: str,
    quantity: str,
    names: Mapping[Label, str],
    ylabel: str,
    paper: Mapping[str, float],
) -> "Figure":
    """One bar per level, with one standard deviation, the single seeds as dots and the paper's number as a line."""
    figure, axis = plots.new_figure(plots.WIDTH)
    levels: Sequence[Label] = results.levels(by)
    for place, level in enumerate(levels):
        values = 100 * np.array(list(results.where(**{by: level}).of(quantity).values()))
        spread = values.std(ddof=1) if len(values) > 1 else 0.0
        axis.bar(place, values.mean(), yerr=spread, color=COLORS[place % len(COLORS)], width=0.6, alpha=0.85, capsize=3)
        axis.plot([place] * len(values), values, "o", color=plots.INK, markersize=3)
        if str(level) in paper:
            axis.hlines(paper[str(level)], place - 0.35, place + 0.35, color=plots.INK, linestyle="--", linewidth=1.4)
    axis.set_xticks(range(len(levels)), [names.get(level, str(level)) for level in levels])
    plots.style(axis, "", ylabel)
    if paper:
        axis.plot([], [], color=plots.INK, linestyle="--", label="paper (its own setting)")
        plots.legend(axis)
    return figure
