"""Self-supervised losses as pure functions: projections in, one scalar out.

Every loss takes projections, `z` of shape [views, batch, dim] with at least two views unless it says otherwise,
computes in float32 or wider whatever the input's precision, and stays finite for constant, duplicate, huge and tiny
features.

On several devices pass `axis_name`: each device hands in its slice of the batch and all of them get the loss of the
*whole* batch. Differentiate that value on every device and average the gradients with `jax.lax.pmean`: the result is
the gradient one device would compute on the whole batch, exactly. (Both the values and their cotangents are equal on
all n devices; the collectives' transposes sum n equal cotangents, and the mean divides them out again.)
"""

from metamask_jax.core.losses.contrastive import debiased_nt_xent, hard_nt_xent, nt_xent
from metamask_jax.core.losses.labelled import linear_head, soft_nearest_neighbor
from metamask_jax.core.losses.noise import memory_logits, noise_contrastive
from metamask_jax.core.losses.pairs import cross_entropy, info_nce, info_nce_in_batch, negative_cosine
from metamask_jax.core.losses.prototypes import sinkhorn, swapped_prediction
from metamask_jax.core.losses.redundancy import redundancy_reduction

__all__ = [
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
]
