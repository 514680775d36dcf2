"""Results of an evaluation as text: for the terminal, as Markdown, and as rows of the report."""

from collections.abc import Sequence
from typing import Any

Entry = dict[str, Any]
FEATURES = ("h", "h*m")


def terminal_table(results: Sequence[Entry]) -> str:
    """One line per protocol: accuracy with its 95 % interval, and top-5, of unmasked and masked features."""
    lines = [f"{'':17}{'top-1 of h':>21}{'top-5':>8}{'top-1 of h*m':>23}{'top-5':>8}"]  # a terminal has 80 columns
    for (protocol, *_), kinds in _by(results, ("protocol", "step", "dataset", "train_size", "seed")).items():
        first, second = (_cells(kinds.get(kind)) for kind in FEATURES)
        lines.append(f"{protocol:17}{first[0]:>21}{first[1]:>8}{second[0]:>23}{second[1]:>8}")
    return "\n".join(lines)


def markdown_table(results: Sequence[Entry], *, name: str) -> str:
    """One row for each step, dataset and kind of features, one column per protocol: top-1 in percent."""
    protocols = list(dict.fromkeys(entry["protocol"] for entry in results))
    rows: dict[tuple[Any, ...], dict[str, str]] = {}
    for key, kinds in _by(results, ("step", "dataset", "train_size", "seed", "protocol")).items():
        for kind, found in kinds.items():
            text = found if isinstance(found, str) else f"{100 * found['top1']:.2f}"
            rows.setdefault((*key[:-1], kind), {})[key[-1]] = text
    head = ["run", "step", "dataset", "training images", "seed", "features", *protocols]
    lines = [markdown_row(head), markdown_row(["---"] * len(head))]
    for row, accuracies in rows.items():
        lines.append(markdown_row([name, *map(str, row), *(accuracies.get(p, "") for p in protocols)]))
    return "\n".join(lines) + "\n"


def report_rows(results: Sequence[Entry]) -> list[dict[str, Any]]:
    """One row per protocol for the report: its name, and for each kind of features a remark or an accuracy.

    An accuracy is `top1` with its `interval` and `top5`, None where they are not known.
    """
    rows = []
    groups = _by(results, ("protocol", "step", "dataset", "train_size", "seed"))
    for (protocol, step, dataset, train_size, _), kinds in groups.items():
        row: dict[str, Any] = {"name": f"{protocol} · {dataset}, {train_size} images · step {step}"}
        known = ((kind, kinds[kind]) for kind in FEATURES if kind in kinds)
        rows.append(row | {kind: found if isinstance(found, str) else _numbers(found) for kind, found in known})
    return rows


def _numbers(entry: Entry) -> Entry:
    return {"top1": entry["top1"], "interval": entry.get("interval"), "top5": entry.get("top5")}


def markdown_row(cells: Sequence[str]) -> str:
    r"""A row of a Markdown table; a bar within a cell is escaped.

    Example:
      >>> print(markdown_row(["a|b", "c"]))
      | a\|b | c |
    """
    return f"| {' | '.join(map(markdown_cell, cells))} |"


def markdown_cell(text: str) -> str:
    """Text as a cell of a Markdown table, where a bar would end the cell."""
    return text.replace("|", r"\|")


def _by(results: Sequence[Entry], keys: Sequence[str]) -> dict[tuple[Any, ...], dict[str, Entry | str]]:
    """Results by the values of some keys, then by the kind of features.

    A kind whose result is that of another by construction has a remark such as `= h` in place of an entry.
    """
    groups: dict[tuple[Any, ...], dict[str, Entry | str]] = {}
    for entry in results:
        group = groups.setdefault(tuple(entry[key] for key in keys), {})
        group[entry["features"]] = entry
        for other in entry.get("same_for", ()):
            group[other] = f"= {entry['features']}"
    return groups


def _cells(found: Entry | str | None) -> tuple[str, str]:
    if found is None or isinstance(found, str):
        return (found or "-",) * 2
    low, high = found["interval"]
    top5 = "-" if found["top5"] is None else f"{found['top5']:.1%}"
    return f"{found['top1']:.2%} [{100 * low:.1f}, {100 * high:.1f}]", top5
