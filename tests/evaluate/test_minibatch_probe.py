from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from metamask_jax.evaluate import minibatch_probe, rows
from metamask_jax.evaluate.minibatch_probe import minibatch_probes
from metamask_jax.evaluate.subsets import held_out_rows

CLASSES, DIM = 4, 12
SETTINGS: dict[str, Any] = {
    "masks": [np.ones(DIM, np.float32)],
    "hidden": (),
    "num_classes": CLASSES,
    "learning_rates": (0.01, 0.1),
    "weight_decay": 0.0,
    "epochs": 20,
    "batch_size": 32,
    "held_out_fraction": 0.25,
    "seed": 0,
}


def features(seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping classes, far from the origin."""
    centers, random = np.random.default_rng(9).normal(size=(CLASSES, DIM)), np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, size)
    return (0.7 * centers[labels] + random.normal(size=(size, DIM)) + 5.0).astype(np.float32), labels


def rings(seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Classes that differ in their distance from the middle: nothing for a linear classifier."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, size)
    h = random.normal(size=(size, DIM))
    h *= (1.0 + labels[:, None]) / np.linalg.norm(h, axis=1, keepdims=True)
    return h.astype(np.float32), labels


def run(train: tuple[np.ndarray, np.ndarray], test_h: np.ndarray, **changes: Any) -> list[Any]:
    return minibatch_probes(lambda epoch: train[0], *train, test_h, **(SETTINGS | changes))


def test_a_linear_probe_comes_close_to_logistic_regression() -> None:
    train, (test_h, test_labels) = features(0, 800), features(1, 1000)
    (found,) = run(train, test_h, epochs=40)
    oracle = LogisticRegression(C=1e3, max_iter=2000).fit(*train)
    accuracy = np.mean(found.scores.argmax(1) == test_labels)
    assert 0.6 < accuracy < 0.95
    assert abs(accuracy - oracle.score(test_h, test_labels)) <= 0.01


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_hidden_layers_find_what_a_linear_probe_cannot() -> None:
    train, (test_h, test_labels) = rings(0, 800), rings(1, 500)
    linear, deep = (
        np.mean(run(train, test_h, hidden=hidden, epochs=30)[0].scores.argmax(1) == test_labels)
        for hidden in ((), (100,))
    )
    oracle = MLPClassifier((100,), max_iter=400, random_state=0).fit(*train).score(test_h, test_labels)
    assert linear < 0.5 < oracle - 0.1
    assert deep > oracle - 0.05


def test_the_learning_rate_is_chosen_on_the_held_out_rows_and_the_probe_retrained_on_all() -> None:
    train, (test_h, _) = features(0, 400), features(1, 50)
    (found,) = run(train, test_h, learning_rates=(0.0, 0.1))
    held_out = held_out_rows(400, 0.25, 0)
    assert held_out.sum() == 100
    # With a rate of zero all classes score the same, and the first is named.
    assert found.held_out[0.0] == pytest.approx(np.mean(train[1][held_out] == 0))
    assert found.learning_rate == 0.1
    # A held-out label takes no part in the choice's training, but in the final one.
    changed = train[1].copy()
    changed[held_out] = (changed[held_out] + 1) % CLASSES
    (other,) = run((train[0], changed), test_h, learning_rates=(0.0, 0.1))
    assert other.held_out[0.1] < 0.3 < found.held_out[0.1]
    assert not np.array_equal(other.scores, found.scores)


def test_results_of_several_masks_are_those_of_each_alone() -> None:
    train, (test_h, _) = features(0, 200), features(1, 50)
    masks = [np.ones(DIM, np.float32), np.linspace(0.1, 1.0, DIM, dtype=np.float32)]
    together = run(train, test_h, masks=masks, epochs=3)
    for mask, found in zip(masks, together, strict=True):
        (alone,) = run(train, test_h, masks=[mask], epochs=3)
        (multiplied,) = run((train[0] * mask, train[1]), test_h * mask, epochs=3)
        for other in (alone, multiplied):
            assert other.learning_rate == found.learning_rate
            np.testing.assert_allclose(other.scores, found.scores, rtol=1e-3, atol=1e-4)
    assert not np.allclose(together[0].scores, together[1].scores, atol=1e-2)


def test_every_epoch_sees_its_own_features() -> None:
    (train_h, labels), (test_h, _) = features(0, 100), features(1, 10)
    asked = []

    def epoch_features(epoch: int) -> np.ndarray:
        asked.append(epoch)
        return train_h + epoch

    found = minibatch_probes(epoch_features, train_h, labels, test_h, **(SETTINGS | {"epochs": 3}))
    assert asked == [0, 1, 2]
    assert not np.allclose(found[0].scores, run((train_h, labels), test_h, epochs=3)[0].scores, atol=1e-3)


def test_batches_that_come_in_groups_give_the_same_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    train, (test_h, _) = features(0, 400), features(1, 50)
    (whole,) = run(train, test_h, epochs=3)
    monkeypatch.setattr(minibatch_probe, "_NUMBERS", 5 * 32 * DIM)  # five of the twelve steps of an epoch
    monkeypatch.setattr(rows, "_CHUNK", 7 * DIM)
    (found,) = run(train, test_h, epochs=3)
    assert found.held_out == whole.held_out
    np.testing.assert_allclose(found.scores, whole.scores, rtol=1e-5, atol=1e-5)
