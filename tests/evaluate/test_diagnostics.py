"""Maps, masks and information of dimensions against closed forms and slow transcriptions."""

import itertools

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from metamask_jax.evaluate import knn_accuracy, linear_probe
from metamask_jax.evaluate.diagnostics import classes, information, masking
from tests.clusters import clusters


class TestClasses:
    def test_class_means_are_means_over_the_rows_of_a_class(self) -> None:
        h, labels = clusters(size=50)
        expected = [h[labels == c].astype(np.float64).mean(axis=0) for c in range(3)]
        np.testing.assert_allclose(classes.class_means(h, labels), expected, rtol=1e-12)

    def test_a_class_without_rows_has_no_mean(self) -> None:
        found = classes.class_means(np.ones((2, 3)), np.array([0, 2]))
        assert np.isnan(found[1]).all()
        np.testing.assert_array_equal(found[[0, 2]], 1.0)

    def test_the_map_is_in_standard_deviations_of_each_dimension(self) -> None:
        h, labels = clusters()
        found = classes.class_dimension_map(h, labels)
        for c, k in itertools.product(range(3), range(6)):
            column = h[:, k].astype(np.float64)
            np.testing.assert_allclose(found[c, k], (column[labels == c].mean() - column.mean()) / column.std())
        np.testing.assert_allclose(found, classes.class_dimension_map(50 * h + 7, labels), atol=1e-4)

    def test_constant_dimensions_are_zero_on_the_map(self) -> None:
        h, labels = clusters()
        h[:, 2], h[:, 3] = 0.1, 0.0
        np.testing.assert_array_equal(classes.class_dimension_map(h, labels)[:, 2:4], 0.0)

    def test_similarity_is_the_cosine_of_columns(self) -> None:
        h, _ = clusters(size=20)
        h[:, 4] = 0.0
        found = classes.dimension_similarity(h)
        for i, j in itertools.product(range(6), range(6)):
            norm = np.linalg.norm(h[:, i]) * np.linalg.norm(h[:, j])
            np.testing.assert_allclose(found[i, j], h[:, i] @ h[:, j] / norm if norm else 0.0, rtol=1e-5)

    def test_labels_of_another_length_or_missing_ones_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"shapes \(4, 2\) and \(3,\); expected"):
            classes.class_means(np.ones((4, 2)), np.zeros(3, int))
        with pytest.raises(ValueError, match="none below 0"):
            classes.class_means(np.ones((2, 2)), np.array([-1, -1]))


