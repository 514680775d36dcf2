"""Several evaluated working directories in one table: runs that differ only in their seed are one column."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from metamask_jax.core.places import Place, to_place
from metamask_jax.errors import ConfigError
from metamask_jax.evaluate.evaluation import read_results
from metamask_jax.evaluate.workdir import read_config
from metamask_jax.experiments.base import Table
from metamask_jax.experiments.identity import folder_name
from metamask_jax.experiments.statistics import difference_text, mean_text, paired_difference

Row = tuple[str, str, str, int, int, int]  # protocol, features, dataset, training and test images, seed of the protocol


class _Group(NamedTuple):
    """Runs of one configuration.

    Attributes:
      names: of their working directories.
      accuracies: top-1 by what was measured, then by the seed of the run.
    """

    names: list[str]
    accuracies: dict[Row, dict[int, float]]


def compare(workdirs: Sequence[str]) -> Table:
    """The results of several working directories, and how the others differ from the first.

    Directories whose configurations differ only in the seed are taken together: mean, standard deviation, and for the
    differences a 95 % interval over the seeds that both have (Student's t). Of several steps the newest counts.

    Args:
      workdirs: evaluated before; nothing is computed.

    Raises:
      ConfigError: a folder is no working directory, has no results, or is the same run as another.
    """
    groups: dict[str, _Group] = {}
    for workdir in map(to_place, workdirs):
        config = read_config(workdir)
        group = groups.setdefault(_without_seed(config), _Group([], {}))
        group.names.append(workdir.resolve().name)
        for row, top1 in _top1(workdir).items():
            seeds = group.accuracies.setdefault(row, {})
            if config.train.seed in seeds:
                raise ConfigError(
                    f"--compare {workdir} is the same run as another one, seed {config.train.seed} included; expected "
                    "every run once"
                )
            seeds[config.train.seed] = top1
    return _table(list(groups.values()))


def _without_seed(config: ConfigDict) -> str:
    config = config.copy_and_resolve_references()
    config.train.seed = 0
    return folder_name(config)


def _top1(workdir: Place) -> dict[Row, float]:
    """The newest results of a working directory."""
    results = read_results(workdir)
    if not results:
        raise ConfigError(f"--compare {workdir} has no results; expected runs evaluated before, without --compare")
    found: dict[Row, float] = {}
    for entry in sorted(results, key=lambda entry: int(entry["step"])):
        for kind in (entry["features"], *entry.get("same_for", ())):
            found[_row(entry, kind)] = entry["top1"]
    return found


def _row(entry: dict[str, Any], kind: str) -> Row:
    sizes = entry["train_size"], entry["test_size"]
    return entry["protocol"], kind, entry["dataset"], *sizes, entry["seed"]


def _table(groups: Sequence[_Group]) -> Table:
    first, *others = groups
    names = [_common_start(group.names) for group in groups]
    header = ["protocol", "features", "dataset", "training images", names[0]]
    for name in names[1:]:
        header += [name, f"{name} - {names[0]}"]
    rows = []
    for row in dict.fromkeys(row for group in groups for row in group.accuracies):
        base = first.accuracies.get(row, {})
        cells = [*map(str, row[:4]), mean_text(base)]
        for group in others:
            values = group.accuracies.get(row, {})
            cells += [mean_text(values), difference_text(paired_difference(values, base))]
        rows.append(cells)
    caption = "Top-1 in percent, mean ± standard deviation (seeds); differences with 95 % intervals over common seeds:"
    return Table(caption, header, rows)


def _common_start(names: Sequence[str]) -> str:
    """What names have in common, such as `base` of `base-0` and `base-1`."""
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in same).rstrip("-_. ") or names[0]
