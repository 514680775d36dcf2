"""SimCLR + MetaMask on CIFAR-10 with the five AlexNet convolutions, the paper's conv/fc table.

    python run_pretrain.py --config configs/cifar10_conv.py --workdir runs/cifar10_conv

Batch 64 is the paper's; it gives neither epochs nor learning rate, so 200 epochs and 0.03 are ours, and SimCLR's
augmentations stand in for CMC's. Not run to the end yet: no result is claimed.
"""

from ml_collections import ConfigDict

from metamask_jax.config import default_config


def get_config() -> ConfigDict:
    """What differs from the defaults."""
    config = default_config()
    config.train.update(batch_size=64, epochs=200)
    config.data.name = "cifar10"
    config.encoder.name = "conv"
    config.optimizer.update(learning_rate=0.03, schedule="cosine")
    return config
