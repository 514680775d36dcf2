"""SimCLR + MetaMask on the first 5,000 images of CIFAR-10 with a narrow `conv` encoder: minutes on two CPU cores.

    python run_pretrain.py --config configs/cifar10_small.py --workdir runs/cifar10_small

Ten epochs; docs/results.md has what came out.
"""

from ml_collections import ConfigDict

from metamask_jax.config import default_config


def get_config() -> ConfigDict:
    """What differs from the defaults."""
    config = default_config()
    config.train.update(batch_size=128, epochs=10)
    config.data.update(name="cifar10", size=5000)
    config.encoder.update(name="conv", width=0.125)
    config.method.update(temperature=0.2, head=(256, 64))
    config.loss.drr_head = (256, 256)
    config.optimizer.update(
        name="adamw", learning_rate=3e-3, decay_norm_and_bias=False, schedule="cosine", warmup_epochs=0.5
    )
    # At the authors' 1e-3 the mask would hardly move in a run this short.
    config.mask.update(learning_rate=0.1, weight_decay=0.0, schedule="constant")
    config.meta.update(trial="gradient", learning_rate=0.01, head_learning_rate=0.01)
    config.eval.every_epochs = 0  # at the end only
    return config
