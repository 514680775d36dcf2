"""Switches that belong together: paper and program, and a method with MetaMask, alone and in ablations.

Each function changes a configuration and returns it.
"""

from ml_collections import ConfigDict


def official(config: ConfigDict) -> ConfigDict:
    """Sets every point on which the authors' program differs from the paper to the program's side."""
    config.meta.update(trial="optimizer", estimator="finite_difference")
    config.encoder.init = "torch"
    config.mask.activation = "sigmoid"
    config.eval.masked = True
    config.loss.update(alpha=10.0, centered=True, unbiased=True, off_diagonal_weight=0.005)
    return config


def paper(config: ConfigDict) -> ConfigDict:
    """Sets every point on which the authors' program differs from the paper to the paper's side."""
    config.meta.update(trial="gradient", estimator="exact")
    config.encoder.init = None  # the paper says nothing of it
    config.mask.activation = "identity"
    config.eval.masked = False
    config.loss.update(alpha=100.0, centered=False, unbiased=False, off_diagonal_weight=0.0051)
    return config


def metamask(config: ConfigDict) -> ConfigDict:
    """A method with MetaMask: drr + alpha * L_method, the mask learned through L_method."""
    config.loss.drr = True
    config.mask.learn = True
    return config


def alone(config: ConfigDict) -> ConfigDict:
    """A method as it was before MetaMask: its own loss on unmasked features."""
    config.loss.update(drr=False, alpha=1.0)
    return _unmasked(config)


def without_meta(config: ConfigDict) -> ConfigDict:
    """The ablation without mask and meta-learning: drr + alpha * L_method on unmasked features."""
    config.loss.drr = True
    return _unmasked(config)


def without_drr(config: ConfigDict) -> ConfigDict:
    """The ablation without redundancy reduction: alpha * L_method alone, the mask learned through it."""
    config.loss.drr = False
    config.mask.learn = True
    return config


def _unmasked(config: ConfigDict) -> ConfigDict:
    config.mask.update(learn=False, activation="identity")  # which starts at one, and stays there
    config.eval.masked = False
    return config


VARIANTS = {"metamask": metamask, "alone": alone, "without_meta": without_meta, "without_drr": without_drr}
