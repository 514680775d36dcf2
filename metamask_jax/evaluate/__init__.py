"""Evaluation of a frozen encoder: features, nearest neighbours, linear probes and diagnostics."""

from metamask_jax.evaluate.features import Extractor, make_extractor
from metamask_jax.evaluate.knn import Neighbors, knn_accuracy, knn_predict, knn_scores, nearest_neighbors

__all__ = [
    "Extractor",
    "Neighbors",
    "knn_accuracy",
    "knn_predict",
    "knn_scores",
    "make_extractor",
    "nearest_neighbors",
]