class TestMasks:
    def test_masks_the_asked_share_of_the_candidates_and_nothing_else(self) -> None:
        candidates = np.array([1, 3, 4, 6, 7])
        kept = masking.random_masks(candidates, dim=9, rate=0.4, trials=20, seed=0)
        assert kept.shape == (20, 9)
        np.testing.assert_array_equal((~kept).sum(axis=1), 2)
        assert kept[:, [0, 2, 5, 8]].all()
        assert not kept[:, candidates].all(axis=0).any(), "every candidate's turn comes"
        assert len(np.unique(kept, axis=0)) > 5

    def test_masks_follow_from_the_seed(self) -> None:
        draw = [masking.random_masks(np.arange(30), dim=30, rate=0.5, trials=3, seed=seed) for seed in (0, 0, 1)]
        np.testing.assert_array_equal(draw[0], draw[1])
        assert not np.array_equal(draw[0], draw[2])

    @pytest.mark.parametrize("rate", [0.0, 1.0])
    def test_nothing_to_draw_is_one_trial(self, rate: float) -> None:
        kept = masking.random_masks(np.arange(4), dim=4, rate=rate, trials=10, seed=0)
        np.testing.assert_array_equal(kept, [[rate == 0.0] * 4])

    def test_a_rate_is_a_share(self) -> None:
        with pytest.raises(ValueError, match=r"rate=1.5; expected a share in \[0, 1\]"):
            masking.random_masks(np.arange(4), dim=4, rate=1.5, trials=1, seed=0)

    def test_accuracy_at_rate_zero_is_that_of_the_features_and_at_one_that_of_the_rest(self) -> None:
        data = (*clusters(seed=1), *clusters(seed=2))
        judge = masking.knn(num_classes=3, k=5, temperature=1.0)
        candidates = np.array([0, 2, 3])
        found = masking.masked_accuracies(
            *data, accuracy=judge, candidates=candidates, rates=(0.0, 0.34, 1.0), trials=4, seed=0
        )
        np.testing.assert_array_equal(found.rates, [0.0, 0.34, 0.34, 0.34, 0.34, 1.0])
        expected = knn_accuracy(*data, k=5, temperature=1.0, num_classes=3)
        rest = [data[0][:, [1, 4, 5]], data[1], data[2][:, [1, 4, 5]], data[3]]
        assert found.at(0.0).tolist() == [expected]
        assert found.at(1.0).tolist() == [knn_accuracy(*rest, k=5, temperature=1.0, num_classes=3)]
        assert expected > found.at(1.0)[0] > 0.34, "the example should tell features apart"

    def test_masks_reach_training_and_test_features_alike(self) -> None:
        seen = []

        def judge(train_h: np.ndarray, train_labels: np.ndarray, test_h: np.ndarray, test_labels: np.ndarray) -> float:
            seen.append(((train_h == 0).all(axis=0), (test_h == 0).all(axis=0)))
            return 0.5

        masking.masked_accuracies(
            *clusters(), *clusters(seed=1), accuracy=judge, candidates=np.arange(6), rates=(0.5,), trials=3, seed=0
        )
        for train, test in seen:
            np.testing.assert_array_equal(train, test)
            assert train.sum() == 3

    def test_masking_the_noise_helps(self) -> None:
        h, labels = clusters(size=240)
        noisy = np.concatenate([h, 9.0 * np.random.default_rng(3).normal(size=(240, 4)).astype(np.float32)], axis=1)
        weights = np.array([0.9] * 6 + [0.1] * 4)
        data = (noisy[:120], labels[:120], noisy[120:], labels[120:])
        judge = masking.knn(num_classes=3, k=5, temperature=1.0)
        found = masking.masked_accuracies(
            *data, accuracy=judge, candidates=masking.below_average(weights), rates=(0.0, 1.0), trials=1, seed=0
        )
        assert found.at(1.0)[0] > found.at(0.0)[0] + 0.2
        halves = masking.probe_halves(*data, weights=weights, accuracy=judge)
        assert halves.below_count == 4
        assert halves.all == found.at(0.0)[0]
        assert halves.others == found.at(1.0)[0]
        assert halves.below == judge(noisy[:120, 6:], labels[:120], noisy[120:, 6:], labels[120:])

    def test_below_average_is_strict_so_an_untrained_mask_has_none(self) -> None:
        assert len(masking.below_average(np.full(7, 0.1, np.float32))) == 0
        data = (*clusters(size=30), *clusters(size=30, seed=1))
        judge = masking.knn(num_classes=3, k=1, temperature=None)
        halves = masking.probe_halves(*data, weights=np.full(6, 0.5), accuracy=judge)
        assert np.isnan(halves.below)
        assert halves.others == halves.all

    def test_the_linear_judge_is_the_linear_probe(self) -> None:
        data = (*clusters(size=60), *clusters(size=60, seed=1))
        expected = linear_probe(*data, num_classes=3, seed=4).accuracy
        assert masking.linear(num_classes=3, seed=4)(*data) == expected


def slow_information(a: np.ndarray, b: np.ndarray) -> float:
    """Mutual information in bits of two columns of categories, Miller's correction included."""
    size, total = len(a), 0.0
    for x, y in itertools.product(set(a), set(b)):
        joint = np.mean((a == x) & (b == y))
        if joint > 0:
            total += joint * np.log2(joint / (np.mean(a == x) * np.mean(b == y)))
    pairs = len(set(zip(a, b, strict=True)))
    return total - (pairs - len(set(a)) - len(set(b)) + 1) / (2 * size * np.log(2))


