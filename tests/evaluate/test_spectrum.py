import jax.numpy as jnp
import numpy as np
import pytest

from metamask_jax.evaluate import spectrum


def features(seed: int = 0, size: int = 60, dim: int = 9) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.normal(size=(size, dim)) @ random.normal(size=(dim, dim)) + random.normal(size=dim)


def normalize(h: np.ndarray) -> np.ndarray:
    return h / np.linalg.norm(h, axis=1, keepdims=True)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("size", [60, 5])
def test_singular_values_are_roots_of_the_gram_matrix_eigenvalues(size: int) -> None:
    h = features(size=size)
    gram = h @ h.T if size < h.shape[1] else h.T @ h
    np.testing.assert_allclose(spectrum.singular_values(h), np.sqrt(np.linalg.eigvalsh(gram))[::-1], rtol=1e-6)


@pytest.mark.usefixtures("x64")
def test_effective_rank_is_the_exponential_of_the_entropy() -> None:
    h = features()
    shares = np.linalg.svd(h, compute_uv=False)
    shares /= shares.sum()
    np.testing.assert_allclose(spectrum.effective_rank(h), np.exp(-np.sum(shares * np.log(shares))), rtol=1e-10)


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_effective_rank_counts_equal_directions(rank: int) -> None:
    basis = np.linalg.qr(features(dim=8, size=40))[0][:, :rank]
    np.testing.assert_allclose(spectrum.effective_rank(basis @ np.eye(rank, 8)), rank, rtol=1e-3)


def test_alpha_is_the_weighted_slope_of_the_covariances_spectrum() -> None:
    h = features(size=400, dim=130)
    eigenvalues = np.linalg.eigvalsh(np.cov(h.T))[::-1]
    rank = np.arange(4, 101)
    x, y, w = np.stack([-np.log(rank), np.ones(97)], axis=1), np.log(eigenvalues[3:100]), 1 / rank
    expected = np.linalg.solve((x * w[:, None]).T @ x, (x * w[:, None]).T @ y)[0]
    np.testing.assert_allclose(spectrum.alpha_req(h), expected, rtol=1e-8)
    np.testing.assert_allclose(spectrum.alpha_req(h.astype(np.float32) + 3), expected, rtol=1e-4)


def test_alpha_leaves_out_directions_that_are_only_rounding() -> None:
    h = features(size=100, dim=30)
    flat = np.concatenate([h, h[:, :20] + h[:, 10:30]], axis=1).astype(np.float32)  # rank 30 of 50
    np.testing.assert_allclose(spectrum.alpha_req(flat), spectrum.alpha_req(flat, ranks=(4, 30)), rtol=1e-6)
    assert np.isnan(spectrum.alpha_req(h[:, :4]))


@pytest.mark.parametrize("noise", [0.0, 0.1, 3.0])
def test_lidar_is_the_effective_rank_of_the_discriminant_matrix(noise: float) -> None:
    random = np.random.default_rng(0)
    h = features(size=40, dim=7)[None] + noise * random.normal(size=(5, 40, 7)) * np.geomspace(1, 20, 7)
    between, within = np.zeros((7, 7)), 1e-4 * np.eye(7)
    mean = h.mean(axis=(0, 1))
    for image in range(40):
        own = h[:, image].mean(axis=0)
        between += np.outer(own - mean, own - mean) / 40
        for view in range(5):
            within += np.outer(h[view, image] - own, h[view, image] - own) / 200
    values, vectors = np.linalg.eigh(within)
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    shares = np.linalg.eigvalsh(root @ between @ root)
    shares = shares / shares.sum() + 1e-7
    np.testing.assert_allclose(spectrum.lidar(h), np.exp(-np.sum(shares * np.log(shares))), rtol=1e-5)


def test_lidar_does_not_count_what_changes_from_view_to_view() -> None:
    random = np.random.default_rng(0)
    images, changes = random.normal(size=(200, 6)), 10 * random.normal(size=(10, 200, 14))
    h = np.concatenate([np.broadcast_to(images, (10, 200, 6)), changes], axis=2)
    assert 5.5 < spectrum.lidar(h) < 6.5 < spectrum.effective_rank(h[0])


def test_effective_rank_of_features_that_are_all_zero_is_one() -> None:
    assert spectrum.effective_rank(jnp.zeros((4, 3))) == 1.0


@pytest.mark.usefixtures("x64")
def test_alignment_is_the_mean_squared_distance_on_the_sphere() -> None:
    h, other = features(0), features(1)
    expected = np.mean([np.linalg.norm(a - b) ** 2 for a, b in zip(normalize(h), normalize(other), strict=True)])
    np.testing.assert_allclose(spectrum.alignment(h, other), expected, rtol=1e-10)
    assert spectrum.alignment(h, 3.0 * h) < 1e-20


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("chunk", [1024, 60, 7])
def test_uniformity_is_the_log_mean_potential_of_all_pairs(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectrum, "_CHUNK", chunk)
    spectrum.uniformity.clear_cache()
    unit = normalize(features())
    pairs = [np.exp(-2.0 * np.sum((a - b) ** 2)) for i, a in enumerate(unit) for b in unit[:i]]
    np.testing.assert_allclose(spectrum.uniformity(features(), 2.0), np.log(np.mean(pairs)), rtol=1e-10)


@pytest.mark.usefixtures("x64")
def test_cross_correlation_is_that_of_numpy() -> None:
    h = features()
    np.testing.assert_allclose(spectrum.cross_correlation(h), np.corrcoef(h.T), atol=1e-10)


def test_constant_dimensions_correlate_with_nothing() -> None:
    h = features().astype(np.float32)
    h[:, 2] = 0.1
    h[:, 4] = 0.0
    found = np.asarray(spectrum.cross_correlation(h))
    np.testing.assert_array_equal(found[[2, 4]], 0.0)
    np.testing.assert_array_equal(found[:, [2, 4]], 0.0)
    np.testing.assert_allclose(np.delete(np.diag(found), [2, 4]), 1.0, rtol=1e-5)
