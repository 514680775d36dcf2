import numpy as np
import pytest
from PIL import Image

from metamask_jax.data import pictures

AREA, ASPECT = (0.2, 0.9), (3 / 4, 4 / 3)


def draw_boxes(size, count=4000):
    boxes = [
        pictures.random_box(size, pictures.uniform_draws(0, 0, i, 1)[0], area=AREA, aspect=ASPECT) for i in range(count)
    ]
    return np.array(boxes)


def slow_random_box(size, uniform):
    """One draw after another, as the procedure is usually written."""
    width, height = size
    for u_area, u_aspect, u_left, u_upper in uniform:
        area = width * height * (AREA[0] + (AREA[1] - AREA[0]) * u_area)
        aspect = np.exp(np.log(ASPECT[0]) + (np.log(ASPECT[1]) - np.log(ASPECT[0])) * u_aspect)
        w, h = np.sqrt(area * aspect), np.sqrt(area / aspect)
        if w <= width and h <= height:
            left, upper = u_left * (width - w), u_upper * (height - h)
            return left, upper, left + w, upper + h
    side = min(size)
    return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2


@pytest.mark.parametrize("size", [(100, 100), (300, 90), (50, 400)])
def test_random_boxes_equal_the_slow_procedure(size):
    for i in range(300):
        uniform = pictures.uniform_draws(1, 2, i, 1)[0]
        box = pictures.random_box(size, uniform, area=AREA, aspect=ASPECT)
        np.testing.assert_allclose(box, slow_random_box(size, uniform), rtol=1e-12, atol=1e-10)


def test_random_boxes_lie_within_the_picture_and_have_the_right_distribution():
    left, upper, right, lower = draw_boxes((1000, 1000)).T
    assert min(left.min(), upper.min()) >= 0
    assert max(right.max(), lower.max()) <= 1000
    area, aspect = (right - left) * (lower - upper) / 1e6, (right - left) / (lower - upper)
    assert area.min() >= 0.2
    assert area.max() <= 0.9
    # Below 0.75 every aspect fits, so that no draw is repeated and the area is uniform.
    below = area[area < 0.75]
    assert abs(below.mean() - 0.475) < 4 * 0.55 / np.sqrt(12 * len(below))
    assert abs(np.log(aspect).mean()) < 4 * np.log(16 / 9) / np.sqrt(12 * len(aspect))
    place = left / (1000 - (right - left))
    assert abs(place.mean() - 0.5) < 4 / np.sqrt(12 * len(place))


def test_a_picture_no_box_fits_gives_its_centred_square():
    box = pictures.random_box((1000, 10), pictures.uniform_draws(0, 0, 0, 1)[0], area=AREA, aspect=ASPECT)
    assert box == (495.0, 0.0, 505.0, 10.0)


def test_a_crop_is_the_box_it_says():
    pixels = np.zeros((30, 40, 3), np.uint8)
    pixels[10:20, 5:15] = 200
    crop = pictures.crop(Image.fromarray(pixels), (5, 10, 15, 20), 10)
    assert (crop == 200).all()


def test_draws_differ_by_seed_step_position_and_view():
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    draws = np.concatenate([pictures.uniform_draws(*key, 2) for key in keys])
    assert len(np.unique(draws)) == draws.size
    assert draws.min() >= 0
    assert draws.max() < 1