def slow_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, equals sharing their mean rank, counted value by value."""
    return np.array([np.sum(values < x) + (np.sum(values == x) + 1) / 2 for x in values])


class TestInformation:
    def test_equals_a_slow_transcription(self) -> None:
        h, labels = clusters(size=200)
        found = information.mutual_information(h, labels, bins=5)
        for k in range(6):
            column = h[:, k].astype(np.float64)
            bins = np.digitize(column, np.quantile(column, [0.2, 0.4, 0.6, 0.8]), right=True)
            np.testing.assert_allclose(found[k], slow_information(bins, labels), atol=1e-12)

    def test_a_copy_of_a_category_holds_its_entropy(self) -> None:
        target = np.repeat(np.arange(4), 1000)
        h = np.stack([target, -3.0 * target, np.zeros(4000), target // 2], axis=1).astype(np.float32)
        found = information.mutual_information(h, target, bins=16)
        np.testing.assert_allclose(found, [2.0, 2.0, 0.0, 1.0], atol=2e-3)

    def test_a_noisy_channel_has_its_capacity(self) -> None:
        random = np.random.default_rng(0)
        sent = random.integers(0, 2, 200_000)
        received = np.where(random.uniform(size=sent.size) < 0.11, 1 - sent, sent)
        entropy = -(0.11 * np.log2(0.11) + 0.89 * np.log2(0.89))
        found = information.mutual_information(received[:, None].astype(float), sent, bins=8)
        np.testing.assert_allclose(found, 1 - entropy, atol=5e-3)

    def test_gaussian_information_is_approached_from_below_as_bins_grow(self) -> None:
        random = np.random.default_rng(0)
        a = random.normal(size=100_000)
        b = 0.8 * a + 0.6 * random.normal(size=a.size)
        exact = -0.5 * np.log2(1 - 0.8**2)
        coarse, fine = (information.mutual_information(a[:, None], b, bins=bins)[0] for bins in (4, 64))
        assert coarse < fine < exact
        np.testing.assert_allclose(fine, exact, rtol=0.03)

    def test_nothing_to_know_is_zero_on_average_where_counts_alone_would_not_be(self) -> None:
        random = np.random.default_rng(0)
        h, labels = random.normal(size=(2000, 200)), random.integers(0, 10, 2000)
        found = information.mutual_information(h, labels, bins=16)
        bias = 15 * 9 / (2 * 2000 * np.log(2))
        assert abs(found.mean()) < 0.05 * bias
        assert found.min() < 0 < found.max()

    def test_does_not_change_under_increasing_functions(self) -> None:
        h, labels = clusters(size=300)
        h = h.astype(np.float64)
        expected = information.mutual_information(h, labels, bins=8)
        # Edges are interpolated between neighbours, which stays between them.
        np.testing.assert_allclose(information.mutual_information(np.exp(h), labels, bins=8), expected, atol=1e-12)

    def test_the_rank_correlation_is_that_of_ranks_which_equals_share(self) -> None:
        random = np.random.default_rng(0)
        a, b = random.integers(0, 9, 40).astype(float), random.normal(size=40)
        np.testing.assert_allclose(
            information.spearman(a, b), np.corrcoef(slow_ranks(a), slow_ranks(b))[0, 1], rtol=1e-12
        )
        assert np.isnan(information.spearman(np.ones(4), np.arange(4.0)))
        assert np.isnan(information.spearman(np.arange(4.0), np.full(4, np.inf)))

    def test_auc_is_that_of_scikit_learn(self) -> None:
        random = np.random.default_rng(0)
        scores, positive = random.integers(0, 9, 60).astype(float), random.uniform(size=60) < 0.3
        np.testing.assert_allclose(information.auc(scores, positive), roc_auc_score(positive, scores), rtol=1e-12)
        assert np.isnan(information.auc(scores, np.ones(60, bool)))

    def test_a_mask_that_knows_agrees_and_its_opposite_disagrees(self) -> None:
        random = np.random.default_rng(0)
        labels, hue = random.integers(0, 5, 2000), random.uniform(size=2000)
        share = np.linspace(0, 1, 20)  # from all hue to all class
        h = share * labels[:, None] + 5 * (1 - share) * hue[:, None] + 0.3 * random.normal(size=(2000, 20))
        found = information.measure(h, labels, {"hue": hue, "noise": random.uniform(size=2000)}, bins=8)
        assert found.strongest[0] == "hue"
        assert found.dominated[:8].all()
        assert not found.dominated[-8:].any()
        good, bad = (information.agreement(weights, found) for weights in (share, -share))
        assert good.auc == 1.0
        assert bad.auc == 0.0
        assert good.with_class > 0.9 > -0.9 > good.with_factor["hue"]
        assert good.with_difference > 0.9
        assert bad.with_class == -good.with_class

    def test_without_factors_nothing_is_dominated_and_there_is_no_auc(self) -> None:
        found = information.measure(*clusters(), {}, bins=4)
        assert not found.dominated.any()
        assert found.strongest == []
        assert np.isnan(information.agreement(np.arange(6.0), found).auc)

    def test_standard_deviations_of_chance_are_those_of_permutations(self) -> None:
        random = np.random.default_rng(0)
        known = {"hue": random.normal(size=12)}
        found = information.Information(random.normal(size=12), known)
        agreement = information.agreement(12.0 * np.arange(12), found)
        weights = random.permuted(np.tile(np.arange(12), (4000, 1)), axis=1)  # ranks already, from zero
        ranks = slow_ranks(found.about_class)
        correlations = [np.corrcoef(row, ranks)[0, 1] for row in weights]
        np.testing.assert_allclose(np.std(correlations), agreement.chance, rtol=0.05)
        low, high = weights[:, found.dominated], weights[:, ~found.dominated]
        aucs = np.mean(low[:, :, None] < high[:, None, :], axis=(1, 2))
        np.testing.assert_allclose(np.std(aucs), agreement.auc_chance, rtol=0.05)
        assert information.agreement(weights[0], found).auc == pytest.approx(aucs[0], abs=1e-12)
        assert information.agreement(weights[0], found).with_class == pytest.approx(correlations[0], abs=1e-12)
