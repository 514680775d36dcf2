"""SimCLR + MetaMask on STL-10's unlabelled images with ResNet-18; kNN on its labelled splits.

    python run_pretrain.py --config configs/stl10.py --workdir runs/stl10

At 96 pixels the ImageNet stem keeps the cost of a step near that of CIFAR. Not run yet: no result is claimed.
"""

from ml_collections import ConfigDict

from metamask_jax.config import default_config


def get_config() -> ConfigDict:
    """What differs from the defaults."""
    config = default_config()
    config.train.update(batch_size=512, epochs=200)
    config.data.update(name="stl10", image_size=96)
    config.encoder.stem = "imagenet"
    return config
