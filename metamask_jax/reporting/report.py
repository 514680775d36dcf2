"""The report of a run: one HTML file that needs no other.

It shows what a workdir has: `config.json`, `metrics.jsonl`, `result.json`, `report.npz` and `evaluation.json`, of which
any may be missing.
"""

import os
from collections.abc import Callable, Iterable
from html import escape
from typing import Any

from metamask_jax.core.places import Place, to_place
from metamask_jax.core.storage import write_atomically
from metamask_jax.reporting import gallery, run_plots
from metamask_jax.reporting.page import figure_panel, page, remarks, section
from metamask_jax.reporting.read import read_run
from metamask_jax.reporting.run_plots import LoggedRun, Plot


def write_report(workdir: str | os.PathLike[str]) -> Place:
    """Writes `report.html` into a run's workdir.

    Args:
      workdir: of the run. A file that is not there leaves its part of the report out.

    Returns:
      The path of the report.
    """
    folder = to_place(workdir)
    if not folder.is_dir():
        raise ValueError(f"workdir={str(workdir)!r}; expected an existing directory")
    path = folder / "report.html"
    write_atomically(path, render(read_run(folder)))
    return path


def render(run: LoggedRun) -> str:
    """The report's HTML."""
    arrays = run.arrays
    return page(
        kind="MetaMask run",
        name=run.name,
        summary=" · ".join(facts(run.config)),
        blocks=[
            *(f'<p class="note">{escape(note)}</p>' for note in run.notes),
            _cards(run) or '<p class="note">Nothing was logged yet.</p>',
            results_table("Test accuracy", run.result.get("table", [])),
            results_table("Evaluation, top-1", run.evaluation.get("rows", [])),
            section("What it sees", gallery.samples_panel(arrays)),
            section("What it has learned", gallery.neighbors_panel(arrays), *panels(run_plots.learned(run))),
            section("The mask", gallery.dimensions_panel(arrays), *panels(run_plots.mask(run))),
            section("Training", *panels(run_plots.training(run))),
            section("Features", *panels(run_plots.features(run))),
            _config(run.config),
        ],
    )


def facts(config: dict[str, Any]) -> list[str]:
    """What a run is: data, method, encoder and what learns the mask, as far as the configuration by key tells."""
    forms = {"data.name": "{}", "method.name": "{}", "encoder.name": "encoder {}", "meta.estimator": "mask learned, {}"}
    if config.get("meta.outer") == "labels":
        forms["meta.estimator"] += ", judged by labels"
    if config.get("mask.learn") is False:
        forms["meta.estimator"] = "mask not learned"
    return [form.format(config[key]) for key, form in forms.items() if key in config]


def panels(plots: Iterable[Plot]) -> list[str]:
    """Plots as elements of a page."""
    return [figure_panel(*plot) for plot in plots]


def percent(value: float) -> str:
    """A share as a reader would write it."""
    return f"{100 * value:.1f} %"


_CARDS: dict[str, tuple[str, Callable[[float], str]]] = {
    "knn_accuracy": ("kNN accuracy", percent),
    "linear_accuracy": ("Linear accuracy", percent),
    "effective_rank": ("Effective rank", "{:.1f}".format),
    "loss": ("Final loss", "{:.4g}".format),
    "mask_std": ("Mask spread", "{:.3g}".format),
    "steps": ("Steps", "{:,.0f}".format),
    "images_per_second": ("Images / s", "{:,.0f}".format),
    "skipped": ("Skipped steps", "{:,.0f}".format),
}


def _cards(run: LoggedRun) -> str:
    """Key numbers: from the result where it has them, else the last that were logged."""
    numbers = {key: curve.values[-1] for key, curve in run.curves.items()}
    if run.curves:
        numbers["steps"] = max(curve.steps[-1] for curve in run.curves.values())
    numbers |= {key: value for key, value in run.result.items() if isinstance(value, int | float)}
    if not numbers.get("skipped"):  # as usual: nothing to speak of
        numbers.pop("skipped", None)
    more = _beside(run)
    cards = "".join(
        f'<div class="card"><div class="label">{label}</div><div class="value">{text(numbers[key])}</div>'
        + f'<div class="more">{"".join(f"<div>{escape(line)}</div>" for line in more.get(key, ()))}</div></div>'
        for key, (label, text) in _CARDS.items()
        if key in numbers
    )
    return f'<section class="cards">{cards}</section>' if cards else ""


