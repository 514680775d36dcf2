"""Reads what a run has left, in whatever condition: what is missing is empty, what is damaged is left out and noted."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from metamask_jax.config import flatten
from metamask_jax.core.places import Place
from metamask_jax.core.storage import read_json_lines
from metamask_jax.errors import one_line
from metamask_jax.reporting.arrays import LARGEST, read_arrays
from metamask_jax.reporting.run_plots import Curve, LoggedRun
from metamask_jax.reporting.tables import report_rows


def read_run(folder: Place) -> LoggedRun:
    """Reads a workdir; what is missing is empty, what is damaged is noted."""
    notes: list[str] = []

    def read(name: str, reader: Callable[[Place], dict[str, Any]]) -> dict[str, Any]:
        try:
            return reader(folder / name)
        except FileNotFoundError:
            return {}
        except Exception as error:  # what is in a damaged file fails in any way
            notes.append(f"{name} could not be read: {one_line(error)}")
            return {}

    return LoggedRun(
        name=folder.resolve().name,
        config=read("config.json", lambda path: flatten(_object(path))),
        curves=read("metrics.jsonl", _curves),
        result=read("result.json", _result),
        arrays=read("report.npz", read_arrays),
        evaluation=read("evaluation.json", _evaluation),
        notes=notes,
    )


def _object(path: Place) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}; expected an object")
    return found


def _is_number(value: Any) -> bool:
    """Whether it can be drawn and printed; NaN is not smaller than anything."""
    return isinstance(value, int | float) and abs(value) < LARGEST


def _curves(path: Place) -> dict[str, Curve]:
    """Every metric's steps and values, without those that are not finite; damaged lines are left out."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in read_json_lines(path):
        for key, value in row.items():
            if key != "step" and _is_number(value) and abs(row["step"]) < 2**63:
                points.setdefault(key, []).append((row["step"], value))
    return {key: Curve(*map(np.array, zip(*pairs, strict=True))) for key, pairs in points.items()}


def _result(path: Place) -> dict[str, Any]:
    """Final numbers, and the rows of a table."""
    found = _object(path)
    rows = found.get("table", [])
    if not isinstance(rows, list) or not all(map(_is_row, rows)):
        raise ValueError("its table has no rows of names and numbers")
    return {key: value for key, value in found.items() if _is_number(value)} | {"table": rows}


def _is_row(row: Any) -> bool:
    """Whether it has a name and, beside it, numbers, remarks or nothing."""
    return isinstance(row, dict) and all(
        isinstance(value, str) or (key != "name" and (value is None or _is_number(value))) for key, value in row.items()
    )


def _evaluation(path: Place) -> dict[str, Any]:
    try:
        rows = report_rows(_object(path)["results"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no results of an evaluation ({error!r})") from error
    if not all(_is_row({key: _accuracy(value) for key, value in row.items()}) for row in rows):
        raise ValueError("no results of an evaluation (an accuracy is no number)")
    return {"rows": rows}


def _accuracy(value: Any) -> Any:
    """The accuracy of an entry whose other numbers are numbers, too; a remark as it is."""
    if not isinstance(value, dict):
        return value
    interval, top5 = value["interval"], value["top5"]
    good = interval is None or (isinstance(interval, list) and len(interval) == 2 and all(map(_is_number, interval)))
    return value["top1"] if good and (top5 is None or _is_number(top5)) else []
