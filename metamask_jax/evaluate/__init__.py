"""Evaluation of a frozen encoder: features, nearest neighbours, probes and diagnostics.

    run = load_run("runs/cifar10")
    h, labels = features(run, open_configured(run.config.data, split="test"))

gives the features of a pretrained run; `evaluate_run` judges it by any of the protocols.
"""

from metamask_jax.evaluate.features import Extractor, extract_source, make_extractor
from metamask_jax.evaluate.knn import Neighbors, knn_accuracy, knn_predict, knn_scores, nearest_neighbors
from metamask_jax.evaluate.probe import ProbeResult, linear_probe
from metamask_jax.evaluate.spectrum import (
    alignment,
    alpha_req,
    cross_correlation,
    effective_rank,
    lidar,
    singular_values,
    uniformity,
)
from metamask_jax.evaluate.views import eval_view

__all__ = [
    "Extractor",
    "Neighbors",
    "ProbeResult",
    "alignment",
    "alpha_req",
    "cross_correlation",
    "effective_rank",
    "eval_view",
    "extract_source",
    "knn_accuracy",
    "knn_predict",
    "knn_scores",
    "lidar",
    "linear_probe",
    "make_extractor",
    "nearest_neighbors",
    "singular_values",
    "uniformity",
]
