"""Evaluation of a frozen encoder: features, nearest neighbours, linear probes and diagnostics."""

from metamask_jax.evaluate.features import Extractor, make_extractor
from metamask_jax.evaluate.knn import Neighbors, knn_accuracy, knn_predict, knn_scores, nearest_neighbors
from metamask_jax.evaluate.probe import ProbeResult, linear_probe
from metamask_jax.evaluate.spectrum import alignment, cross_correlation, effective_rank, singular_values, uniformity

__all__ = [
    "Extractor",
    "Neighbors",
    "ProbeResult",
    "alignment",
    "cross_correlation",
    "effective_rank",
    "knn_accuracy",
    "knn_predict",
    "knn_scores",
    "linear_probe",
    "make_extractor",
    "nearest_neighbors",
    "singular_values",
    "uniformity",
]
