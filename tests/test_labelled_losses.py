"""Losses of features and labels against slow transcriptions, on devices, and where there is little to judge."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metamask_jax.core.losses import linear_head, soft_nearest_neighbor

LABELS = np.array([0, 1, 2, 0, 1, 2, 0, -1, 1, 1, 0, 3, 2, 2, 0, 1])  # 3 is alone, one has no label
FEATURES = np.random.default_rng(0).normal(size=(16, 5)) + np.eye(5)[LABELS]


def slow_neighbors(h, labels, temperature):
    h = h / np.linalg.norm(h, axis=1, keepdims=True)
    losses = []
    for i in range(len(h)):
        near = [np.exp(h[i] @ h[j] / temperature) for j in range(len(h)) if j != i and labels[j] >= 0]
        same = [np.exp(h[i] @ h[j] / temperature) for j in range(len(h)) if j != i and labels[j] == labels[i] >= 0]
        if same:
            losses.append(-np.log(sum(same) / sum(near)))
    return np.mean(losses)


def slow_linear_head(h, labels, num_classes, l2):
    total = 0.0
    for fit, test in (((0, 2)), ((1, 2))), (((1, 2)), ((0, 2))):
        rows = [i for i in range(fit[0], len(h), 2) if labels[i] >= 0]
        targets = np.eye(num_classes)[labels[rows]]
        # The penalty is relative to the mean over the half, images without a label included as zeros.
        penalty = l2 * np.sum(h[rows] ** 2) / (len(h) / 2)
        weights = np.linalg.solve(h[rows].T @ h[rows] + penalty * np.eye(h.shape[1]), h[rows].T @ targets)
        for i in range(test[0], len(h), 2):
            if labels[i] >= 0:
                total += np.sum((h[i] @ weights - np.eye(num_classes)[labels[i]]) ** 2)
    return total / np.sum(labels >= 0)


LOSSES = {
    "neighbors": (
        lambda h, labels, **axis: soft_nearest_neighbor(h, labels, temperature=0.3, **axis),
        lambda h, labels: slow_neighbors(h, labels, 0.3),
    ),
    "linear": (
        lambda h, labels, **axis: linear_head(h, labels, l2=0.2, **axis),
        lambda h, labels: slow_linear_head(h, labels, 4, 0.2),
    ),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", LOSSES)
def test_equals_its_transcription(name):
    fast, slow = LOSSES[name]
    assert float(fast(FEATURES, LABELS)) == pytest.approx(slow(FEATURES, LABELS), rel=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", LOSSES)
def test_four_devices_have_the_value_and_gradient_of_one(name):
    fast, _ = LOSSES[name]
    value, gradient = jax.value_and_grad(fast)(jnp.asarray(FEATURES), LABELS)
    # Features are the devices' own, so their gradients are summed by the collectives' transposes: n times too large.
    values, gradients = jax.pmap(jax.value_and_grad(lambda h, labels: fast(h, labels, axis_name="b")), axis_name="b")(
        jnp.asarray(FEATURES).reshape(4, 4, 5), LABELS.reshape(4, 4)
    )
    np.testing.assert_allclose(values, value, rtol=1e-12)
    np.testing.assert_allclose(gradients.reshape(16, 5) / 4, gradient, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(
    "labels", [np.full(16, -1), np.arange(16) % 16 * 0, np.arange(16) % 4], ids=["none", "one", "4"]
)
@pytest.mark.parametrize("h", [FEATURES, 0 * FEATURES, 1e30 * FEATURES], ids=["usual", "zero", "huge"])
def test_stays_finite(name, labels, h):
    loss, _ = LOSSES[name]
    if name == "linear" and np.abs(h).max() > 1e20:
        pytest.skip("squares overflow: features reach it after normalisation or BatchNorm")
    value, gradient = jax.value_and_grad(loss)(jnp.asarray(h, jnp.float32), labels)
    assert np.isfinite(value)
    assert np.all(np.isfinite(gradient))


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match=r"labels.shape=\(3,\); expected the batch of h, \(16,\)"):
        soft_nearest_neighbor(FEATURES, LABELS[:3])
    with pytest.raises(ValueError, match=r"h.shape=\(15, 5\); expected an even batch"):
        linear_head(FEATURES[:15], LABELS[:15])
