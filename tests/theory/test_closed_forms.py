"""Expectations and divergences against Monte Carlo, quadrature and SciPy.

Four standard errors: each Monte Carlo comparison fails by chance about once in 16,000 fresh seeds; the seeds are fixed.
"""

import numpy as np
import pytest
from configurations import configuration, random_covariance
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

from gem_ood.errors import InputError
from gem_ood.gaussians import TiedGaussians
from gem_ood.theory import (
    analyze,
    half_distance,
    kl_divergence,
    log_expected_rescaled,
    log_expected_terms,
    log_overlap,
    pinsker,
    pinsker_large,
    total_variation,
)

N_ROWS = 2_000_000


def assert_within_four_errors(expected: float, values: np.ndarray) -> None:
    error = values.std(ddof=1) / np.sqrt(len(values))
    assert abs(values.mean() - expected) < 4.0 * error, (values.mean(), expected, error)


@pytest.mark.parametrize("seed", range(4))
def test_expected_scores_agree_with_two_million_rows_with_unequal_priors_and_another_covariance(seed):
    case = configuration(seed, n_classes=3, dimension=4)
    rng = np.random.default_rng(100 + seed)
    inside, _ = case.gaussians.sample(N_ROWS, random_state=rng)
    outside = rng.standard_normal((N_ROWS, 4)) @ np.linalg.cholesky(case.ood_covariance).T + case.ood_mean
    result = analyze(
        case.gaussians.class_means,
        case.gaussians.covariance,
        case.ood_mean,
        ood_covariance=case.ood_covariance,
        priors=case.gaussians.priors,
    )
    of_inside = np.exp(case.gaussians.exponents(inside)).sum(axis=1)
    of_outside = np.exp(case.gaussians.exponents(outside)).sum(axis=1)
    assert_within_four_errors(np.exp(result.log_expected_in), of_inside)
    assert_within_four_errors(np.exp(result.log_expected_out), of_outside)
    assert_within_four_errors(result.separation, of_inside - of_outside)


def test_weights_of_the_score_weigh_its_terms():
    case = configuration(7, n_classes=3, dimension=2)
    terms = log_expected_terms(case.gaussians, case.ood_mean, case.ood_covariance)
    weights = [0.2, 0.0, 3.0]
    weighted = log_expected_rescaled(case.gaussians, case.ood_mean, case.ood_covariance, weights=weights)
    assert weighted == pytest.approx(logsumexp(terms, b=weights))


@pytest.mark.parametrize("gamma", [0.0, 0.7, 3.0])
def test_the_overlap_is_the_integral_that_defines_it(gamma):
    integral, _ = quad(lambda x: norm.pdf(x) * np.exp(-0.5 * (x - gamma) ** 2), -np.inf, np.inf)
    assert np.exp(log_overlap(gamma, 1)) == pytest.approx(integral, rel=1e-9)
    in_seven_dimensions = np.log(integral) + 6 * np.log(np.exp(log_overlap(0.0, 1)))
    assert log_overlap(gamma, 7) == pytest.approx(in_seven_dimensions)


@pytest.mark.parametrize("k", [1, 2, 10])
@pytest.mark.parametrize("r", [0.5, 2.0, 6.0])
def test_the_separation_of_orthogonal_classes_is_the_papers_formula_and_its_closed_form(k, r):
    d = 12
    a_zero, a_r, a_between = np.exp(log_overlap([0.0, r, np.sqrt(2.0) * r], d))
    result = analyze(r * np.eye(k, d), np.eye(d), np.zeros(d))
    u = np.exp(-(r**2) / 4.0)
    assert result.separation == pytest.approx(a_zero - a_r + (k - 1) * (a_between - a_r), rel=1e-9, abs=1e-18)
    assert result.separation == pytest.approx(2.0 ** (-d / 2) * (1.0 - u) * (1.0 - (k - 1) * u), rel=1e-9, abs=1e-18)


def test_the_separation_turns_negative_under_two_root_log_of_k_minus_one():
    turn = 2.0 * np.sqrt(np.log(9.0))
    for r, sign in ((0.99 * turn, -1), (1.01 * turn, 1)):
        assert analyze(r * np.eye(10, 12), np.eye(12), np.zeros(12)).separation_sign == sign


def test_divergences_are_those_of_quadrature():
    alpha = half_distance([0.0], [2.6], [[1.7]])
    first, second = norm(0.0, np.sqrt(1.7)), norm(2.6, np.sqrt(1.7))
    kl, _ = quad(lambda x: first.pdf(x) * (first.logpdf(x) - second.logpdf(x)), -20.0, 20.0)
    variation, _ = quad(lambda x: 0.5 * abs(first.pdf(x) - second.pdf(x)), -20.0, 22.0, points=[1.3])
    assert kl_divergence([0.0], [2.6], [[1.7]]) == pytest.approx(kl, rel=1e-6)
    assert total_variation([0.0], [2.6], [[1.7]]) == pytest.approx(variation, rel=1e-6)
    assert alpha == pytest.approx(0.5 * 2.6 / np.sqrt(1.7))


def test_the_divergence_in_many_dimensions_is_the_mean_log_ratio():
    rng = np.random.default_rng(3)
    covariance, one, other = random_covariance(rng, 6), rng.normal(size=6), rng.normal(size=6)
    first, second = multivariate_normal(one, covariance), multivariate_normal(other, covariance)
    rows = first.rvs(200_000, random_state=4)
    assert_within_four_errors(kl_divergence(one, other, covariance), first.logpdf(rows) - second.logpdf(rows))


def test_both_pinsker_bounds_are_above_the_total_variation_everywhere():
    distances = np.geomspace(1e-3, 20.0, 200)
    for distance in distances:
        variation = total_variation([0.0], [distance], [[1.0]])
        kl = kl_divergence([0.0], [distance], [[1.0]])
        assert variation <= pinsker(kl)
        assert variation <= pinsker_large(kl)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: log_overlap(-1.0, 3), "at least 0"),
        (lambda: log_overlap(1.0, 0), "at least 1"),
        (lambda: pinsker(-0.1), "at least 0"),
        (lambda: pinsker_large(np.nan), "at least 0"),
        (lambda: kl_divergence([0.0], [1.0, 2.0], [[1.0]]), "two vectors of one length"),
        (lambda: total_variation([0.0, 0.0], [1.0, 2.0], [[1.0, 0.0], [0.0, -1.0]]), "positive semi-definite"),
        (lambda: log_expected_terms(TiedGaussians.from_parameters([[0.0]], [[1.0]]), [0.0, 1.0]), "pass one mean"),
        (lambda: log_expected_rescaled(TiedGaussians.from_parameters([[0.0]], [[1.0]]), [np.nan]), "NaN"),
        (
            lambda: log_expected_rescaled(TiedGaussians.from_parameters([[0.0]], [[1.0]]), [0.0], weights=[-1.0]),
            "at least 0",
        ),
    ],
)
def test_bad_input_to_the_pieces_is_one_clear_error(call, words):
    with pytest.raises(InputError, match=words):
        call()
