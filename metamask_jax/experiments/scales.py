"""Sizes at which the experiments run: the paper's own, two for two CPU cores, and one for tests."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ml_collections import ConfigDict

from metamask_jax.config import VARIANTS, apply_overrides, recipes
from metamask_jax.errors import ConfigError


class Scale(NamedTuple):
    """How large an experiment is.

    Attributes:
      name: on the command line.
      stated: what it is, for the caption of every table.
      seeds: how many, unless told.
      base: `(method, dataset, encoder) -> config` of a method with MetaMask.
      datasets: those it has of the paper's.
      encoder: the one in place of the paper's ResNet-18.
      widths: of projection heads, where an experiment varies them.
    """

    name: str
    stated: str
    seeds: int
    base: Callable[[str, str, str], ConfigDict]
    datasets: tuple[str, ...]
    encoder: str
    widths: tuple[int, ...]

    def config(
        self,
        *,
        dataset: str = "cifar10",
        encoder: str | None = None,
        method: str = "simclr",
        variant: str = "metamask",
        **overrides: str,
    ) -> ConfigDict:
        """A cell's configuration; keys of `overrides` have `__` for the dot."""
        config = VARIANTS[variant](self.base(method, dataset, self.encoder if encoder is None else encoder))
        return apply_overrides(config, {key.replace("__", "."): value for key, value in overrides.items()})


def _full(method: str, dataset: str, encoder: str) -> ConfigDict:
    """The settings of configs/table1.py, configs/table2.py and configs/imagenet_resnet50.py."""
    if encoder == "resnet50":
        config = recipes.imagenet(method)
    elif encoder == "resnet18":
        config = recipes.table2(method, dataset)
    else:
        config = recipes.table1(method, dataset, encoder)
    config.eval.every_epochs = 0  # the measures come after the run
    return config


def _cpu(method: str, dataset: str, encoder: str) -> ConfigDict:
    """The settings of configs/cifar10_small.py on fewer steps."""
    config = recipes.short_run(method, dataset)
    config.train.update(batch_size=64, steps=160)
    config.data.size = 5000
    if method == "cmc":  # whose memories are of use once it has met each image many times
        config.train.steps, config.data.size = 320, 500
    config.encoder.name = encoder
    config.eval.size = 5000
    config.checkpoint.keep_last = 1
    config.log.update(every_steps=20, tensorboard=False)
    return config


def _day(method: str, dataset: str, encoder: str) -> ConfigDict:
    """All images and a narrow ResNet-18: about an hour for a run without mask learning, a day or so for a grid."""
    config = recipes.short_run(method, dataset)
    config.train.update(batch_size=256, epochs=24)
    config.data.image_size = 32
    config.encoder.update(name=encoder, width=0.25)
    config.eval.every_epochs = 3  # of all images, which takes a fifth of an epoch's time
    config.checkpoint.update(every_steps=100, keep_last=1)  # a kill costs a minute
    config.log.update(every_steps=50, tensorboard=False)
    return config


def _smoke(method: str, dataset: str, encoder: str) -> ConfigDict:
    """Two steps on a handful of images: that the machinery turns, not that anything is learned."""
    del dataset
    config = _cpu(method, "confounded_shapes", encoder)
    config.train.update(batch_size=8, steps=2)
    config.data.size = 32
    with config.data.options.unlocked():
        config.data.options.update(train_size=64, test_size=32)
    config.encoder.width = 0.0625
    config.method.head = (16, 8)
    config.loss.drr_head = (16,)
    config.eval.size = 64
    return config


SCALES: Mapping[str, Scale] = {
    "full": Scale(
        name="full",
        stated="the paper's setting",
        seeds=5,
        base=_full,
        datasets=(*recipes.DATASETS, "imagenet2012"),
        encoder="resnet18",
        widths=(512, 1024, 2048, 4096, 8192, 16384),
    ),
    "cpu": Scale(
        name="cpu",
        stated="miniature: 5,000 images at 24 pixels, `conv` of width 1/8, batch 64, 160 steps (CMC: 500 images, "
        "320 steps); kNN among 5,000 training images, up to 5,000 test images",
        seeds=3,
        base=_cpu,
        datasets=("cifar10", "cifar100"),
        encoder="conv",
        widths=(32, 128, 512, 2048),
    ),
    "day": Scale(
        name="day",
        stated="all 50,000 images at 32 pixels, ResNet-18 of width 1/4 (128 dimensions), batch 256, 24 epochs; kNN and "
        "linear from all training images, 10,000 test images",
        seeds=3,
        base=_day,
        datasets=("cifar10", "cifar100"),
        encoder="resnet18",
        widths=(32, 128, 512, 2048),
    ),
    "smoke": Scale(
        name="smoke",
        stated="smoke test: two steps on 32 images",
        seeds=1,
        base=_smoke,
        datasets=("cifar10",),
        encoder="conv",
        widths=(8, 16),
    ),
}


def scale_named(name: str) -> Scale:
    """The scale of that name."""
    if name not in SCALES:
        raise ConfigError(f"--scale {name}; expected one of {', '.join(SCALES)}")
    return SCALES[name]
