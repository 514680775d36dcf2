"""Random draws: torchvision's crop given the same numbers, and every distribution by a test that can fail.

Statistical tests use fixed seeds and reject at p < 1e-3; 20,000 draws tell a probability of 0.2 from 0.215.
"""

import collections
import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from metamask_jax.augment import PRESETS, RandomResizedCrop, draws, example_keys, sample_draws

COUNT = 20_000
SMALLEST_P = 1e-3
STRONG = dataclasses.replace(
    PRESETS["byol"](96)[1],
    crop=RandomResizedCrop(scale=(0.1, 0.3), ratio=(3 / 4, 4 / 3)),
    jitter=(0.4, 1.5, 0.2, 0.1),
    flip_p=0.3,
    jitter_p=0.6,
    grey_p=0.2,
    blur_p=0.1,
    solarize_p=0.25,
)
HEIGHT, WIDTH = 4000, 3000  # so large that whole pixels are a continuum, and every crop fits


@functools.cache
def many(view=0, seed=0):
    """Draws of `COUNT` examples of one step."""
    keys = example_keys(seed, 3, jnp.arange(COUNT))

    def draw(key):
        return sample_draws(jax.random.fold_in(key, view), STRONG, height=HEIGHT, width=WIDTH)

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(draw))(keys))


def assert_uniform(values, low, high):
    assert stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue > SMALLEST_P


def test_crops_have_uniform_area_log_uniform_ratio_and_uniform_place():
    top, left, height, width = many().box.T.astype(np.float64)
    assert_uniform(height * width / (HEIGHT * WIDTH), 0.1, 0.3)
    assert_uniform(np.log(width / height), math.log(3 / 4), math.log(4 / 3))
    assert_uniform(top / (HEIGHT - height), 0, 1)
    assert_uniform(left / (WIDTH - width), 0, 1)


def test_steps_are_applied_with_their_probabilities():
    d = many()
    applied = {
        "flip_p": d.flip,
        "jitter_p": (d.jitter != [1, 1, 1, 0]).any(axis=1),
        "grey_p": d.grey == 0,
        "blur_p": d.sigma >= 0.1,
        "solarize_p": d.threshold <= 1,
    }
    for name, hits in applied.items():
        assert stats.binomtest(int(hits.sum()), COUNT, vars(STRONG)[name]).pvalue > SMALLEST_P, name


def test_factors_are_uniform_around_one_and_cut_at_zero():
    brightness, contrast, saturation, hue = many().jitter[(many().jitter != [1, 1, 1, 0]).any(axis=1)].T
    assert_uniform(brightness, 0.6, 1.4)
    assert_uniform(contrast, 0.0, 2.5)
    assert_uniform(saturation, 0.8, 1.2)
    assert_uniform(hue, -0.1, 0.1)


def test_blur_is_uniform_in_its_range_and_solarize_has_its_threshold():
    assert_uniform(many().sigma[many().sigma >= 0.1], 0.1, 2.0)
    assert set(np.unique(many().threshold)) == {0.5, 2.0}


def test_all_24_orders_are_equally_likely():
    counts = collections.Counter(map(tuple, many().order))
    assert set(counts) == set(itertools.permutations(range(4)))
    assert stats.chisquare(list(counts.values())).pvalue > SMALLEST_P


def flat(d):
    """All continuous draws as columns."""
    box = d.box.astype(np.float64)
    return np.column_stack([box, d.jitter, d.sigma, d.grey, d.threshold, d.flip, d.order[:, 0]])


