"""What the dimensions of a representation tell, and what the mask does with them.

Each diagnostic is a function of arrays, with a plot in `figures`; `suite` runs them on a pretrained run:

    python -m metamask_jax.cli.diagnostics --workdir DIR

Spectrum, effective rank, alignment, uniformity and correlation are in `metamask_jax.evaluate.spectrum`.
"""

from metamask_jax.evaluate.diagnostics.bounds import (
    Bounds,
    ConditionalVariance,
    conditional_angle,
    conditional_variance,
    theorem_bounds,
)
from metamask_jax.evaluate.diagnostics.classes import class_dimension_map, class_means, dimension_similarity
from metamask_jax.evaluate.diagnostics.information import Agreement, Information, agreement, mutual_information
from metamask_jax.evaluate.diagnostics.information import measure as measure_information
from metamask_jax.evaluate.diagnostics.masking import (
    Halves,
    Trials,
    below_average,
    masked_accuracies,
    probe_halves,
    random_masks,
)

__all__ = [
    "Agreement",
    "Bounds",
    "ConditionalVariance",
    "Halves",
    "Information",
    "Trials",
    "agreement",
    "below_average",
    "class_dimension_map",
    "class_means",
    "conditional_angle",
    "conditional_variance",
    "dimension_similarity",
    "masked_accuracies",
    "measure_information",
    "mutual_information",
    "probe_halves",
    "random_masks",
    "theorem_bounds",
]
