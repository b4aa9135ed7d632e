"""The covariance policy against scikit-learn, and what happens when the covariance has no full rank."""

import warnings

import numpy as np
import pytest
from sklearn import covariance as sklearn_covariance

from gem_ood import GEM
from gem_ood.errors import InputError, RankWarning
from gem_ood.gaussians import TiedGaussians, collect, factorize, tied_covariance
from gem_ood.metrics import auroc


def rows(n=150, m=8, k=3, seed=0):
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % k
    mixing = generator.normal(size=(m, m))
    return generator.normal(size=(n, m)) @ mixing + 5 * generator.normal(size=(k, m))[labels], labels


def centred(features, labels):
    return features - np.array([features[labels == name].mean(axis=0) for name in np.unique(labels)])[labels]


def test_the_default_is_the_papers_divisor_n_estimate():
    features, labels = rows()
    matrix, share = tied_covariance(collect(features, labels))
    residuals = centred(features, labels)
    np.testing.assert_allclose(matrix, residuals.T @ residuals / len(features), rtol=1e-10)
    assert share == 0.0


@pytest.mark.parametrize("n", [20, 150, 2000])
def test_oas_is_scikit_learns_on_centred_rows(n):
    features, labels = rows(n=n)
    matrix, share = tied_covariance(collect(features, labels), "oas")
    expected, expected_share = sklearn_covariance.oas(centred(features, labels), assume_centered=True)
    assert share == pytest.approx(expected_share, rel=1e-9)
    np.testing.assert_allclose(matrix, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n", [20, 150, 2000])
def test_ledoit_wolf_is_scikit_learns_on_centred_rows(n):
    features, labels = rows(n=n)
    detector = GEM(covariance="ledoit-wolf").fit(features, labels)
    expected, share = sklearn_covariance.ledoit_wolf(centred(features, labels), assume_centered=True)
    assert detector.gaussians_.shrinkage == pytest.approx(share, rel=1e-9)
    np.testing.assert_allclose(detector.gaussians_.covariance, expected, rtol=1e-9, atol=1e-12)


def test_a_float_is_the_share_of_shrinkage():
    features, labels = rows()
    matrix, _ = tied_covariance(collect(features, labels), 0.3)
    empirical, _ = tied_covariance(collect(features, labels))
    np.testing.assert_allclose(matrix, sklearn_covariance.shrunk_covariance(empirical, shrinkage=0.3), rtol=1e-12)


@pytest.mark.parametrize("policy", ["lw", -0.1, 1.5, True, float("nan")])
def test_an_unknown_policy_is_refused(policy):
    with pytest.raises(InputError, match="'empirical', 'ledoit-wolf', 'oas', or a shrinkage share"):
        tied_covariance(collect(*rows()), policy)


def test_ledoit_wolf_cannot_come_from_streamed_statistics_and_says_so():
    with pytest.raises(InputError, match=r"second pass.*covariance='oas', which streams"):
        tied_covariance(collect(*rows()), "ledoit-wolf")
    with pytest.raises(InputError, match=r"cannot stream.*covariance='oas'"):
        GEM(covariance="ledoit-wolf").partial_fit(*rows())


def test_the_whitener_whitens_at_full_rank():
    matrix, _ = tied_covariance(collect(*rows()))
    factor = factorize(matrix)
    np.testing.assert_allclose(factor.whitener.T @ matrix @ factor.whitener, np.eye(8), atol=1e-10)
    assert factor.log_determinant == pytest.approx(np.linalg.slogdet(matrix)[1])
    assert factor.rank == 8


def warns_of_rank(rank, dimension):
    return pytest.warns(RankWarning, match=f"rank {rank} of {dimension} dimensions.*Remedy")


def shifted(features):
    """Rows of no class at all: the whole cloud moved well outside."""
    return features + 12.0 * features.std(axis=0)


def separates(detector, held_out):
    return auroc(detector.score_samples(held_out), detector.score_samples(shifted(held_out)))


def test_a_duplicated_column_changes_no_score():
    features, labels = rows(400)
    plain = GEM().fit(features, labels).score_samples(features)
    doubled = np.column_stack([features, features[:, 2]])
    with warns_of_rank(8, 9):
        detector = GEM().fit(doubled, labels)
    np.testing.assert_allclose(detector.score_samples(doubled), plain, rtol=1e-6)
    assert separates(detector, doubled) > 0.99


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_column_constant_in_training_is_left_out_whatever_it_does_later(dtype):
    features, labels = rows(400)
    plain = GEM().fit(features.astype(dtype), labels).score_samples(features.astype(dtype))
    training = np.column_stack([features, np.full(400, 0.1)]).astype(dtype)
    later = np.column_stack([features, np.random.default_rng(1).normal(size=400)]).astype(dtype)
    with warns_of_rank(8, 9):
        detector = GEM().fit(training, labels)
    np.testing.assert_allclose(detector.score_samples(later), plain, rtol=1e-5)


def test_a_dead_unit_that_only_carries_rounding_noise_counts_as_constant():
    features, labels = rows(400)
    noise = (0.7 + 6e-8 * np.random.default_rng(0).integers(-1, 2, 400))[:, np.newaxis]
    dead = np.column_stack([features, noise]).astype(np.float32)
    with warns_of_rank(8, 9):
        detector = GEM().fit(dead, labels)
    assert separates(detector, dead) > 0.99


def test_a_sum_of_other_features_is_found_although_cholesky_would_not_raise():
    features, labels = rows(400)
    summed = np.column_stack([features, features[:, 0] - 2 * features[:, 3]]).astype(np.float32)
    with warns_of_rank(8, 9):
        detector = GEM().fit(summed, labels)
    assert separates(detector, summed) > 0.99


def test_fewer_rows_than_dimensions_works_on_the_rows_span():
    generator = np.random.default_rng(3)
    features = generator.normal(size=(40, 100))
    labels = np.arange(40) % 2
    with warns_of_rank(38, 100):
        detector = GEM().fit(features, labels)
    held_out = generator.normal(size=(300, 100))
    assert auroc(detector.score_samples(held_out), detector.score_samples(held_out + 6.0)) > 0.99


def test_shrinkage_makes_every_direction_count_and_warns_of_nothing():
    generator = np.random.default_rng(3)
    features = generator.normal(size=(40, 100))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for policy in ("oas", "ledoit-wolf", 0.2):
            detector = GEM(covariance=policy).fit(features, np.arange(40) % 2)
            assert detector.gaussians_.rank == 100
            held_out = generator.normal(size=(200, 100))
            assert auroc(detector.score_samples(held_out), detector.score_samples(held_out + 2.0)) > 0.99


def test_the_warning_comes_once_per_fit():
    features, labels = rows(60)
    doubled = np.column_stack([features, features])
    with pytest.warns(RankWarning) as caught:
        GEM(relative=True).fit(doubled, labels).calibrate(doubled).score_samples(doubled)
    assert len(caught) == 1


def test_a_class_with_one_row_has_that_row_as_mean_and_adds_no_scatter():
    features, labels = rows(100)
    alone = np.vstack([features, [[50.0] * 8]])
    detector = GEM().fit(alone, np.append(labels, 9))
    assert detector.classes_.tolist() == [0, 1, 2, 9]
    np.testing.assert_array_equal(detector.gaussians_.class_means[3], [50.0] * 8)
    np.testing.assert_allclose(detector.statistics_.scatter, collect(features, labels).scatter, rtol=1e-10)
    assert detector.verdicts(np.full((1, 8), 50.0)).nearest_class.tolist() == [9]


def test_a_class_declared_but_absent_is_left_out_of_every_score():
    features, labels = rows(100)
    without = GEM().fit(features, labels).score_samples(features)
    detector = GEM().partial_fit(features, labels, classes=[0, 1, 2, 3])
    assert detector.classes_.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(detector.score_samples(features), without, rtol=1e-12)
    assert detector.gaussians_.classes.tolist() == [0, 1, 2]


def test_one_row_per_class_leaves_nothing_to_measure_by():
    with pytest.raises(InputError, match=r"no feature varies within a class.*more than one row per class"):
        GEM().fit([[1.0], [2.0]], [0, 1])


def test_the_density_on_the_support_integrates_to_one():
    gaussians_covariance = np.array([[2.0, 2.0], [2.0, 2.0]])
    with pytest.warns(RankWarning):
        gaussian = TiedGaussians.from_parameters([[0.0, 0.0]], gaussians_covariance)
    along = np.linspace(-30, 30, 20001)[:, np.newaxis] * np.array([[1.0, 1.0]]) / np.sqrt(2.0)
    density = np.exp(gaussian.log_density(along))
    assert np.trapezoid(density, dx=60 / 20000) == pytest.approx(1.0, abs=1e-6)


def test_oas_has_no_unit():
    rows = np.random.default_rng(0).normal(size=(50, 4)) * [1.0, 2.0, 3.0, 4.0]
    share = tied_covariance(collect(rows), "oas")[1]
    for scale in (1e-80, 1e140):
        assert tied_covariance(collect(scale * rows), "oas")[1] == pytest.approx(share, rel=1e-9)
