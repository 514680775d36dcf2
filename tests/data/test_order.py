import numpy as np
import pytest

from metamask_jax.data.order import batch_indices, steps_per_epoch
from metamask_jax.errors import DataError


@pytest.mark.parametrize(("size", "batch_size"), [(12, 3), (13, 3), (5, 5), (7, 1)])
def test_each_example_comes_at_most_once_an_epoch_and_only_the_remainder_is_dropped(size, batch_size):
    steps = steps_per_epoch(size, batch_size)
    for epoch in range(3):
        batches = [batch_indices(3, epoch * steps + i, batch_size, size) for i in range(steps)]
        drawn = np.concatenate(batches)
        assert len(np.unique(drawn)) == len(drawn) == steps * batch_size > size - batch_size
        assert drawn.min() >= 0
        assert drawn.max() < size


def test_order_is_a_function_of_seed_and_epoch_alone():
    size, batch_size = 1000, 100
    epochs = {
        (seed, epoch): tuple(np.concatenate([batch_indices(seed, epoch * 10 + i, batch_size, size) for i in range(10)]))
        for seed in (0, 1)
        for epoch in (0, 1, 2)
    }
    assert len(set(epochs.values())) == 6
    assert epochs[1, 2][300:400] == tuple(batch_indices(1, 23, batch_size, size))


def test_order_stays_the_same_from_version_to_version():
    # Recorded once: a change here silently changes what every seed of every published run means.
    assert batch_indices(0, 0, 8, 20).tolist() == [0, 8, 19, 9, 3, 18, 14, 7]
    assert batch_indices(2024, 12345, 8, 50000).tolist() == [2926, 21663, 33618, 20481, 22426, 7386, 6433, 4685]


def test_every_position_of_the_epoch_is_equally_likely():
    # 4,000 epochs of 5 examples: each (example, position) count is binomial(4000, 1/5), sd 25.3.
    counts = np.zeros((5, 5), int)
    for epoch in range(4000):
        counts[batch_indices(1, epoch, 5, 5), np.arange(5)] += 1
    assert np.abs(counts - 800).max() < 5 * 25.3


def test_writing_into_a_batch_does_not_disturb_the_order():
    first = batch_indices(0, 0, 4, 8)
    expected = first.copy()
    first[:] = -1
    np.testing.assert_array_equal(batch_indices(0, 0, 4, 8), expected)


@pytest.mark.parametrize("batch_size", [0, -1, 11])
def test_a_batch_that_does_not_fit_the_set_is_refused(batch_size):
    with pytest.raises(DataError, match=rf"batch_size={batch_size}; expected 1 to 10"):
        batch_indices(0, 0, batch_size, 10)


def test_a_negative_seed_or_step_is_refused():
    with pytest.raises(ValueError, match="seed=-1"):
        batch_indices(-1, 0, 2, 4)
    with pytest.raises(ValueError, match="step=-3"):
        batch_indices(0, -3, 2, 4)