def _beside(run: LoggedRun) -> dict[str, list[str]]:
    """What a number is to be compared with."""
    lines: dict[str, list[str]] = {}
    if (interval := run_plots.knn_interval(run)) is not None:
        lines["knn_accuracy"] = [f"95 %: {100 * interval[0]:.1f} to {100 * interval[1]:.1f}"]
    if "knn_top5" in run.arrays:
        lines.setdefault("knn_accuracy", []).append(f"top-5 {percent(float(run.arrays['knn_top5'][0]))}")
    for name, value in run_plots.references(run).items():
        lines.setdefault("knn_accuracy", []).append(f"{name} {percent(value)}")
    if "effective_rank_before" in run.result:
        lines["effective_rank"] = [f"before training {run.result['effective_rank_before']:.1f}"]
    if "mask_final" in run.arrays:
        lines["mask_std"] = [f"of {len(run.arrays['mask_final'])} weights"]
    return lines


def results_table(title: str, rows: list[dict[str, Any]]) -> str:
    """Accuracies, or remarks in their place, by name, with the best of each column marked.

    Args:
      title: of the table.
      rows: each with a `name`, of which what follows ` · ` is set below it, or below the table if all have it; the
        others are a number, a remark, None, or an accuracy with `top1`, `interval`, `top5`.
    """
    columns = list(dict.fromkeys(key for row in rows for key in row if key != "name"))
    if not columns:
        return ""
    best = {key: max(filter(None, (_top1(row.get(key)) for row in rows)), default=None) for key in columns}
    titles = {"knn": "kNN", "linear": "Linear probe", "h*m": "h*m, masked", "h": "h, not masked"}
    head = "".join(f"<th>{escape(titles.get(key, key))}</th>" for key in ("", *columns))
    names = [str(row.get("name", "")).partition(" · ") for row in rows]
    shared = names[0][2] if len({more for _, _, more in names}) == 1 else ""
    body = "".join(
        f"<tr><td>{escape(name)}{remarks([] if shared else [more])}</td>"
        + "".join(_result_cell(row.get(key), best[key]) for key in columns)
        + "</tr>"
        for row, (name, _, more) in zip(rows, names, strict=True)
    )
    caption = f"<figcaption>{escape(shared)}</figcaption>" if shared else ""
    return (
        f'<figure class="panel table"><h3>{title}</h3><div class="scroll">'
        f'<table class="results"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{caption}</figure>'
    )


def _top1(value: Any) -> float | None:
    found = value.get("top1") if isinstance(value, dict) else value
    return float(found) if isinstance(found, int | float) else None


def _result_cell(value: Any, best: float | None) -> str:
    top1 = _top1(value)
    if top1 is None:
        return f"<td>{escape(value) if isinstance(value, str) else '&mdash;'}</td>"
    parts = []
    if isinstance(value, dict):
        if value.get("interval"):
            parts.append("{:.1f} to {:.1f}".format(*(100 * bound for bound in value["interval"])))
        if value.get("top5") is not None:
            parts.append(f"top-5 {percent(value['top5'])}")
    mark = "best" if top1 == best else "other"
    return f'<td class="{mark}" style="--share: {100 * top1:.1f}%">{percent(top1)}{remarks(parts)}</td>'


def _config(config: dict[str, Any]) -> str:
    """The configuration by section, folded."""
    if not config:
        return ""
    sections: dict[str, list[tuple[str, Any]]] = {}
    for key, value in config.items():
        group, _, name = key.partition(".")
        sections.setdefault(group, []).append((name, value))
    tables = "".join(
        f'<table><thead><tr><th colspan="2">{escape(group)}</th></tr></thead><tbody>'
        + "".join(f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>" for name, value in sorted(rows))
        + "</tbody></table>"
        for group, rows in sorted(sections.items())
    )
    return f'<details><summary>Configuration</summary><div class="groups">{tables}</div></details>'
