"""SimCLR + MetaMask on CIFAR-10 with ResNet-18: the authors' program, or the paper to the letter.

    python run_pretrain.py --config configs/cifar10_resnet18.py:official --workdir runs/cifar10_official
    python run_pretrain.py --config configs/cifar10_resnet18.py:paper --workdir runs/cifar10_paper

`official` is every choice of the authors' published program, the finite-difference meta-gradient included
(`--config.meta.estimator=exact` is ours); it reports 86.01 % kNN, best epoch on the test set. 800 epochs are for
accelerators; not run to the end yet.
"""

from ml_collections import ConfigDict

from metamask_jax.config import default_config, official, paper
from metamask_jax.errors import ConfigError


def get_config(preset: str = "official") -> ConfigDict:
    """What differs from the defaults; `preset` is `official` or `paper`."""
    config = default_config()
    config.train.update(batch_size=512, epochs=800)
    config.data.name = "cifar10"
    if preset == "official":
        return official(config)
    if preset == "paper":
        config.data.augmentation = "barlow"
        return paper(config)
    raise ConfigError(f"preset={preset!r}; expected 'official' or 'paper'")
