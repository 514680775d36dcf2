"""SimCLR + MetaMask on Tiny-ImageNet-200, the paper's IN-200, with ResNet-18.

    python run_pretrain.py --config configs/tiny_imagenet.py --workdir runs/tiny_imagenet

An archive already on disk is used by `--config.data.options.path=tiny-imagenet-200.zip`.

Not run to the end yet: no result is claimed.
"""

from ml_collections import ConfigDict

from metamask_jax.config import default_config


def get_config() -> ConfigDict:
    """What differs from the defaults."""
    config = default_config()
    config.train.update(batch_size=512, epochs=800)
    config.data.update(name="tiny_imagenet", image_size=64)
    return config
