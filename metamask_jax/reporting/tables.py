"""Results of an evaluation as text: for the terminal, and as Markdown."""

from collections.abc import Sequence
from typing import Any

Entry = dict[str, Any]
FEATURES = ("h", "h*m")


def terminal_table(results: Sequence[Entry]) -> str:
    """One line a protocol: accuracy with its 95 % interval, and top-5, of unmasked and masked features."""
    lines = [f"{'':18}{'top-1 of h':>24}{'top-5':>8}{'top-1 of h*m':>26}{'top-5':>8}"]
    for (protocol, *_), kinds in _by(results, ("protocol", "step", "dataset", "train_size", "seed")).items():
        first, second = (_cells(kinds.get(kind)) for kind in FEATURES)
        lines.append(f"{protocol:18}{first[0]:>24}{first[1]:>8}{second[0]:>26}{second[1]:>8}")
    return "\n".join(lines)


def markdown_table(results: Sequence[Entry], *, name: str) -> str:
    """One row for each step, dataset and kind of features, one column a protocol: top-1 in percent."""
    protocols = list(dict.fromkeys(entry["protocol"] for entry in results))
    rows: dict[tuple[Any, ...], dict[str, float]] = {}
    for entry in results:
        key = (entry["step"], entry["dataset"], entry["train_size"], entry["seed"], entry["features"])
        rows.setdefault(key, {})[entry["protocol"]] = entry["top1"]
    head = ["run", "step", "dataset", "training images", "seed", "features", *protocols]
    lines = [_row(head), _row(["---"] * len(head))]
    for key, accuracies in rows.items():
        cells = [f"{100 * accuracies[p]:.2f}" if p in accuracies else "" for p in protocols]
        lines.append(_row([name, *map(str, key), *cells]))
    return "\n".join(lines) + "\n"


def report_rows(results: Sequence[Entry]) -> list[dict[str, Any]]:
    """One row a protocol for the report: its name and the accuracies of both kinds of features."""
    return [
        {"name": f"{protocol} · {dataset}, {train_size} images · step {step}"}
        | {kind: kinds[kind]["top1"] for kind in FEATURES if kind in kinds}
        for (protocol, step, dataset, train_size, _), kinds in _by(
            results, ("protocol", "step", "dataset", "train_size", "seed")
        ).items()
    ]


def _by(results: Sequence[Entry], keys: Sequence[str]) -> dict[tuple[Any, ...], dict[str, Entry]]:
    """Results by the values of some keys, then by the kind of features."""
    groups: dict[tuple[Any, ...], dict[str, Entry]] = {}
    for entry in results:
        groups.setdefault(tuple(entry[key] for key in keys), {})[entry["features"]] = entry
    return groups


def _cells(entry: Entry | None) -> tuple[str, str]:
    if entry is None:
        return "-", "-"
    low, high = entry["interval"]
    top5 = "-" if entry["top5"] is None else f"{entry['top5']:.1%}"
    return f"{entry['top1']:.2%} [{100 * low:.1f}, {100 * high:.1f}]", top5


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
