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
