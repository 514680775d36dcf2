"""What the configurations of the paper's tables share: datasets, and arguments such as `byol,cifar10,alone`."""

from collections.abc import Iterable
from typing import NamedTuple

from ml_collections import ConfigDict

from metamask_jax.config import ConfigError


class Dataset(NamedTuple):
    """A dataset of the paper.

    Attributes:
      image_size: of its pictures.
      pretrain_size: number of pictures to pretrain on.
    """

    image_size: int
    pretrain_size: int


DATASETS = {
    "cifar10": Dataset(32, 50_000),
    "cifar100": Dataset(32, 50_000),
    "stl10": Dataset(96, 100_000),  # the unlabelled ones
    "tiny_imagenet": Dataset(64, 100_000),  # the paper's IN-200
}


def set_dataset(config: ConfigDict, name: str) -> None:
    """Trains on one of `DATASETS`."""
    config.data.update(name=name, image_size=DATASETS[name].image_size)
    if config.method.name == "cmc":
        config.data.size = DATASETS[name].pretrain_size  # it remembers each of them


def parse(argument: str, **allowed: Iterable[str]) -> tuple[str, ...]:
    """Splits a config file's argument into its parts, each one of those allowed; parts left out are the first allowed.

    Example:
      >>> parse("byol,cifar100", method=("simclr", "byol"), dataset=("cifar10", "cifar100"), encoder=("conv", "fc"))
      ('byol', 'cifar100', 'conv')
    """
    given = argument.split(",") if argument else []
    if len(given) > len(allowed):
        raise ConfigError(f"argument={argument!r}; expected at most {','.join(allowed).upper()}")
    parts = []
    for i, (name, choices) in enumerate(allowed.items()):
        choices = tuple(choices)
        part = given[i] if i < len(given) else choices[0]
        if part not in choices:
            raise ConfigError(f"{name}={part!r}; expected one of {', '.join(map(repr, choices))}")
        parts.append(part)
    return tuple(parts)
