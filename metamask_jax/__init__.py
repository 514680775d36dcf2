"""MetaMask in JAX: self-supervised learning with a dimensional mask learned by exact meta-gradients.

Importing the package loads JAX and the pure functions below, nothing else; models, data and training are imported
from their own modules.
"""

from metamask_jax.losses import debiased_nt_xent, hard_nt_xent, nt_xent, redundancy_reduction
from metamask_jax.mask import apply_mask, init_mask, mask_weights
from metamask_jax.meta import MetaGradient, meta_gradient, meta_gradient_parts, tree_norm, trial_params
from metamask_jax.version import __version__

__all__ = [
    "MetaGradient",
    "__version__",
    "apply_mask",
    "debiased_nt_xent",
    "hard_nt_xent",
    "init_mask",
    "mask_weights",
    "meta_gradient",
    "meta_gradient_parts",
    "nt_xent",
    "redundancy_reduction",
    "tree_norm",
    "trial_params",
]
