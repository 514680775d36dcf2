import jax
import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from metamask_jax.evaluate import knn


def features(seed: int, size: int, dim: int = 24) -> np.ndarray:
    """Rows far from the origin, where careless distances lose their digits."""
    return (np.random.default_rng(seed).normal(size=(size, dim)) + 3.0).astype(np.float32)


@pytest.fixture(params=[(8192, 1024), (64, 16), (3, 2)], ids=str)
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn, "TRAIN_CHUNK", request.param[0])
    monkeypatch.setattr(knn, "TEST_CHUNK", request.param[1])


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("metric", knn.METRICS)
def test_neighbors_are_those_of_scikit_learn_whatever_the_chunks(metric: str) -> None:
    train, test = features(0, 300), features(1, 45)
    found = knn.nearest_neighbors(train, test, k=7, metric=metric)
    oracle = NearestNeighbors(n_neighbors=7, metric=metric, algorithm="brute").fit(train.astype(np.float64))
    distances, indices = oracle.kneighbors(test.astype(np.float64))
    np.testing.assert_array_equal(found.indices, indices)
    expected = 1 - distances if metric == "cosine" else -distances
    np.testing.assert_allclose(found.similarity, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("k", [1, 5, 60, 61, 62, 200])
def test_the_largest_are_found_among_blocks(k: int) -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=(30, 1952)).astype(np.float32)
    values[10:20] = random.integers(0, 9, (10, 1952))  # many are equal
    values[20:] = np.sort(values[20:], axis=1)[:, ::-1]  # all of the largest in neighbouring blocks
    found, columns = map(np.asarray, jax.jit(knn._largest, static_argnums=1)(values, k))
    np.testing.assert_array_equal(found, -np.sort(-values, axis=1)[:, :k])
    np.testing.assert_array_equal(np.take_along_axis(values, columns, axis=1), found)
    assert all(len(np.unique(row)) == k for row in columns)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("metric", knn.METRICS)
def test_weights_multiply_the_features(metric: str) -> None:
    train, test, weights = features(0, 300), features(1, 45), features(2, 1)[0]
    found = knn.nearest_neighbors(train, test, k=7, metric=metric, weights=weights)
    expected = knn.nearest_neighbors(train * weights, test * weights, k=7, metric=metric)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("k", "temperature"), [(5, 1.0), (50, 0.1), (20, 0.01)])
def test_weighted_vote_is_that_of_scikit_learn(k: int, temperature: float) -> None:
    train, test = features(0, 300), features(1, 100)
    labels = np.random.default_rng(2).integers(0, 4, 300)
    oracle = KNeighborsClassifier(k, metric="cosine", weights=lambda d: np.exp((1 - d) / temperature))
    expected = oracle.fit(train.astype(np.float64), labels).predict_proba(test.astype(np.float64))
    scores = knn.knn_scores(train, labels, test, k=k, temperature=temperature, num_classes=4)
    np.testing.assert_allclose(scores / scores.sum(axis=1, keepdims=True), expected, atol=1e-4)
    np.testing.assert_array_equal(
        knn.knn_predict(train, labels, test, k=k, temperature=temperature, num_classes=4), expected.argmax(axis=1)
    )


def test_unweighted_euclidean_vote_is_that_of_scikit_learn() -> None:
    train, test = features(0, 300), features(1, 100)
    labels = np.random.default_rng(2).integers(0, 4, 300)
    expected = KNeighborsClassifier(5, algorithm="brute").fit(train, labels).predict(test)
    found = knn.knn_predict(train, labels, test, k=5, temperature=None, num_classes=4, metric="euclidean")
    np.testing.assert_array_equal(found, expected)


def test_tiny_temperature_neither_overflows_nor_vanishes() -> None:
    train = features(0, 50)
    scores = knn.knn_scores(train, np.arange(50), train, k=5, temperature=1e-4, num_classes=50)
    np.testing.assert_allclose(scores.max(axis=1), 1.0)
    np.testing.assert_array_equal(scores.argmax(axis=1), np.arange(50))


def test_rows_of_zeros_have_no_direction_and_break_nothing() -> None:
    found = knn.nearest_neighbors(np.eye(3), np.zeros((1, 3)), k=3, metric="cosine")
    np.testing.assert_array_equal(found.similarity, 0.0)


def test_accuracy_is_the_fraction_of_classes_found() -> None:
    train = np.eye(4)
    accuracy = knn.knn_accuracy(train, np.arange(4), train, np.array([0, 1, 2, 0]), k=1, temperature=1.0, num_classes=4)
    assert accuracy == 0.75


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k=0; expected 1 to 6"),
        ({"k": 7}, "k=7; expected 1 to 6"),
        ({"metric": "l1"}, "metric='l1'; expected one of 'cosine', 'euclidean'"),
        ({"temperature": 0.0}, "temperature=0.0; expected a number > 0"),
        ({"num_classes": 2}, "train_labels 0 to 2; expected 0 to 1"),
        ({"test_h": np.ones((2, 3))}, r"shapes \(6, 5\) and \(2, 3\)"),
        ({"train_labels": np.zeros(5, int)}, r"train_labels.shape=\(5,\); expected one label per row"),
    ],
)
def test_bad_arguments_are_named(change: dict, message: str) -> None:
    arguments = {
        "train_h": features(0, 6, 5),
        "train_labels": np.array([0, 1, 2, 0, 1, 2]),
        "test_h": features(1, 2, 5),
        "k": 3,
        "temperature": 1.0,
        "num_classes": 3,
    }
    with pytest.raises(ValueError, match=message):
        knn.knn_predict(**(arguments | change))
