"""Certificates face simulation: the promised rates hold, and no detector is under the floor.

Rates are from 200,000 rows; four standard errors, at most 0.0045, are allowed for chance.
"""

import numpy as np
import pytest
from configurations import configuration
from scipy.stats import chi2, ncx2, norm

from gem_ood.gaussians import TiedGaussians
from gem_ood.metrics import fpr_at_tpr
from gem_ood.scores import gem, weighted_gem
from gem_ood.theory import certificate, fpr_floor, predict_fpr

N_ROWS = 200_000
CHANCE = 4.0 * 0.5 / np.sqrt(N_ROWS)


def test_the_certificate_is_the_formula_of_non_central_chi_squares():
    gaussians = TiedGaussians.from_parameters(6.0 * np.eye(3, 20), np.eye(20))
    result = certificate(gaussians, np.zeros(20), tpr=0.9)
    quantile = chi2.ppf(0.9, 20)
    assert result.threshold == pytest.approx(-0.5 * quantile)
    assert result.fpr == pytest.approx(3.0 * ncx2.cdf(quantile + 2.0 * np.log(3.0), 20, 36.0))
    assert result.log_fpr == pytest.approx(np.log(result.fpr))


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_the_promised_rates_hold(seed, is_tied, is_weighted):
    case = configuration(seed, n_classes=3, dimension=5, scale=2.0)
    weights = case.gaussians.priors if is_weighted else np.ones(3)
    covariance = case.gaussians.covariance if is_tied else case.ood_covariance
    result = certificate(
        case.gaussians, case.ood_mean, ood_covariance=None if is_tied else covariance, weights=weights, tpr=0.9
    )
    rng = np.random.default_rng(seed)
    inside, _ = case.gaussians.sample(N_ROWS, random_state=rng)
    outside = rng.standard_normal((N_ROWS, 5)) @ np.linalg.cholesky(covariance).T + case.ood_mean
    assert np.mean(weighted_gem(case.gaussians.exponents(inside), weights) >= result.threshold) >= 0.9 - CHANCE
    assert np.mean(weighted_gem(case.gaussians.exponents(outside), weights) >= result.threshold) <= result.fpr + CHANCE


def test_with_weights_the_threshold_keeps_the_asked_share_of_each_class_by_its_own_term():
    """The guarantee rests on the own class's term alone, whose law is a shifted χ²: checked exactly."""
    gaussians = TiedGaussians.from_parameters([[0.0, 0.0], [50.0, 0.0]], np.eye(2), priors=[0.7, 0.3])
    result = certificate(gaussians, [25.0, 0.0], weights=[0.7, 0.3])
    kept = [chi2.cdf(2.0 * (np.log(weight) - result.threshold), 2) for weight in (0.7, 0.3)]
    assert 0.7 * kept[0] + 0.3 * kept[1] == pytest.approx(0.95)


def test_a_class_that_the_score_ignores_leaves_only_the_trivial_certificate():
    gaussians = TiedGaussians.from_parameters([[0.0], [50.0]], [[1.0]])
    result = certificate(gaussians, [25.0], weights=[1.0, 0.0])
    assert (result.threshold, result.fpr) == (-np.inf, 1.0)


def test_far_classes_have_a_finite_logarithm_where_the_rate_underflows():
    gaussians = TiedGaussians.from_parameters(200.0 * np.eye(2, 64), np.eye(64))
    result = certificate(gaussians, np.zeros(64))
    assert result.fpr == 0.0
    radius = np.sqrt(chi2.ppf(0.95, 64) + 2.0 * np.log(2.0))
    # the ball about a class is within a half-space at distance 200 − radius, whose share is under exp(−½ distance²)
    assert -np.inf < result.log_fpr
    assert result.log_fpr == pytest.approx(-0.5 * (200.0 - radius) ** 2, rel=0.02)


@pytest.mark.parametrize("distance", [0.0, 1.0, 3.0, 80.0])
def test_the_floor_at_equal_distances_is_neyman_and_pearsons(distance):
    gaussians = TiedGaussians.from_parameters(distance * np.eye(3, 4), np.eye(4))
    assert fpr_floor(gaussians, np.zeros(4)) == pytest.approx(norm.cdf(norm.ppf(0.95) - distance), rel=1e-6)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_no_detector_comes_under_the_floor_not_even_the_likelihood_ratio(seed, is_tied):
    case = configuration(seed, n_classes=3, dimension=2, scale=0.7)
    covariance = case.gaussians.covariance if is_tied else 0.5 * case.ood_covariance
    floor = fpr_floor(case.gaussians, case.ood_mean, ood_covariance=None if is_tied else covariance)
    rng = np.random.default_rng(seed)
    inside, _ = case.gaussians.sample(N_ROWS, random_state=rng)
    outside = rng.standard_normal((N_ROWS, 2)) @ np.linalg.cholesky(covariance).T + case.ood_mean
    other = TiedGaussians.from_parameters(case.ood_mean[np.newaxis], covariance)
    ratio = [case.gaussians.log_density(rows) - other.log_density(rows) for rows in (inside, outside)]
    best = fpr_at_tpr(*ratio)
    assert 0.0 < floor <= best + 2.0 * CHANCE
    assert floor >= 0.1 * best  # a floor of next to nothing would be true and useless
    of_gem = fpr_at_tpr(*(gem(case.gaussians.exponents(rows)) for rows in (inside, outside)))
    assert floor <= of_gem + 2.0 * CHANCE


def test_unequal_distances_have_a_higher_floor_than_the_farthest_class_alone():
    gaussians = TiedGaussians.from_parameters([[1.0, 0.0], [0.0, 5.0]], np.eye(2))
    floor = fpr_floor(gaussians, [0.0, 0.0])
    assert floor > norm.cdf(norm.ppf(0.95) - 5.0)
    assert floor < predict_fpr(gaussians, [0.0, 0.0])["linear-energy"].fpr


def test_an_out_of_distribution_without_width_has_no_floor():
    gaussians = TiedGaussians.from_parameters([[0.0, 0.0]], np.eye(2))
    assert fpr_floor(gaussians, [1.0, 0.0], ood_covariance=np.diag([1.0, 0.0])) == 0.0


def test_a_narrow_out_of_distribution_still_has_a_floor():
    """Orders above one end close to one there; the bound by divergences near KL is what is left."""
    gaussians = TiedGaussians.from_parameters(np.zeros((1, 2)), np.eye(2))
    for width in (0.1, 0.01, 0.001):
        floor = fpr_floor(gaussians, [0.5, 0.0], ood_covariance=np.diag([1.0, width]))
        assert 0.0 < floor < 1.0
