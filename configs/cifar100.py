"""SimCLR + MetaMask on CIFAR-100 with ResNet-18, hyper-parameters carried over from CIFAR-10.

    python run_pretrain.py --config configs/cifar100.py --workdir runs/cifar100

Not run to the end yet: no result is claimed.
"""

from ml_collections import ConfigDict

from metamask_jax.config import default_config


def get_config() -> ConfigDict:
    """What differs from the defaults."""
    config = default_config()
    config.train.update(batch_size=512, epochs=800)
    config.data.name = "cifar100"
    return config
