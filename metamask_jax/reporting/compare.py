"""Several runs on one page: their numbers side by side, what was set differently, and their curves in one plot."""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from typing import Any

import numpy as np

from metamask_jax.core.places import Place, to_place
from metamask_jax.core.storage import write_atomically
from metamask_jax.reporting import feature_plots, gallery, plots, run_plots
from metamask_jax.reporting.page import figure_panel, page, remarks, section
from metamask_jax.reporting.plots import CATEGORIES, Curve
from metamask_jax.reporting.read import read_run
from metamask_jax.reporting.report import facts, percent
from metamask_jax.reporting.run_plots import LoggedRun

Runs = dict[str, LoggedRun]
Cell = tuple[float | None, str, str]  # the accuracy, if it is one; the text; remarks, one per line
_FEW = 3  # runs whose names are the title
_NOT_COMPARED = ("log.", "checkpoint.", "data.dir", "data.prefetch")  # do not change what is learned


def write_comparison(workdirs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Place:
    """Writes one page about several runs.

    Args:
      workdirs: of the runs, finished or not, in the order of the page.
      out: the HTML file to write.

    Returns:
      Its path.
    """
    path = to_place(out)
    write_atomically(path, render([to_place(workdir) for workdir in workdirs]))
    return path


def render(folders: Sequence[Place]) -> str:
    """The page's HTML."""
    runs = dict(zip(_names(folders), map(read_run, folders), strict=True))
    first, *others = [facts(run.config) for run in runs.values()]
    notes = (f"{name}: {note}" for name, run in runs.items() for note in run.notes)
    return page(
        kind="MetaMask comparison",
        name=" · ".join(runs) if len(runs) <= _FEW else f"{len(runs)} runs",
        summary=" · ".join(fact for fact in first if all(fact in other for other in others)),
        blocks=[
            *(f'<p class="note">{escape(note)}</p>' for note in notes),
            _numbers(runs),
            _evaluations(runs),
            _settings(runs),
            section("Curves", *_curves(runs)),
            section("Maps of the features", *_maps(runs)),
        ],
    )


def _names(folders: Sequence[Place]) -> list[str]:
    """What tells the folders apart: their names, with those of their parents where need be."""
    resolved = [folder.resolve() for folder in folders]
    for depth in range(1, max(len(folder.parts) for folder in resolved)):
        names = ["/".join(folder.parts[-depth:]) for folder in resolved]
        if len(set(names)) == len(names):
            return names
    return [f"{folder.name} ({i})" for i, folder in enumerate(resolved, start=1)]


def _swatch(name: str, i: int) -> str:
    return f'<span class="swatch" style="background: {CATEGORIES[i % len(CATEGORIES)]}"></span>{escape(name)}'


def _numbers(runs: Runs) -> str:
    """One row per run, one column per measure; the best accuracies are marked."""
    columns: dict[str, list[Cell]] = {}
    for title, read in _MEASURES.items():
        found = [read(run) for run in runs.values()]
        if any(text for _, text, _ in found):
            columns[title] = found
    if not columns:
        return '<p class="note">Nothing was logged yet.</p>'
    marked = {title: _marked(cells) for title, cells in columns.items()}
    head = "".join(f"<th>{escape(title)}</th>" for title in ("", *columns))
    body = "".join(
        f"<tr><td>{_swatch(name, i)}</td>{''.join(marked[title][i] for title in columns)}</tr>"
        for i, name in enumerate(runs)
    )
    return _table("Numbers", head, body, "results")


def _evaluations(runs: Runs) -> str:
    """One row per protocol, data and kind of features, one column per run."""
    found = [_evaluated(run) for run in runs.values()]
    rows = {key: [cells.get(key, (None, "", "")) for cells in found] for key in dict.fromkeys(itertools.chain(*found))}
    rows = {key: cells for key, cells in rows.items() if any(value is not None for value, _, _ in cells)}
    if not rows:
        return ""
    body = "".join(
        f"<tr><td>{escape(protocol)} of {kind}{remarks([data])}</td>{''.join(_marked(cells))}</tr>"
        for (protocol, data, kind), cells in rows.items()
    )
    return _table("Evaluation, top-1", _heads(runs), body, "results")


def _marked(cells: Sequence[Cell]) -> list[str]:
    """Cells of one measure; the best accuracy of several is marked."""
    values = [value for value, _, _ in cells if value is not None]
    best = max(values) if len(values) > 1 else None
    marks = ["best" if value is not None and value == best else "other" for value, _, _ in cells]
    return [
        f'<td class="{mark}">{escape(text) or "&mdash;"}{remarks(below.splitlines())}</td>'
        for mark, (_, text, below) in zip(marks, cells, strict=True)
    ]


def _latest(run: LoggedRun, key: str) -> float | None:
    """A number of the result, or the last that was logged."""
    if key in run.result:
        return float(run.result[key])
    return float(run.curves[key].values[-1]) if key in run.curves else None


def _number(run: LoggedRun, key: str, form: str) -> Cell:
    value = _latest(run, key)
    return None, "" if value is None else form.format(value), ""


def _time(run: LoggedRun) -> Cell:
    seconds = _latest(run, "seconds")
    if seconds is None:
        return None, "", ""
    minutes, hours = seconds / 60, seconds / 3600
    return None, f"{hours:.1f} h" if hours >= 2 else f"{minutes:.0f} min" if minutes >= 2 else f"{seconds:.0f} s", ""


def _knn(run: LoggedRun) -> Cell:
    value = _latest(run, "knn_accuracy")
    if value is None:
        return None, "", ""
    interval = run_plots.knn_interval(run)
    remarks = [] if interval is None else [f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}"]
    before = run.result.get("knn_accuracy_before")
    remarks += [] if before is None else [f"before {percent(before)}"]
    return value, percent(value), "\n".join(remarks)


def _evaluated(run: LoggedRun) -> dict[tuple[str, str, str], Cell]:
    """Accuracies by protocol, data and kind of features; the last one if a run has several, of other sizes, say."""
    found: dict[tuple[str, str, str], Cell] = {}
    for row in run.evaluation.get("rows", []):
        protocol, data, *_ = row["name"].split(" · ")
        data, _, images = data.partition(", ")
        for kind in ("h", "h*m"):
            value = row.get(kind)
            if isinstance(value, dict):
                interval = value["interval"]
                between = "" if interval is None else "{:.1f} to {:.1f}".format(*(100 * bound for bound in interval))
                found[protocol, data, kind] = value["top1"], percent(value["top1"]), f"{between}\n{images}"
            elif value:
                found[protocol, data, kind] = None, value, ""
    return found


_MEASURES: dict[str, Callable[[LoggedRun], Cell]] = {
    "kNN": _knn,
    "Effective rank": partial(_number, key="effective_rank", form="{:.1f}"),
    "Mask spread": partial(_number, key="mask_std", form="{:.3g}"),
    "Final loss": partial(_number, key="loss", form="{:.4g}"),
    "Steps": partial(_number, key="steps", form="{:,.0f}"),
    "Time": _time,
}


def _settings(runs: Runs) -> str:
    """The keys of the configurations that are not the same everywhere."""
    keys = sorted({key for run in runs.values() for key in run.config if not key.startswith(_NOT_COMPARED)})
    rows = {key: [str(run.config.get(key, "—")) for run in runs.values()] for key in keys}
    different = {key: values for key, values in rows.items() if len(set(values)) > 1}
    if not different:
        return '<p class="note">All these runs have the same settings.</p>' if len(runs) > 1 and keys else ""
    body = "".join(
        f"<tr><td>{escape(key)}</td>{''.join(f'<td>{escape(value)}</td>' for value in values)}</tr>"
        for key, values in different.items()
    )
    return _table("What was set differently", _heads(runs), body, "")


def _heads(runs: Runs) -> str:
    return "<th></th>" + "".join(f"<th>{_swatch(name, i)}</th>" for i, name in enumerate(runs))


def _table(title: str, head: str, body: str, kind: str) -> str:
    return (
        f'<section class="panel"><h3>{title}</h3><div class="scroll"><table class="{kind}">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></section>"
    )


def _curves(runs: Runs) -> Iterator[str]:
    """Logged metrics of all runs, each in one plot with the colours of the table."""
    for metric, title, ylabel, caption in (
        ("knn_accuracy", "Accuracy while training", "kNN accuracy (%)", "Nearest neighbours on test pictures."),
        ("effective_rank", "Effective rank", "", "How many directions the features of test pictures use."),
        ("loss", "Total loss", "", "Of different settings, losses need not be comparable."),
        ("loss_method", "The method's loss", "", "Without redundancy reduction."),
        ("meta_second_order_norm", "Second-order part of the meta-gradient", "norm", "Its norm."),
    ):
        scale = 100.0 if "%" in ylabel else 1.0
        found = {
            name: Curve(curve.steps, scale * curve.values)
            for name, run in runs.items()
            if (curve := run_plots.from_the_start(run, metric)) is not None
        }
        labels = {"xlabel": "step", "ylabel": ylabel or title.lower()}
        yield from _overlay(runs, found, title, caption, **labels, log=ylabel == "norm")
    masks = {name: _ranked(run.arrays["mask_final"]) for name, run in runs.items() if "mask_final" in run.arrays}
    yield from _overlay(
        runs, masks, "Weights of the mask", "From the largest to the smallest.", xlabel="rank", ylabel="mask weight"
    )
    spectra = {
        name: _ranked(run.arrays["singular_values"] / run.arrays["singular_values"].max())
        for name, run in runs.items()
        if "singular_values" in run.arrays
    }
    yield from _overlay(
        runs,
        spectra,
        "Feature spectrum",
        "Singular values as shares of the largest.",
        xlabel="index of singular value",
        ylabel="singular value / largest",
        log=True,
    )


def _ranked(values: np.ndarray) -> Curve:
    return Curve(np.arange(1, len(values) + 1), np.sort(values)[::-1])


def _overlay(runs: Runs, found: dict[str, Curve], title: str, caption: str, **labels: Any) -> Iterator[str]:
    """A plot of those runs that have the curve, each in its own colour."""
    if found:
        empty = Curve(np.empty(0), np.empty(0))
        figure = plots.overlay({name: found.get(name, empty) for name in runs}, **labels)
        yield figure_panel(title, caption, [plots.to_svg(figure)])


def _maps(runs: Runs) -> Iterator[str]:
    for name, run in runs.items():
        if "map_points" in run.arrays:
            figure = feature_plots.feature_map(
                run.arrays["map_points"],
                run.arrays["map_labels"],
                names=gallery.class_names(run.arrays),
                shares=run.arrays["map_shares"].tolist(),
            )
            caption = "Test pictures by the two directions in which their features differ most."
            yield figure_panel(name, caption, [plots.to_svg(figure)])
