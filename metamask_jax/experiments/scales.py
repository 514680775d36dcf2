"""Sizes at which the experiments run: the paper's own, a miniature for two CPU cores, and one for tests."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ml_collections import ConfigDict

from metamask_jax.config import VARIANTS, ConfigError, apply_overrides, default_config

IMAGE_SIZES = {"cifar10": 32, "cifar100": 32, "stl10": 96, "tiny_imagenet": 64, "imagenet2012": 224}
_FREE = {"log.tensorboard": "False", "eval.every_epochs": "0"}


class Scale(NamedTuple):
    """How large an experiment is.

    Attributes:
      name: on the command line.
      stated: what it is, for the caption of every table.
      seeds: how many, unless told.
      datasets: of those an experiment names, the ones used.
      resnet: whether grids over encoders include ResNets.
      base: `(dataset, encoder) -> config` of SimCLR + MetaMask.
      widths: of projection heads, where an experiment varies them.
      masks: random masks for each rate.
    """

    name: str
    stated: str
    seeds: int
    datasets: tuple[str, ...]
    resnet: bool
    base: Callable[[str, str], ConfigDict]
    widths: tuple[int, ...]
    masks: int

    def config(
        self,
        *,
        dataset: str = "cifar10",
        encoder: str = "conv",
        method: str = "simclr",
        variant: str = "metamask",
        **overrides: str,
    ) -> ConfigDict:
        """A cell's configuration; keys of `overrides` have `__` for the dot."""
        config = self.base(dataset, encoder)
        config.method.name = method
        config = VARIANTS[variant](config)
        return apply_overrides(config, {key.replace("__", "."): value for key, value in overrides.items()})


def _full(dataset: str, encoder: str) -> ConfigDict:
    """The paper's settings; epochs and learning rate of conv/fc are ours, the paper gives none."""
    config = _dataset(default_config(), dataset)
    config.encoder.name = encoder
    if encoder in ("conv", "fc"):
        config.train.update(batch_size=64, epochs=200)
        config.data.augmentation = "cmc"
        config.method.bank_size = 4096
        config.optimizer.update(learning_rate=0.03, schedule="cosine")
    else:
        config.train.update(batch_size=512, epochs=800)
        config.data.augmentation = "barlow"
    if dataset == "imagenet2012":
        config.train.update(batch_size=4096, epochs=100, dtype="bfloat16", remat=True)
        with config.data.options.unlocked():
            config.data.options.update(image_size=224, views=2)
        config.encoder.stem = "imagenet"
    return apply_overrides(config, _FREE)


def _cpu(dataset: str, encoder: str) -> ConfigDict:
    """The first 5,000 images, a narrow encoder, a few epochs; a mask rate at which the mask moves in that time."""
    config = _dataset(default_config(), dataset)
    config.train.update(batch_size=64, steps=240)
    config.data.size = 2000 if dataset == "tiny_imagenet" else 5000
    if dataset == "confounded_shapes":
        config.data.augmentation = "shapes"
    config.encoder.update(name=encoder, width=0.125)
    config.method.update(head=(256, 64), temperature=0.2)
    config.loss.drr_head = (256, 256)
    config.optimizer.update(
        name="adamw", learning_rate=3e-3, decay_norm_and_bias=False, schedule="cosine", warmup_epochs=0.5
    )
    config.mask.update(learning_rate=0.1, weight_decay=0.0, schedule="constant")
    config.meta.update(trial="gradient", learning_rate=0.01, head_learning_rate=0.01)
    config.eval.size = 5000
    return apply_overrides(config, _FREE | {"checkpoint.keep_last": "1", "log.every_steps": "20"})


def _smoke(dataset: str, encoder: str) -> ConfigDict:
    """Two steps on a handful of images: that the machinery turns, not that anything is learned."""
    del dataset
    config = _cpu("confounded_shapes", encoder)
    config.train.update(batch_size=8, steps=2)
    config.data.size = 32
    with config.data.options.unlocked():
        config.data.options.update(train_size=64, test_size=32)
    config.encoder.width = 0.0625
    config.method.head = (16, 8)
    config.loss.drr_head = (16,)
    config.eval.size = 32
    return config


def _dataset(config: ConfigDict, name: str) -> ConfigDict:
    config.data.update(name=name, image_size=IMAGE_SIZES.get(name, 32))
    return config


SCALES: Mapping[str, Scale] = {
    "full": Scale(
        name="full",
        stated="the paper's setting",
        seeds=5,
        datasets=("cifar10", "cifar100", "stl10", "tiny_imagenet", "imagenet2012"),
        resnet=True,
        base=_full,
        widths=(512, 1024, 2048, 4096, 8192, 16384),
        masks=10,
    ),
    "cpu": Scale(
        name="cpu",
        stated="miniature: 5,000 images, encoder width 1/8, batch 64, 240 steps, kNN against 5,000 training images",
        seeds=3,
        datasets=("cifar10", "cifar100"),
        resnet=True,
        base=_cpu,
        widths=(32, 128, 512, 2048),
        masks=10,
    ),
    "smoke": Scale(
        name="smoke",
        stated="smoke test: two steps on 32 images",
        seeds=1,
        datasets=("cifar10",),
        resnet=False,
        base=_smoke,
        widths=(8, 16),
        masks=2,
    ),
}


def scale_named(name: str) -> Scale:
    """The scale of that name."""
    if name not in SCALES:
        raise ConfigError(f"--scale {name}; expected one of {', '.join(SCALES)}")
    return SCALES[name]
