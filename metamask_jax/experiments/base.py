"""What an experiment is: cells to train and measure, and how to draw what came out."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Label = str | float
Labels = Mapping[str, Label]


class Cell(NamedTuple):
    """One configuration to pretrain, once for each seed.

    Attributes:
      labels: its coordinates in the grid, such as `{"method": "simclr", "variant": "alone"}`.
      config: the configuration; the runner sets the seed.
      measures: names in `measures.MEASURES` of what to measure afterwards.
    """

    labels: Labels
    config: ConfigDict
    measures: tuple[str, ...]


class Result(NamedTuple):
    """What was measured of one cell with one seed.

    Attributes:
      labels: of the cell.
      seed: of the run.
      values: numbers or lists of numbers by `measure.quantity`.
    """

    labels: Labels
    seed: int
    values: dict[str, Any]


class Results(NamedTuple):
    """All finished cells of an experiment."""

    items: Sequence[Result]

    def where(self, **labels: Label) -> "Results":
        """Those with the given labels."""
        return Results([r for r in self.items if all(r.labels.get(k) == v for k, v in labels.items())])

    def of(self, quantity: str) -> dict[int, Any]:
        """One quantity by seed; the labels must leave one cell."""
        return {r.seed: r.values[quantity] for r in sorted(self.items, key=lambda r: r.seed) if quantity in r.values}

    def stacked(self, quantity: str) -> np.ndarray:
        """One quantity, [seeds, ...]."""
        return np.array(list(self.of(quantity).values()))

    def levels(self, label: str) -> list[Label]:
        """The values a label takes, in the order of the grid."""
        return list(dict.fromkeys(r.labels[label] for r in self.items if label in r.labels))


class Table(NamedTuple):
    """A table of text, with what it shows as its caption."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


class Report(NamedTuple):
    """What an experiment shows.

    Attributes:
      tables: in their order.
      figures: by file name, without suffix.
    """

    tables: Sequence[Table]
    figures: Mapping[str, "Figure"]


class Experiment(NamedTuple):
    """A table or figure of the paper, or a question of our own.

    Attributes:
      title: in one line.
      source: where it is in the paper.
      cells: the grid at a scale: `(scale) -> cells`.
      report: how to show the results.
      stated: by scale, in words, where its setting differs from that of the scale.
      first_seed: those before it were seen by the experiment that this one repeats.
    """

    title: str
    source: str
    cells: Callable[[Any], list[Cell]]
    report: Callable[[Results], Report]
    stated: Mapping[str, str] = MappingProxyType({})
    first_seed: int = 0
