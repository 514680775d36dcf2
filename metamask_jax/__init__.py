"""MetaMask in JAX: self-supervised learning with a dimensional mask learned by exact meta-gradients.

Importing the package loads JAX and the pure functions below, nothing else; models, data and training are imported
from their own modules.
"""

import os
from typing import TYPE_CHECKING, Any

from metamask_jax.losses import debiased_nt_xent, hard_nt_xent, nt_xent, redundancy_reduction
from metamask_jax.mask import apply_mask, init_mask, mask_weights
from metamask_jax.meta import MetaGradient, meta_gradient, meta_gradient_parts, tree_norm, trial_params
from metamask_jax.version import __version__

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from metamask_jax.export import LoadedEncoder

__all__ = [
    "MetaGradient",
    "__version__",
    "apply_mask",
    "debiased_nt_xent",
    "hard_nt_xent",
    "init_mask",
    "load_encoder",
    "mask_weights",
    "meta_gradient",
    "meta_gradient_parts",
    "nt_xent",
    "pretrain",
    "redundancy_reduction",
    "tree_norm",
    "trial_params",
]


def pretrain(config: "ConfigDict", workdir: str | os.PathLike[str], *, accept_changes: bool = False) -> dict[str, Any]:
    """Trains in a working directory, or goes on where it left off; see `metamask_jax.train.pretrain`."""
    from metamask_jax import train

    return train.pretrain(config, os.fspath(workdir), accept_changes=accept_changes)


def load_encoder(workdir: str | os.PathLike[str], *, step: int | str = "last") -> "LoadedEncoder":
    """A pretrained encoder as `(apply, params, preprocessing)`; see `metamask_jax.export.load_encoder`."""
    from metamask_jax import export

    return export.load_encoder(os.fspath(workdir), step=step)
