"""Features with classes in them."""

import numpy as np


def clusters(size: int = 120, dim: int = 6, num_classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noisy rows around one centre per class."""
    random = np.random.default_rng(seed)
    labels = np.arange(size) % num_classes
    centres = np.random.default_rng(99).normal(size=(num_classes, dim))
    return (centres[labels] + 0.8 * random.normal(size=(size, dim))).astype(np.float32), labels
