import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, top_k_accuracy_score

from metamask_jax.evaluate import metrics


def scores_and_labels(size: int = 200, classes: int = 8) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.normal(size=(size, classes)).astype(np.float32), random.integers(0, classes, size)


@pytest.mark.parametrize("k", [1, 5])
def test_top_k_is_that_of_scikit_learn(k: int) -> None:
    scores, labels = scores_and_labels()
    expected = top_k_accuracy_score(labels, scores, k=k, labels=np.arange(8))
    assert metrics.top_k_accuracy(scores, labels, k=k) == pytest.approx(expected)


def test_of_equal_scores_only_as_many_count_as_there_are_places() -> None:
    assert metrics.top_k_accuracy(np.zeros((6, 6)), np.arange(6), k=2) == pytest.approx(2 / 6)


def test_a_class_without_votes_is_never_found() -> None:
    scores = np.full((1, 6), -np.inf)
    scores[0, 5] = 0.0
    assert metrics.top_k_accuracy(scores, np.array([0]), k=5) == 0.0
    assert metrics.top_k_accuracy(scores, np.array([5]), k=5) == 1.0


def test_wilson_interval_solves_its_equation() -> None:
    """Its ends are the accuracies p from which the one measured lies 1.96 standard deviations away."""
    for correct, size in ((50, 100), (9_300, 10_000), (1, 50)):
        for p in metrics.wilson_interval(correct, size):
            assert abs(correct / size - p) / np.sqrt(p * (1 - p) / size) == pytest.approx(1.959964, rel=1e-6)
    assert metrics.wilson_interval(10, 10)[1] == pytest.approx(1.0)
    assert metrics.wilson_interval(0, 10)[0] == pytest.approx(0.0, abs=1e-12)


def test_summary_counts_by_class() -> None:
    scores, labels = scores_and_labels()
    labels = np.where(labels == 3, 4, labels)
    found = metrics.summarize(scores, labels, class_names=list("abcdefgh"))
    expected = confusion_matrix(labels, scores.argmax(1), labels=np.arange(8))
    np.testing.assert_array_equal(found["confusion"], expected)
    assert found["top1"] == pytest.approx(np.mean(scores.argmax(1) == labels))
    assert found["per_class"]["d"] is None
    assert found["per_class"]["e"] == pytest.approx(expected[4, 4] / expected[4].sum())
    assert found["interval"][0] < found["top1"] < found["interval"][1]
    assert found["top1"] < found["top5"] < 1.0
    assert metrics.summarize(scores[:, :5], labels % 5, class_names=list("abcde"))["top5"] is None
