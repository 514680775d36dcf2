"""What losses are called with: their papers' defaults, and arguments that they refuse."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metamask_jax.core import losses
from metamask_jax.core.losses import (
    cross_entropy,
    debiased_nt_xent,
    hard_nt_xent,
    info_nce,
    info_nce_in_batch,
    linear_head,
    memory_logits,
    negative_cosine,
    noise_contrastive,
    nt_xent,
    redundancy_reduction,
    sinkhorn,
    soft_nearest_neighbor,
    swapped_prediction,
)
from tests.test_losses import contrastive, every_loss, projections

Z, ROWS, OTHERS = projections(), projections(seed=1)[0], projections(batch=4, seed=2)[0]
# Every public loss: its required arrays, and what its paper or its paper's program has for the rest.
DEFAULTS = {
    cross_entropy: ((ROWS, np.arange(6) % 5), {}),
    debiased_nt_xent: ((Z,), {"temperature": 0.5, "positive_prior": 0.1}),
    hard_nt_xent: ((Z,), {"temperature": 0.5, "positive_prior": 0.1, "concentration": 1.0}),
    info_nce: ((Z[0], ROWS, OTHERS), {"temperature": 0.07}),
    info_nce_in_batch: ((Z[0], ROWS), {"temperature": 0.1}),
    linear_head: ((ROWS, np.arange(6) % 3), {"l2": 0.1}),
    memory_logits: ((Z[0], ROWS, OTHERS), {"temperature": 0.07}),
    negative_cosine: ((Z, Z[::-1]), {}),
    noise_contrastive: ((ROWS,), {"normalizer": 7 * np.mean(np.exp(ROWS)), "population": 7}),
    nt_xent: ((Z,), {"temperature": 0.5}),
    redundancy_reduction: ((Z,), {"off_diagonal_weight": 0.0051, "centered": True, "unbiased": False}),
    sinkhorn: ((ROWS,), {"epsilon": 0.05, "iterations": 3}),
    soft_nearest_neighbor: ((ROWS, np.arange(6) % 3), {"temperature": 0.1}),
    swapped_prediction: ((Z, OTHERS), {"temperature": 0.1, "epsilon": 0.05, "iterations": 3}),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", losses.__all__)
def test_arrays_are_enough_to_call_a_loss(name):
    loss = getattr(losses, name)
    arrays, settings = DEFAULTS[loss]
    found, expected = jax.jit(lambda *arrays: (loss(*arrays), loss(*arrays, **settings)))(*arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


class TestBadArguments:
    @every_loss
    def test_one_view(self, loss):
        with pytest.raises(ValueError, match=r"z\.shape=\(1, 4, 3\); expected \[views, batch, dim\] with at least 2"):
            loss(jnp.ones((1, 4, 3)))

    @every_loss
    def test_wrong_rank(self, loss):
        with pytest.raises(ValueError, match=r"z\.shape=\(4, 3\)"):
            loss(jnp.ones((4, 3)))

    @every_loss
    @pytest.mark.parametrize("shape", [(2, 0, 3), (2, 4, 0)])
    def test_empty_batch(self, loss, shape):
        with pytest.raises(
            ValueError, match=rf"z\.shape={re.escape(str(shape))}; expected \[views, batch, dim\] .* not"
        ):
            loss(jnp.ones(shape))

    @every_loss
    def test_integers(self, loss):
        with pytest.raises(TypeError, match=r"z\.dtype=int32; expected a floating-point type"):
            loss(jnp.ones((2, 4, 3), jnp.int32))

    @contrastive
    @pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
    def test_temperature(self, loss, temperature):
        with pytest.raises(ValueError, match=rf"temperature={temperature}; expected a number > 0"):
            loss(jnp.ones((2, 4, 3)), temperature=temperature)

    @contrastive
    @pytest.mark.parametrize("temperature", ["0.5", None, [0.5], np.ones(2)], ids=repr)
    def test_temperature_that_is_no_number(self, loss, temperature):
        with pytest.raises(TypeError, match=rf"temperature={re.escape(repr(temperature))}; expected a number > 0"):
            loss(jnp.ones((2, 4, 3)), temperature=temperature)

    @contrastive
    def test_bank_of_another_dimension(self, loss):
        with pytest.raises(ValueError, match=r"bank\.shape=\(5, 2\); expected \[size, 3\]"):
            loss(jnp.ones((2, 4, 3)), bank=jnp.ones((5, 2)))

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (
                lambda: cross_entropy(ROWS, np.zeros(5, int)),
                r"labels.shape=\(5,\); expected the batch of logits, \(6,\)",
            ),
            (lambda: cross_entropy(ROWS[:0], np.zeros(0, int)), r"logits.shape=\(0, 5\); .*, not empty"),
            (lambda: info_nce(ROWS, OTHERS, OTHERS), r"keys.shape=\(4, 5\); expected that of queries, \(6, 5\)"),
            (lambda: info_nce(ROWS, ROWS, OTHERS[:, :3]), r"negatives.shape=\(4, 3\); expected \[size, 5\]"),
            (
                lambda: info_nce_in_batch(ROWS[:0], ROWS[:0]),
                r"anchors.shape=\(0, 5\); expected \[batch, dim\], not empty",
            ),
            (lambda: info_nce_in_batch(ROWS, OTHERS), r"candidates.shape=\(4, 5\); expected that of anchors, \(6, 5\)"),
            (
                lambda: memory_logits(ROWS, OTHERS, OTHERS),
                r"positives.shape=\(4, 5\); expected the \[batch, dim\] of z",
            ),
            (lambda: noise_contrastive(ROWS[:, :1]), r"logits.shape=\(6, 1\); expected \[\.\.\., 1 \+ m\] with m >= 1"),
            (lambda: sinkhorn(ROWS, epsilon=0), r"epsilon=0; expected a number > 0"),
            (lambda: sinkhorn(ROWS, iterations=0), r"iterations=0; expected a whole number >= 1"),
            (lambda: swapped_prediction(Z, ROWS.T), r"prototypes.shape=\(5, 6\); expected \[prototypes, 5\]"),
            (
                lambda: redundancy_reduction(Z, off_diagonal_weight=-1),
                r"off_diagonal_weight=-1; expected a number >= 0",
            ),
        ],
    )
    def test_what_does_not_fit_together(self, call, message):
        with pytest.raises(ValueError, match=message):
            call()

    def test_a_normalizer_without_its_population(self):
        with pytest.raises(TypeError, match=r"population=None; expected a whole number >= 1 to go with a normalizer"):
            noise_contrastive(ROWS, normalizer=3.0)

    @contrastive
    def test_no_negatives(self, loss):
        with pytest.raises(ValueError, match=r"z\.shape=\(2, 1, 3\); expected at least 2 images"):
            loss(jnp.ones((2, 1, 3)))

    @pytest.mark.parametrize("prior", [-0.1, 1.0])
    def test_positive_prior(self, prior):
        with pytest.raises(ValueError, match=rf"positive_prior={prior}; expected a number in \[0, 1\)"):
            debiased_nt_xent(jnp.ones((2, 4, 3)), temperature=0.5, positive_prior=prior)

    def test_concentration(self):
        with pytest.raises(ValueError, match=r"concentration=-1; expected a number >= 0"):
            hard_nt_xent(jnp.ones((2, 4, 3)), temperature=0.5, positive_prior=0.1, concentration=-1)

    @every_loss
    def test_chunk_size(self, loss):
        with pytest.raises(ValueError, match=r"chunk_size=0; expected a whole number >= 1, or None"):
            loss(jnp.ones((2, 4, 3)), chunk_size=0)
        with pytest.raises(TypeError, match=r"chunk_size=1.5; expected a whole number >= 1, or None"):
            loss(jnp.ones((2, 4, 3)), chunk_size=1.5)
