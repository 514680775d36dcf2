"""Protocols on a pretrained run: what they find, and that they leave it as it is."""

import copy
import dataclasses
import pathlib
import shutil

import jax
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from metamask_jax.data.sources import ArraySource, open_configured
from metamask_jax.data.subsets import stratified_subset
from metamask_jax.evaluate import protocols, workdir
from metamask_jax.evaluate.protocols import PROTOCOLS, Data, Settings
from metamask_jax.experiments.measures import measure

STANDARDISED = ("linear", "linear_10", "linear_1")
QUICK = Settings(sgd_epochs=3, augmented_epochs=2, mlp_epochs=3, finetune_epochs=1, finetune_min_steps=8)


@pytest.fixture(scope="module")
def data(pretrained: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder = tmp_path_factory.mktemp("protocols") / "run"
    run = workdir.load_run(shutil.copytree(pretrained, folder), step="last")
    train, test = (open_configured(run.config.data, split=split) for split in ("train", "test"))
    weights = run.mask_weights
    return Data(
        run,
        train,
        test,
        *workdir.features(run, train),
        *workdir.features(run, test),
        {"h": np.ones_like(weights), "h*m": weights},
    )


def accuracy(data: Data, result: protocols.ProtocolResult) -> float:
    return float(np.mean(result.scores.argmax(axis=1) == data.test_labels))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_leaves_the_encoder_bit_identical_and_gives_finite_scores(data: Data, name: str) -> None:
    before = copy.deepcopy(jax.tree.map(np.asarray, data.run.state))
    checkpoint = {path: path.read_bytes() for path in data.run.workdir.rglob("checkpoints/**/*") if path.is_file()}
    results = PROTOCOLS[name](data, QUICK)
    jax.tree.map(np.testing.assert_array_equal, data.run.state, before)
    assert all(path.read_bytes() == content for path, content in checkpoint.items())
    once = name.startswith("finetune") or name in STANDARDISED
    assert set(results) == ({"h"} if once else {"h", "h*m"})
    assert results["h"].same_for == (("h*m",) if name in STANDARDISED else ())
    for result in results.values():
        assert result.scores.shape == (len(data.test), data.train.num_classes)
        assert np.isfinite(result.scores.max(axis=1)).all()
        assert not np.isnan(result.scores).any()
        assert bool(result.chosen) == bool(result.held_out) == (not name.startswith("knn"))


@pytest.mark.parametrize("name", ["linear", "linear_sgd", "linear_augmented", "mlp", "finetune_10"])
def test_test_labels_decide_nothing(data: Data, name: str) -> None:
    other = data._replace(test_labels=(data.test_labels + 1) % data.train.num_classes)
    results, again = PROTOCOLS[name](data, QUICK), PROTOCOLS[name](other, QUICK)
    for kind, result in results.items():
        np.testing.assert_array_equal(again[kind].scores, result.scores)
        assert again[kind].chosen == result.chosen


@pytest.mark.parametrize(
    ("name", "oracle"),
    [
        ("knn_official", KNeighborsClassifier(5, metric="cosine", weights=lambda d: np.exp(1 - d))),
        ("knn_k200", KNeighborsClassifier(200, metric="cosine", weights=lambda d: np.exp((1 - d) / 0.1))),
        ("knn_euclidean5", KNeighborsClassifier(5)),
    ],
)
def test_neighbours_vote_as_in_scikit_learn(data: Data, name: str, oracle: KNeighborsClassifier) -> None:
    for kind, result in PROTOCOLS[name](data, QUICK).items():
        mask = data.masks[kind].astype(np.float64)
        oracle.fit(data.train_h * mask, data.train_labels)
        votes = np.exp(result.scores)
        expected = oracle.predict_proba(data.test_h * mask)
        np.testing.assert_allclose(votes / votes.sum(axis=1, keepdims=True), expected, atol=1e-4)


def test_linear_is_the_logistic_regression_of_scikit_learn(data: Data) -> None:
    result = PROTOCOLS["linear"](data, QUICK)["h"]
    deviation = data.train_h.std(axis=0)
    alive = deviation > 0
    train, test = (
        (h[:, alive] - data.train_h.mean(axis=0)[alive]) / deviation[alive] for h in (data.train_h, data.test_h)
    )
    oracle = LogisticRegression(C=1 / (result.chosen["l2"] * len(train)), max_iter=5000, tol=1e-6)
    assert accuracy(data, result) == pytest.approx(
        oracle.fit(train, data.train_labels).score(test, data.test_labels), abs=0.011
    )


def test_a_measure_of_an_experiment_has_both_kinds_of_features(data: Data) -> None:
    found = measure("linear", data.run.workdir)
    assert found["masked"] == found["accuracy"]
    found = measure("knn", data.run.workdir)
    assert found["masked"] != found["accuracy"]


@pytest.mark.parametrize("weight", [0.0, -0.5])
def test_a_mask_that_is_not_positive_has_a_linear_probe_of_its_own(data: Data, weight: float) -> None:
    mask = data.masks["h*m"].copy()
    mask[:6] = weight
    results = PROTOCOLS["linear_10"](data._replace(masks=data.masks | {"h*m": mask}), QUICK)
    assert set(results) == {"h", "h*m"}
    assert results["h"].same_for == ()
    if weight == 0.0:  # half of the dimensions are gone
        assert not np.allclose(results["h"].scores, results["h*m"].scores, atol=1e-2)


def colours(source: ArraySource, seed: int) -> ArraySource:
    """Noisy plain pictures of one colour per class, which one layer can learn."""
    palette, random = np.random.default_rng(7).integers(0, 256, (10, 3)), np.random.default_rng(seed)
    labels = random.integers(0, 10, len(source)).astype(np.int32)
    noise = random.integers(-20, 21, source.images.shape)
    images = np.clip(palette[labels][:, None, None] + noise, 0, 255).astype(np.uint8)
    return dataclasses.replace(source, images=images, labels=labels)


def test_fine_tuning_learns(data: Data) -> None:
    assert isinstance(data.train, ArraySource)
    assert isinstance(data.test, ArraySource)
    train, test = colours(data.train, 0), colours(data.test, 1)
    data = data._replace(train=train, train_labels=train.labels, test=test, test_labels=test.labels)
    settings = dataclasses.replace(QUICK, finetune_min_steps=40)
    result = PROTOCOLS["finetune"](data, settings)["h"]
    untrained = PROTOCOLS["finetune"](data, dataclasses.replace(QUICK, finetune_learning_rates=(0.0,)))["h"]
    np.testing.assert_array_equal(untrained.scores, 0.0)  # the classifier starts from zero
    assert accuracy(data, result) > 0.6


def test_a_subset_holds_its_share_of_every_class_and_at_least_one() -> None:
    labels = np.repeat(np.arange(4), (400, 150, 20, 3))
    rows = stratified_subset(labels, fraction=0.1, seed=0)
    np.testing.assert_array_equal(np.bincount(labels[rows]), [40, 15, 2, 1])
    assert len(np.unique(rows)) == len(rows)
    assert not np.array_equal(rows, stratified_subset(labels, fraction=0.1, seed=1))
    np.testing.assert_array_equal(stratified_subset(labels, fraction=1.0, seed=0), np.arange(len(labels)))


def test_fewer_labels_means_that_the_others_do_not_matter(data: Data) -> None:
    rows = stratified_subset(data.train_labels, fraction=0.1, seed=0)
    h = np.full_like(data.train_h, 1e3)
    h[rows] = data.train_h[rows]
    found, expected = (PROTOCOLS["linear_10"](looked_at, QUICK) for looked_at in (data._replace(train_h=h), data))
    for kind in expected:
        np.testing.assert_array_equal(found[kind].scores, expected[kind].scores)


def test_augmented_images_are_others_in_every_epoch_and_the_same_in_every_run(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []
    probes = protocols.minibatch_probes

    def watching(epoch_features: object, *args: object, **kwargs: object) -> object:
        seen.extend(epoch_features(epoch) for epoch in (0, 1, 0))  # type: ignore[operator]
        return probes(epoch_features, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(protocols, "minibatch_probes", watching)
    PROTOCOLS["linear_augmented"](data, QUICK)
    np.testing.assert_array_equal(seen[0], seen[2])
    assert not np.allclose(seen[0], seen[1], atol=1e-3)
    assert not np.allclose(seen[0], data.train_h, atol=1e-3)
    # Of the same images all the same: an image's crop is nearer to itself than to another image.
    centered = [h - h.mean(axis=0) for h in (seen[0], data.train_h)]
    assert np.mean(np.sum(centered[0] * centered[1], axis=1)) > 0.1 * np.mean(np.sum(centered[1] ** 2, axis=1))
