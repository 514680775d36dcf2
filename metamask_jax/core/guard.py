"""What a step reports, and whether it counts."""

import jax
import jax.numpy as jnp

from metamask_jax.core.collectives import mean
from metamask_jax.core.mask import mask_weights
from metamask_jax.core.state import MetaMaskState
from metamask_jax.core.types import Metrics, PyTree


def agreed(metrics: Metrics, axis_name: str | None) -> Metrics:
    """Metrics averaged over devices in one exchange, so that all of them skip a step or none does."""
    return dict(zip(metrics, mean(jnp.stack(list(metrics.values())), axis_name), strict=True))


def guard(state: MetaMaskState, updated: MetaMaskState, metrics: Metrics) -> tuple[MetaMaskState, Metrics]:
    """Keeps the whole old state if anything this step computed is not finite, and counts that."""
    finite = jnp.all(jnp.isfinite(jnp.stack(list(metrics.values()))))
    kept: MetaMaskState = jax.tree.map(lambda new, old: jnp.where(finite, new, old), updated, state)
    skip = jnp.where(finite, 0, 1)
    kept = kept._replace(
        step=state.step + 1,
        skipped=state.skipped + skip,
        skipped_in_a_row=skip * (state.skipped_in_a_row + 1),
    )
    return kept, metrics | {"skipped": kept.skipped, "skipped_in_a_row": kept.skipped_in_a_row}


def mask_metrics(mask: PyTree, activation: str) -> Metrics:
    """Mean, spread and range of the weights that a mask's logits stand for."""
    weights = jnp.concatenate([mask_weights(leaf.reshape(-1), activation=activation) for leaf in jax.tree.leaves(mask)])
    return {
        "mask_mean": jnp.mean(weights),
        "mask_std": jnp.std(weights),
        "mask_min": jnp.min(weights),
        "mask_max": jnp.max(weights),
    }
