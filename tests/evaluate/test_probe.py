from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from sklearn.linear_model import LogisticRegression

from metamask_jax.evaluate import probe
from metamask_jax.evaluate import rows as rows_module
from metamask_jax.evaluate.probe import linear_probe
from metamask_jax.evaluate.rows import all_finite, moments
from metamask_jax.training.distributed import AXIS

CLASSES, DIM = 5, 32


def features(seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping classes along dimensions of very different scale, and one that is constant."""
    shared, random = np.random.default_rng(99), np.random.default_rng(seed)
    centers, scales = 0.4 * shared.normal(size=(CLASSES, DIM)), np.geomspace(1e-3, 1e3, DIM)
    labels = random.integers(0, CLASSES, size)
    h = (centers[labels] + random.normal(size=(size, DIM))) * scales
    h[:, 7] = 0.1
    return h.astype(np.float32), labels


def standardized(h: np.ndarray, train: np.ndarray) -> np.ndarray:
    h, train = (np.delete(x, 7, axis=1).astype(np.float64) for x in (h, train))
    return (h - train.mean(axis=0)) / train.std(axis=0)


@pytest.mark.parametrize("l2", [1e-1, 1e-3])
def test_probe_is_the_logistic_regression_of_scikit_learn(l2: float) -> None:
    (train_h, train_labels), (test_h, test_labels) = features(0, 1000), features(1, 2000)
    found = linear_probe(train_h, train_labels, test_h, test_labels, num_classes=CLASSES, seed=0, l2_grid=(l2,))
    oracle = LogisticRegression(C=1 / (l2 * 1000), max_iter=2000, tol=1e-6)
    oracle.fit(standardized(train_h, train_h), train_labels)
    inputs = standardized(test_h, train_h)
    assert 0.5 < found.accuracy < 0.95
    assert abs(found.accuracy - oracle.score(inputs, test_labels)) <= 0.003
    probabilities = np.exp(found.scores) / np.exp(found.scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(probabilities, oracle.predict_proba(inputs), atol=0.01)


def test_strength_is_chosen_on_the_held_out_part_alone() -> None:
    (train_h, train_labels), (test_h, test_labels) = features(0, 300), features(1, 200)
    grid = (10.0, 1e-1, 1e-3)
    found = linear_probe(train_h, train_labels, test_h, test_labels, num_classes=CLASSES, seed=3, l2_grid=grid)
    held_out = np.random.default_rng(3).permutation(300)[:60]
    rest = np.setdiff1d(np.arange(300), held_out)
    inputs = standardized(train_h, train_h)
    for l2 in grid:
        oracle = LogisticRegression(C=1 / (l2 * 240), max_iter=5000, tol=1e-6).fit(inputs[rest], train_labels[rest])
        accuracy = oracle.score(inputs[held_out], train_labels[held_out])
        assert abs(found.held_out[l2] - accuracy) <= 1 / 60 + 1e-6
    assert found.l2 == max(found.held_out, key=lambda l2: found.held_out[l2])
    assert len(set(found.held_out.values())) > 1

    other = linear_probe(
        train_h, train_labels, test_h, (test_labels + 1) % CLASSES, num_classes=CLASSES, seed=3, l2_grid=grid
    )
    assert other.l2 == found.l2
    np.testing.assert_array_equal(other.scores, found.scores)
    assert other.accuracy == np.mean(found.scores.argmax(axis=1) == (test_labels + 1) % CLASSES)


def test_units_of_the_features_do_not_matter() -> None:
    (train_h, labels), (test_h, test_labels) = features(0, 300), features(1, 200)
    scale = np.geomspace(1e2, 1e-2, DIM).astype(np.float32)
    results = [
        linear_probe(train_h * s, labels, test_h * s, test_labels, num_classes=CLASSES, seed=0, l2_grid=(1e-2,))
        for s in (np.float32(1), scale)
    ]
    np.testing.assert_allclose(results[0].scores, results[1].scores, atol=1e-2)


def test_rows_that_stream_through_in_chunks_give_the_same_probe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (train_h, labels), (test_h, test_labels) = features(0, 301), features(1, 203)
    on_disk = np.lib.format.open_memmap(tmp_path / "h.npy", "w+", np.float32, train_h.shape)
    on_disk[:] = train_h
    arguments = (labels, test_h, test_labels)
    settings = {"num_classes": CLASSES, "seed": 0, "l2_grid": (1e-1, 1e-2)}
    whole = linear_probe(train_h, *arguments, **settings)
    monkeypatch.setattr(probe, "_NUMBERS", 20 * (DIM + CLASSES))  # rows of a chunk on one device
    monkeypatch.setattr(probe, "_KEPT", 0)
    found = linear_probe(on_disk, *arguments, **settings)
    assert (found.l2, found.held_out) == (whole.l2, whole.held_out)
    np.testing.assert_allclose(found.scores, whole.scores, atol=2e-2)
    assert abs(found.accuracy - whole.accuracy) <= 0.005


def test_dimensions_that_are_not_used_are_as_good_as_absent() -> None:
    (train_h, labels), (test_h, test_labels) = features(0, 300), features(1, 200)
    used = np.arange(DIM) % 3 > 0
    settings = {"num_classes": CLASSES, "seed": 0, "l2_grid": (1e-2,)}
    found = linear_probe(train_h, labels, test_h, test_labels, used=used, **settings)
    absent = linear_probe(train_h[:, used], labels, test_h[:, used], test_labels, **settings)
    np.testing.assert_allclose(found.scores, absent.scores, atol=1e-2)


def test_a_thousand_classes_of_imagenets_features_take_little_memory() -> None:
    dim, classes = 2048, 1000
    rows = 4 * probe.chunk_rows(dim, classes)  # a chunk on each of four devices
    one = jax.ShapeDtypeStruct
    mesh = Mesh(np.array(jax.devices()[:4]), (AXIS,))
    linear = probe.Linear(one((dim, classes), jnp.float32), one((classes,), jnp.float32))
    chunk = one((rows, dim), jnp.float32), one((rows,), jnp.int32), one((rows,), jnp.float32)
    each = jax.tree.map(lambda leaf: one((4, *leaf.shape), jnp.float32), (one((), jnp.float32), linear))
    program = probe.sums(mesh)[1].lower(each, linear, *chunk).compile()
    found = program.memory_analysis()
    used = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    lbfgs = 25 * 8 * (dim + 1) * classes  # two histories of ten steps, and some vectors, in float64 on the host
    assert used + lbfgs < 2e9  # whatever the number of rows: 1.28 million of them would take 10.5e9 bytes themselves


def test_moments_are_those_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    h, _ = features(0, 1000)
    monkeypatch.setattr(rows_module, "_CHUNK", 7 * DIM)
    mean, variance = moments(h)
    np.testing.assert_allclose(mean, h.mean(axis=0, dtype=np.float64), rtol=1e-12)
    np.testing.assert_allclose(variance, h.astype(np.float64).var(axis=0), rtol=1e-9, atol=1e-20)
    assert all_finite(h)
    h[999, 3] = np.nan
    assert not all_finite(h)


@pytest.mark.parametrize(
    ("labels", "fraction", "message"),
    [
        (np.arange(6), 0.5, "train_labels 0 to 5; expected 0 to 2"),
        (np.zeros(5, int), 0.5, r"shapes \(6, 4\) and \(5,\); expected"),
        (np.zeros(6, int), 0.01, "held_out_fraction=0.01 of 6 rows; expected at least one row held out"),
    ],
)
def test_bad_arguments_are_named(labels: np.ndarray, fraction: float, message: str) -> None:
    h = np.ones((6, 4), np.float32)
    with pytest.raises(ValueError, match=message):
        linear_probe(h, labels, h, np.zeros(6, int), num_classes=3, seed=0, held_out_fraction=fraction)
