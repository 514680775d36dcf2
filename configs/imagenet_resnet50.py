"""SimCLR + MetaMask on ImageNet with ResNet-50, hyper-parameters carried over as in the paper, for GPU or TPU pods.

    python run_pretrain.py --config configs/imagenet_resnet50.py --workdir runs/imagenet

The paper gives neither batch nor epochs nor optimiser; LARS at batch 4096 follows SimCLR. Not run yet:
no result is claimed.
"""

from ml_collections import ConfigDict

from metamask_jax.config import recipes


def get_config() -> ConfigDict:
    """What differs from the defaults."""
    return recipes.imagenet("simclr")
