"""What the report shows of features: the right neighbours, the right directions, the right pictures."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from metamask_jax.data.in_memory import ArraySource
from metamask_jax.evaluate import gallery
from metamask_jax.evaluate.knn import Neighbors
from metamask_jax.evaluate.samples import Samples

RANDOM = np.random.default_rng(0)


def source(count: int, side: int = 8) -> ArraySource:
    """Pictures whose every pixel is the number of the picture."""
    images = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None, None], (count, side, side, 3))
    labels = np.arange(count, dtype=np.int32) % 3
    names = ("a", "b", "c")
    return ArraySource(
        name="numbers", images=np.array(images), labels=labels, num_classes=3, class_names=names, factors={}
    )


def shown(images: np.ndarray) -> np.ndarray:
    """Which pictures of a source they are."""
    return images[..., 0, 0, 0]


def test_a_picture_is_not_its_own_neighbour():
    h = RANDOM.normal(size=(30, 4)).astype(np.float32)
    h[7] = h[3]  # a twin: which of the two comes first is not defined
    rows = np.array([3, 7, 12])
    similarity, indices = gallery.neighbors_within(h, rows)
    assert indices.shape == (3, gallery.NEIGHBORS)
    assert indices[0, 0] == 7
    assert indices[1, 0] == 3
    cosines = (h / np.linalg.norm(h, axis=1, keepdims=True)) @ (h[12] / np.linalg.norm(h[12]))
    cosines[12] = -np.inf
    assert indices[2].tolist() == np.argsort(-cosines)[: gallery.NEIGHBORS].tolist()
    np.testing.assert_allclose(similarity[2], np.sort(cosines)[::-1][: gallery.NEIGHBORS], atol=1e-6)


def test_two_pictures_have_one_neighbour_each():
    _, indices = gallery.neighbors_within(np.array([[1.0, 0.0], [0.0, 1.0]], np.float32), np.array([0, 1]))
    assert indices.tolist() == [[1], [0]]


def test_neighbours_come_with_their_pictures_and_labels():
    found = Neighbors(np.zeros((2, 3)), np.array([[4, 0, 2], [1, 1, 5]]))
    arrays = gallery.neighbor_arrays(found, np.array([2, 3]), source(6), source(9))
    assert shown(arrays["query_images"]).tolist() == [2, 3]
    assert shown(arrays["neighbor_images"]).tolist() == [[4, 0, 2], [1, 1, 5]]
    assert arrays["neighbor_labels"].tolist() == [[1, 0, 2], [1, 1, 2]]


@pytest.mark.parametrize("size", [40, 3 * gallery.MAP_POINTS])
def test_the_map_is_a_principal_component_analysis(size):
    h = (RANDOM.normal(size=(size, 5)) * [5, 3, 1, 1, 0.1] + 7).astype(np.float32)
    arrays = gallery.map_arrays(h, np.arange(size))
    rows = arrays["map_labels"]
    assert len(rows) == min(size, gallery.MAP_POINTS)
    expected = PCA(2).fit(h[rows].astype(np.float64))
    np.testing.assert_allclose(arrays["map_shares"], expected.explained_variance_ratio_, rtol=1e-6)
    np.testing.assert_allclose(np.abs(arrays["map_points"]), np.abs(expected.transform(h[rows])), atol=1e-4)


def test_features_that_are_not_finite_have_a_map():
    h = RANDOM.normal(size=(9, 3)).astype(np.float32)
    h[2, 1] = np.nan
    assert np.isfinite(gallery.map_arrays(h, np.zeros(9, int))["map_points"]).all()


def test_features_that_are_all_the_same_have_a_map():
    arrays = gallery.map_arrays(np.ones((5, 3), np.float32), np.zeros(5, int))
    assert np.isfinite(arrays["map_points"]).all()
    assert arrays["map_shares"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("learned", [True, False])
def test_dimensions_are_chosen_by_the_mask_or_by_their_spread(learned):
    h = RANDOM.normal(size=(50, 20)).astype(np.float32) * np.linspace(2, 1, 20, dtype=np.float32)
    weights = np.linspace(0, 1, 20) if learned else np.full(20, 0.5)
    arrays = gallery.dimension_arrays(h, np.arange(50) % 3, weights, source(50))
    order = np.argsort(weights) if learned else np.argsort(h.std(axis=0))
    assert arrays["dimension_indices"].tolist() == [*order[::-1][:6], *order[:6]]
    first = np.argsort(-h[:, arrays["dimension_indices"][0]])[:8]
    assert shown(arrays["dimension_images"])[0].tolist() == first.tolist()
    assert arrays["dimension_labels"][0].tolist() == (first % 3).tolist()


def test_a_single_dimension_has_nothing_to_be_compared_with():
    assert gallery.dimension_arrays(np.ones((4, 1)), np.zeros(4, int), np.ones(1), source(4)) == {}


def test_large_pictures_are_reduced_and_small_ones_left_alone():
    large = gallery.sample_arrays(
        Samples(source(2, side=200).images, source(6, side=40).images.reshape(3, 2, 40, 40, 3))
    )
    assert large["sample_images"].shape == (2, 64, 64, 3)
    assert large["sample_views"].shape == (3, 2, 40, 40, 3)
    assert shown(large["sample_views"]).tolist() == [[0, 1], [2, 3], [4, 5]]


def test_queries_are_of_as_many_classes_as_there_is_room_for():
    labels = RANDOM.integers(0, 30, 500)
    assert len(np.unique(labels[gallery.query_rows(labels)])) == gallery.QUERIES
    assert gallery.query_rows(np.full(100, -1)).tolist() == [0, 14, 28, 42, 57, 71, 85, 99]
    assert gallery.query_rows(np.array([-1, -1])).tolist() == [0, 1]
