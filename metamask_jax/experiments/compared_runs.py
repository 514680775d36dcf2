"""SimCLR, Barlow Twins and what MetaMask adds to both: the runs that many experiments compare."""

from collections.abc import Sequence

from metamask_jax.experiments.base import Cell, Labels
from metamask_jax.experiments.scales import Scale

# Name in the tables -> method and variant.
RUNS = {
    "SimCLR": ("simclr", "alone"),
    "Barlow Twins": ("barlow_twins", "alone"),
    "SimCLR + Barlow Twins": ("simclr", "without_meta"),
    "MetaMask w/o drr": ("simclr", "without_drr"),
    "MetaMask": ("simclr", "metamask"),
}
COMPARED = ("SimCLR", "Barlow Twins", "SimCLR + Barlow Twins", "MetaMask")


def compared_cells(
    scale: Scale, names: Sequence[str], measures: tuple[str, ...], labels: Labels | None = None, /, **config: str
) -> list[Cell]:
    """One cell per name.

    Args:
      scale: of the experiment.
      names: of `RUNS`.
      measures: to take.
      labels: beside `run`, the name.
      config: what `Scale.config` takes beside method and variant.
    """
    return [
        Cell(
            {"run": name, **(labels or {})},
            scale.config(method=RUNS[name][0], variant=RUNS[name][1], **config),
            measures,
        )
        for name in names
    ]
