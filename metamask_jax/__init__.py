"""MetaMask in JAX: self-supervised learning with a dimensional mask learned by exact meta-gradients.

Everything a user needs has a name here and is loaded when it is first used: importing the package loads nothing else.
"""

import importlib
from typing import TYPE_CHECKING, Any

from metamask_jax.version import __version__

if TYPE_CHECKING:
    from metamask_jax.core.learner import Learner, metamask
    from metamask_jax.core.longer_trials import neumann, unrolled
    from metamask_jax.core.lookahead import lookahead_gradient
    from metamask_jax.core.losses import (
        cross_entropy,
        debiased_nt_xent,
        hard_nt_xent,
        info_nce,
        info_nce_in_batch,
        linear_head,
        memory_logits,
        negative_cosine,
        noise_contrastive,
        nt_xent,
        redundancy_reduction,
        sinkhorn,
        soft_nearest_neighbor,
        swapped_prediction,
    )
    from metamask_jax.core.mask import apply_mask, init_mask, mask_weights
    from metamask_jax.core.meta import MetaGradient, meta_gradient, meta_gradient_parts, trial_params
    from metamask_jax.core.state import MetaMaskState, Pair, Report
    from metamask_jax.errors import CheckpointError, ConfigError, DataError, ExportError, TrainingError
    from metamask_jax.evaluate.evaluation import evaluate_run
    from metamask_jax.evaluate.online import pretrain
    from metamask_jax.evaluate.workdir import load_run
    from metamask_jax.export.encoder import load_encoder
    from metamask_jax.training.registry import REGISTRY, Registry, validate
    from metamask_jax.training.state import TrainState, init_state
    from metamask_jax.training.step import make_train_step

_HOMES = {
    "core.learner": ("Learner", "metamask"),
    "core.longer_trials": ("neumann", "unrolled"),
    "core.losses": (
        "cross_entropy",
        "debiased_nt_xent",
        "hard_nt_xent",
        "info_nce",
        "info_nce_in_batch",
        "linear_head",
        "memory_logits",
        "negative_cosine",
        "noise_contrastive",
        "nt_xent",
        "redundancy_reduction",
        "sinkhorn",
        "soft_nearest_neighbor",
        "swapped_prediction",
    ),
    "core.lookahead": ("lookahead_gradient",),
    "core.mask": ("apply_mask", "init_mask", "mask_weights"),
    "core.meta": ("MetaGradient", "meta_gradient", "meta_gradient_parts", "trial_params"),
    "core.state": ("MetaMaskState", "Pair", "Report"),
    "errors": ("CheckpointError", "ConfigError", "DataError", "ExportError", "TrainingError"),
    "evaluate.evaluation": ("evaluate_run",),
    "evaluate.online": ("pretrain",),
    "evaluate.workdir": ("load_run",),
    "export.encoder": ("load_encoder",),
    "training.registry": ("REGISTRY", "Registry", "validate"),
    "training.state": ("TrainState", "init_state"),
    "training.step": ("make_train_step",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    """Loads a public name from its home when it is first asked for."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
