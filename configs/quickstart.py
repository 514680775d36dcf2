"""MetaMask on the embedded confounded shapes with a small `conv` encoder: no download, two CPU cores.

python run_pretrain.py
"""

from ml_collections import ConfigDict

from metamask_jax.config import default_config


def get_config() -> ConfigDict:
    """What differs from the defaults."""
    config = default_config()
    config.train.update(batch_size=128, epochs=8)
    config.data.dir = "runs/data"
    config.encoder.update(name="conv", width=0.25)
    config.method.update(temperature=0.2, head=(256, 64))
    config.loss.drr_head = (256, 256)
    config.optimizer.update(learning_rate=0.05, schedule="cosine", warmup_epochs=1.0)
    # At the authors' 1e-3 the mask would hardly move in a run this short.
    config.mask.update(learning_rate=1.0, weight_decay=0.0, schedule="constant")
    config.meta.trial = "gradient"
    config.eval.every_epochs = 4
    return config