def test_parameters_examples_and_views_are_independent():
    here, other_view, other_seed = flat(many()), flat(many(view=1)), flat(many(seed=1))
    shifted = np.roll(here, 1, axis=0)  # the neighbour in the batch
    smallest = min(
        stats.spearmanr(here[:, i], there[:, i]).pvalue
        for there in (other_view, other_seed, shifted)
        for i in range(here.shape[1])
    )
    assert smallest > SMALLEST_P / 10  # of 39 tests
    columns = {"top": 0, "brightness": 4, "hue": 7, "sigma": 8, "grey": 9, "threshold": 10, "flip": 11, "order": 12}
    pairs = itertools.combinations(columns.values(), 2)
    # Only among jittered examples: both factors being neutral is a true dependence.
    jittered = here[(many().jitter != [1, 1, 1, 0]).any(axis=1)]
    assert min(stats.spearmanr(jittered[:, i], jittered[:, j]).pvalue for i, j in pairs) > SMALLEST_P / 10


def slow_box(uniform, crop, height, width):
    """torchvision's loop; None if a size is so near to half a pixel that float32 may round it the other way."""
    for i in range(10):
        area = height * width * (crop.scale[0] + (crop.scale[1] - crop.scale[0]) * uniform[i])
        low, high = map(math.log, crop.ratio)
        ratio = math.exp(low + (high - low) * uniform[10 + i])
        w, h = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if min(abs(w % 1 - 0.5), abs(h % 1 - 0.5)) < 1e-4:
            return None
        w, h = round(w), round(h)
        if 0 < w <= width and 0 < h <= height:
            return math.floor(uniform[20] * (height - h + 1)), math.floor(uniform[21] * (width - w + 1)), h, w
    if width / height < crop.ratio[0]:
        w, h = width, round(width / crop.ratio[0])
    elif width / height > crop.ratio[1]:
        w, h = round(height * crop.ratio[1]), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize(("height", "width"), [(32, 32), (24, 40), (10, 90), (90, 10)])
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.8, 1.0)])
def test_box_is_torchvisions_for_the_same_numbers(height, width, scale):
    crop = RandomResizedCrop(scale=scale, ratio=(3 / 4, 4 / 3))
    uniform = np.random.default_rng(0).random((1000, 22), dtype=np.float32)
    sample = functools.partial(draws.sample_box, crop=crop, height=height, width=width)
    got = np.asarray(jax.vmap(sample)(jnp.asarray(uniform)))
    slow = [slow_box(row.astype(np.float64), crop, height, width) for row in uniform]
    clear = [i for i, box in enumerate(slow) if box is not None]
    assert len(clear) > 980
    np.testing.assert_array_equal(got[clear], [slow[i] for i in clear])


@pytest.mark.parametrize(
    ("height", "width", "box"), [(10, 90, (0, 38, 10, 13)), (90, 10, (38, 0, 13, 10)), (9, 10, (0, 0, 9, 10))]
)
def test_without_a_fitting_box_the_largest_central_one_is_taken(height, width, box):
    crop = RandomResizedCrop(scale=(2.0, 3.0), ratio=(3 / 4, 4 / 3))
    assert tuple(draws.sample_box(jnp.full(22, 0.5), crop, height=height, width=width)) == box


@pytest.mark.parametrize("number", [0.0, 1.0 - 2.0**-24])
def test_extreme_numbers_stay_in_range(number):
    crop = RandomResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
    top, left, height, width = draws.sample_box(jnp.full(22, number), crop, height=224, width=224)
    assert top >= 0
    assert left >= 0
    assert height >= 1
    assert width >= 1
    assert top + height <= 224
    assert left + width <= 224
    factors, order = draws.sample_jitter(jnp.full(6, number), (1.5, 0.4, 0.4, 0.1), p=1.0)
    assert 0 <= factors[0] <= 2.5
    assert sorted(map(int, order)) == [0, 1, 2, 3]


def test_changing_one_probability_leaves_the_other_draws():
    key = jax.random.key(0)
    before = sample_draws(key, dataclasses.replace(STRONG, blur_p=0.0), height=32, width=32)
    after = sample_draws(key, dataclasses.replace(STRONG, blur_p=1.0), height=32, width=32)
    assert after.sigma >= 0.1 > before.sigma
    for name in set(before._fields) - {"sigma"}:
        np.testing.assert_array_equal(before._asdict()[name], after._asdict()[name])
