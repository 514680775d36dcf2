"""Several runs on one page: their numbers side by side, what was set differently, and their curves in one plot."""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from typing import Any

import numpy as np

from metamask_jax.core.places import Place, to_place
from metamask_jax.core.storage import write_atomically
from metamask_jax.reporting import feature_plots, gallery, plots, run_plots
from metamask_jax.reporting.page import figure_panel, page, section
from metamask_jax.reporting.plots import CATEGORIES, Curve
from metamask_jax.reporting.read import read_run
from metamask_jax.reporting.report import percent, summary
from metamask_jax.reporting.run_plots import LoggedRun

Runs = dict[str, LoggedRun]
Cell = tuple[float | None, str, str]  # the accuracy, if it is one; the text; a remark
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
    summaries = dict.fromkeys(summary(run.config) for run in runs.values())
    notes = (f"{name}: {note}" for name, run in runs.items() for note in run.notes)
    return page(
        kind="MetaMask comparison",
        name=f"{len(runs)} runs",
        summary=" | ".join(filter(None, summaries)),
        blocks=[
            *(f'<p class="note">{escape(note)}</p>' for note in notes),
            _numbers(runs),
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
    for title, read in _measures(runs):
        found = [read(run) for run in runs.values()]
        if any(text for _, text, _ in found):
            columns[title] = found
    if not columns:
        return '<p class="note">Nothing was logged yet.</p>'
    best = {
        title: max((v for v, _, _ in cells if v is not None), default=None) if len(cells) > 1 else None
        for title, cells in columns.items()
    }

    def cell(title: str, i: int) -> str:
        value, text, remark = columns[title][i]
        mark = ' class="best"' if value is not None and value == best[title] else ""
        return f"<td{mark}>{escape(text) or '&mdash;'}{f'<small>{escape(remark)}</small>' if remark else ''}</td>"

    head = "".join(f"<th>{escape(title)}</th>" for title in ("", *columns))
    body = "".join(
        f"<tr><td>{_swatch(name, i)}</td>{''.join(cell(title, i) for title in columns)}</tr>"
        for i, name in enumerate(runs)
    )
    return _table("Numbers", head, body, "results")


def _measures(runs: Runs) -> Iterator[tuple[str, Callable[[LoggedRun], Cell]]]:
    """Titles of columns, and how to read them off a run."""
    yield "kNN", _knn
    names = dict.fromkeys(row["name"] for run in runs.values() for row in run.evaluation.get("rows", []))
    for name in names:
        for kind in ("h", "h*m"):
            yield f"{name.split(' · ')[0]} of {kind}", partial(_evaluated, name=name, kind=kind)
    for key, title, form in (
        ("effective_rank", "Effective rank", "{:.1f}"),
        ("mask_std", "Mask spread", "{:.3g}"),
        ("loss", "Final loss", "{:.4g}"),
        ("steps", "Steps", "{:,.0f}"),
        ("seconds", "Seconds", "{:,.0f}"),
    ):
        yield title, partial(_number, key=key, form=form)


def _latest(run: LoggedRun, key: str) -> float | None:
    """A number of the result, or the last that was logged."""
    if key in run.result:
        return float(run.result[key])
    return float(run.curves[key].values[-1]) if key in run.curves else None


def _number(run: LoggedRun, key: str, form: str) -> Cell:
    value = _latest(run, key)
    return None, "" if value is None else form.format(value), ""


def _knn(run: LoggedRun) -> Cell:
    value = _latest(run, "knn_accuracy")
    if value is None:
        return None, "", ""
    interval = run_plots.knn_interval(run)
    remarks = [] if interval is None else [f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}"]
    before = run.result.get("knn_accuracy_before")
    remarks += [] if before is None else [f"before {percent(before)}"]
    return value, percent(value), " · ".join(remarks)


def _evaluated(run: LoggedRun, name: str, kind: str) -> Cell:
    """The accuracy of a protocol; that of the last evaluation if there are several of the name."""
    found = [row.get(kind) for row in run.evaluation.get("rows", []) if row["name"] == name]
    value: Any = found[-1] if found else None
    if not isinstance(value, dict):
        return None, value or "", ""
    interval = value["interval"]
    remark = "" if interval is None else "{:.1f} to {:.1f}".format(*(100 * bound for bound in interval))
    return value["top1"], percent(value["top1"]), remark


def _settings(runs: Runs) -> str:
    """The keys of the configurations that are not the same everywhere."""
    keys = sorted({key for run in runs.values() for key in run.config if not key.startswith(_NOT_COMPARED)})
    rows = {key: [str(run.config.get(key, "—")) for run in runs.values()] for key in keys}
    different = {key: values for key, values in rows.items() if len(set(values)) > 1}
    if not different:
        return '<p class="note">All these runs have the same settings.</p>' if len(runs) > 1 and keys else ""
    head = "<th></th>" + "".join(f"<th>{_swatch(name, i)}</th>" for i, name in enumerate(runs))
    body = "".join(
        f"<tr><td>{escape(key)}</td>{''.join(f'<td>{escape(value)}</td>' for value in values)}</tr>"
        for key, values in different.items()
    )
    return _table("What was set differently", head, body, "")


def _table(title: str, head: str, body: str, kind: str) -> str:
    return (
        f'<section class="panel"><h3>{title}</h3><div class="scroll"><table class="{kind}">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></section>"
    )


def _curves(runs: Runs) -> Iterator[str]:
    """Logged metrics of all runs, each in one plot with the colours of the table."""
    for metric, title, caption, scale, log in (
        ("knn_accuracy", "Accuracy while training", "Nearest neighbours on test pictures, in percent.", 100.0, False),
        ("effective_rank", "Effective rank", "How many directions the features of test pictures use.", 1.0, False),
        ("loss", "Total loss", "Of different settings, losses need not be comparable.", 1.0, False),
        ("loss_method", "The method's loss", "Without redundancy reduction.", 1.0, False),
        ("meta_second_order_norm", "Second-order part of the meta-gradient", "Its norm.", 1.0, True),
    ):
        found = {
            name: Curve(run.curves[metric].steps, scale * run.curves[metric].values)
            for name, run in runs.items()
            if metric in run.curves
        }
        yield from _overlay(runs, found, title, caption, xlabel="step", ylabel=title.lower(), log=log)
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
