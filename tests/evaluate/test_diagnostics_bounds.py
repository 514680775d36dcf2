"""Conditional variance and the bounds of Theorem 1 against closed forms and slow transcriptions."""

import numpy as np
import pytest

from metamask_jax.core.losses import nt_xent
from metamask_jax.evaluate.diagnostics import bounds
from metamask_jax.evaluate.diagnostics.classes import unit_length
from tests.clusters import clusters


def test_phi_is_the_expected_squared_distance_to_the_class_mean() -> None:
    z, labels = clusters(size=31)  # classes of unequal frequency
    whole, per_dimension = 0.0, np.zeros(6)
    for c in range(3):
        rows = z[labels == c].astype(np.float64)
        share = len(rows) / len(z)  # P(y)
        whole += share * np.mean([np.sum((row - rows.mean(axis=0)) ** 2) for row in rows])
        per_dimension += share * np.mean((rows - rows.mean(axis=0)) ** 2, axis=0)
    found = bounds.conditional_variance(z, labels)
    np.testing.assert_allclose(found.whole, whole, rtol=1e-12)
    np.testing.assert_allclose(found.per_dimension, per_dimension, rtol=1e-12)


def test_phi_of_gaussians_is_the_trace_of_their_covariance() -> None:
    random = np.random.default_rng(0)
    deviations = np.array([0.1, 0.5, 2.0])
    labels = np.arange(200_000) % 4
    z = 10.0 * labels[:, None] + deviations * random.normal(size=(200_000, 3))
    found = bounds.conditional_variance(z, labels)
    np.testing.assert_allclose(found.per_dimension, deviations**2, rtol=0.02)
    np.testing.assert_allclose(found.whole, np.sum(deviations**2), rtol=0.02)


def test_the_angle_is_minus_the_log_of_the_mean_cosine_to_the_class_mean() -> None:
    z, labels = clusters(size=30)
    z = np.abs(z)
    logs = []
    for c in range(3):
        mean = z[labels == c].astype(np.float64).mean(axis=0)
        logs += [
            -np.log(row @ mean / (np.linalg.norm(row) * np.linalg.norm(mean)))
            for row in z[labels == c].astype(np.float64)
        ]
    np.testing.assert_allclose(bounds.conditional_angle(z, labels), np.mean(logs), rtol=1e-6)
    assert bounds.conditional_angle(np.ones((5, 3)), np.zeros(5, int)) == pytest.approx(0.0, abs=1e-12)


def test_a_row_at_a_right_angle_to_its_class_has_no_finite_angle() -> None:
    z = np.array([[4.0, 1.0], [4.0, -1.0], [-1.0, 1.0]])
    assert bounds.conditional_angle(z, np.zeros(3, int)) == np.inf


def test_bounds_are_those_of_the_theorem() -> None:
    z, labels = clusters()
    phi = bounds.conditional_variance(z, labels)
    found = bounds.theorem_bounds(1.7, phi, negatives=25)
    np.testing.assert_allclose(found.lower, 1.7 - np.sqrt(phi.whole) - sum(phi.per_dimension) / 2, rtol=1e-12)
    np.testing.assert_allclose(found.upper, 1.7 + np.sqrt(phi.whole), rtol=1e-12)
    assert found.remainder == 0.2


def test_cross_entropy_is_minus_the_mean_log_probability() -> None:
    random = np.random.default_rng(0)
    scores, labels = random.normal(size=(9, 4)), random.integers(0, 4, 9)
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = -np.mean([np.log(p[y]) for p, y in zip(probabilities, labels, strict=True)])
    np.testing.assert_allclose(bounds.cross_entropy(scores, labels), expected, rtol=1e-12)
    assert bounds.cross_entropy(1e4 * scores, labels) < np.inf


def test_the_mean_classifier_scores_by_the_class_means() -> None:
    z, labels = clusters(size=30)
    expected = [[row @ z[labels == c].mean(axis=0) for c in range(3)] for row in z]
    np.testing.assert_allclose(bounds.mean_classifier_scores(z, labels), expected, rtol=1e-4, atol=1e-5)


def test_a_class_without_rows_takes_no_part_in_the_mean_classifier() -> None:
    z, labels = clusters(size=30)
    spread = np.array([0, 1, 3])[labels]  # there is no class 2
    assert np.all(bounds.mean_classifier_scores(z, spread)[:, 2] == -np.inf)
    entropies = [bounds.cross_entropy(bounds.mean_classifier_scores(z, y), y) for y in (labels, spread)]
    assert entropies[0] == entropies[1]


def test_the_upper_bound_holds_where_views_are_drawn_from_the_class() -> None:
    """Where positives are independent draws of a class, the theorem is no more than Jensen's inequality."""
    random = np.random.default_rng(0)
    labels = np.arange(400) % 4
    centres = 2.0 * random.normal(size=(4, 8))
    z = unit_length(centres[labels] + random.normal(size=(2, 400, 8)))
    contrast, negatives = float(nt_xent(z.astype(np.float32), temperature=1.0)), 2 * 399
    flat, twice = z.reshape(-1, 8), np.tile(labels, 2)
    found = bounds.theorem_bounds(contrast, bounds.conditional_variance(flat, twice), negatives=negatives)
    entropy = bounds.cross_entropy(bounds.mean_classifier_scores(flat, twice), twice) + np.log(negatives / 4)
    assert found.lower - found.remainder < entropy < found.upper + found.remainder


def test_normalised_features_have_length_one_and_zeros_stay() -> None:
    found = unit_length(np.array([[3.0, 4.0], [0.0, 0.0]]))
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.0, 0.0]])
