"""The report of a run: one HTML file that needs no other.

It shows what a workdir has: `config.json`, `metrics.jsonl`, `result.json`, `report.npz` and `evaluation.json`, of which
any may be missing.
"""

import base64
import os
import pathlib
from collections.abc import Callable
from html import escape
from typing import Any

from metamask_jax.core.storage import write_atomically
from metamask_jax.reporting.page import PAGE
from metamask_jax.reporting.read import read_run
from metamask_jax.reporting.run_plots import LoggedRun, Plot, make_plots
from metamask_jax.version import __version__


def write_report(workdir: str | os.PathLike[str]) -> pathlib.Path:
    """Writes `report.html` into a run's workdir.

    Args:
      workdir: of the run. A file that is not there leaves its part of the report out.

    Returns:
      The path of the report.
    """
    folder = pathlib.Path(workdir)
    if not folder.is_dir():
        raise ValueError(f"workdir={str(workdir)!r}; expected an existing directory")
    path = folder / "report.html"
    write_atomically(path, render(read_run(folder)))
    return path


def render(run: LoggedRun) -> str:
    """The report's HTML."""
    figures = "".join(map(_figure, make_plots(run)))
    blocks = [
        *(f'<p class="note">{escape(note)}</p>' for note in run.notes),
        _cards(run) or '<p class="note">Nothing was logged yet.</p>',
        _table("Test accuracy", run.result.get("table", [])),
        _table("Evaluation, top-1", run.evaluation.get("rows", [])),
        f'<section class="plots">{figures}</section>' if figures else "",
        _config(run.config),
    ]
    names = ("data.name", "encoder.name", "method.name", "meta.estimator")
    return PAGE.format(
        name=escape(run.name),
        summary=escape(" · ".join(str(run.config[key]) for key in names if key in run.config)),
        body="\n".join(filter(None, blocks)),
        version=escape(__version__),
    )


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


_CARDS: dict[str, tuple[str, Callable[[float], str]]] = {
    "knn_accuracy": ("kNN accuracy", _percent),
    "linear_accuracy": ("Linear accuracy", _percent),
    "effective_rank": ("Effective rank", "{:.1f}".format),
    "loss": ("Final loss", "{:.4g}".format),
    "mask_std": ("Mask spread", "{:.3g}".format),
    "steps": ("Steps", "{:,.0f}".format),
    "images_per_second": ("Images / second", "{:,.0f}".format),
    "skipped": ("Skipped steps", "{:,.0f}".format),
}


def _cards(run: LoggedRun) -> str:
    """Key numbers: from the result where it has them, else the last that were logged."""
    numbers = {key: curve.values[-1] for key, curve in run.curves.items()}
    if run.curves:
        numbers["steps"] = max(curve.steps[-1] for curve in run.curves.values())
    numbers |= {key: value for key, value in run.result.items() if isinstance(value, int | float)}
    cards = "".join(
        f'<div class="card"><div class="label">{label}</div><div class="value">{text(numbers[key])}</div></div>'
        for key, (label, text) in _CARDS.items()
        if key in numbers
    )
    return f'<section class="cards">{cards}</section>' if cards else ""


def _table(title: str, rows: list[dict[str, Any]]) -> str:
    """Accuracies, or remarks in their place, by name, with the best of each column marked."""
    columns = list(dict.fromkeys(key for row in rows for key in row if key != "name"))
    if not columns:
        return ""
    best = {
        key: max((row[key] for row in rows if isinstance(row.get(key), int | float)), default=None) for key in columns
    }

    def cell(row: dict[str, Any], key: str) -> str:
        value = row.get(key)
        if value is None:
            return "<td>&mdash;</td>"
        if isinstance(value, str):
            return f"<td>{escape(value)}</td>"
        mark = "best" if value == best[key] else "other"
        return f'<td class="{mark}" style="--share: {100 * value:.1f}%">{_percent(value)}</td>'

    titles = {"knn": "kNN", "linear": "Linear probe", "h*m": "h*m, masked", "h": "h, not masked"}
    head = "".join(f"<th>{escape(titles.get(key, key))}</th>" for key in ("", *columns))
    body = "".join(
        f"<tr><td>{escape(str(row.get('name', '')))}</td>{''.join(cell(row, key) for key in columns)}</tr>"
        for row in rows
    )
    return (
        f'<section class="panel"><h2>{title}</h2>'
        f'<table class="results"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></section>'
    )


def _figure(plot: Plot) -> str:
    title = escape(plot.title)
    pictures = "".join(
        f'<img alt="{title}" src="data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}">'
        for svg in plot.figures
    )
    return (
        f'<figure class="panel{" wide" if len(plot.figures) > 1 else ""}"><h2>{title}</h2>'
        f'<div class="pictures">{pictures}</div><figcaption>{escape(plot.caption)}</figcaption></figure>'
    )


def _config(config: dict[str, Any]) -> str:
    """The configuration by section, folded."""
    if not config:
        return ""
    sections: dict[str, list[tuple[str, Any]]] = {}
    for key, value in config.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, []).append((name, value))
    tables = "".join(
        f'<table><thead><tr><th colspan="2">{escape(section)}</th></tr></thead><tbody>'
        + "".join(f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>" for name, value in sorted(rows))
        + "</tbody></table>"
        for section, rows in sorted(sections.items())
    )
    return f'<details><summary>Configuration</summary><div class="groups">{tables}</div></details>'
