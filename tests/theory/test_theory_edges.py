"""Settings at the edge of the theory: few rows, no prior, wide spectra, extreme rates; none may crash or mislead."""

import numpy as np
import pytest
from scipy.stats import chi2, ncx2, norm

from gem_ood.errors import InputError
from gem_ood.gaussians import TiedGaussians
from gem_ood.metrics import fpr_at_tpr
from gem_ood.scores import gem_scores
from gem_ood.theory import (
    analyze,
    analyze_gaussians,
    certificate,
    fpr_floor,
    half_distance,
    kl_divergence,
    log_overlap,
    pinsker,
    predict_fpr,
)

STANDARD = TiedGaussians.from_parameters([[0.0, 0.0, 0.0]], np.eye(3))


@pytest.mark.parametrize("n_ood", range(2, 11))
@pytest.mark.parametrize("seed", range(3))
def test_a_covariance_of_few_rows_has_no_floor_or_a_finite_one(n_ood, seed):
    rows = np.random.default_rng(seed).normal(size=(n_ood, 8))
    covariance = np.cov(rows, rowvar=False)
    result = analyze(np.eye(2, 8), np.eye(8), rows.mean(axis=0), ood_covariance=covariance)
    assert 0.0 <= result.fpr_floor <= result.predicted_fpr <= 1.0
    if n_ood <= 8:  # rows in fewer directions than there are can be told apart without fail
        assert result.fpr_floor == 0.0


@pytest.mark.parametrize("width", [1e-6, 1e-11, 1e-14, 1e-300])
def test_a_direction_next_to_without_width_is_no_trouble(width):
    result = analyze(np.zeros((1, 3)), np.eye(3), np.ones(3), ood_covariance=np.diag([1.0, width, 1.0]))
    assert 0.0 <= result.fpr_floor < 1.0
    assert np.isfinite(result.log_expected_out)


@pytest.mark.parametrize("tpr", [0.8, 0.9, 0.92, 0.95, 0.99])
@pytest.mark.parametrize("priors", [[0.0, 1.0], [1.0, 0.0]])
def test_a_class_without_prior_counts_for_nothing(priors, tpr):
    means, present = np.array([[3.0, 0.0], [0.0, 5.0]]), int(np.argmax(priors))
    result = analyze(means, np.eye(2), [0.0, 0.0], priors=priors, tpr=tpr)
    distance = np.linalg.norm(means[present])
    assert result.fpr_floor == pytest.approx(norm.cdf(norm.ppf(tpr) - distance))
    singular = analyze(means, np.eye(2), [0.0, 0.0], priors=priors, ood_covariance=np.diag([1.0, 0.0]))
    assert not np.isnan(singular.bound_separation_pinsker)


@pytest.mark.parametrize("tpr", [0.01, 0.05, 0.5, 0.95, 0.999])
@pytest.mark.parametrize("variance", [0.0228546, 0.2, 1.5, 40.0])
@pytest.mark.parametrize("distance", [0.0, 3.0, 30.0])
def test_the_floor_of_one_dimension_is_under_the_exact_optimum(variance, distance, tpr):
    """The best verdict on N(r, 1) against N(0, v) is by the likelihood ratio, whose rates are sums over a fine grid."""
    floor = fpr_floor(TiedGaussians.from_parameters([[distance]], [[1.0]]), [0.0], ood_covariance=[[variance]], tpr=tpr)
    grid, step = np.linspace(-70.0, 110.0, 2_000_001, retstep=True)
    ratio = norm.logpdf(grid, distance) - norm.logpdf(grid, 0.0, np.sqrt(variance))
    order = np.argsort(-ratio)
    inside = np.cumsum(norm.pdf(grid, distance)[order]) * step
    outside = np.cumsum(norm.pdf(grid, 0.0, np.sqrt(variance))[order]) * step
    assert 0.0 <= floor <= outside[np.searchsorted(inside, tpr)] + 1e-4


def test_the_smallest_rates_have_a_certificate_too():
    gaussians = TiedGaussians.from_parameters([[0.0], [1.0]], [[1.0]])
    assert certificate(gaussians, [5.0], weights=[1.0, 2.0], tpr=1e-17).threshold > -1.0


@pytest.mark.parametrize(
    ("spectrum", "tpr"),
    [
        ([20.0, 5.0, 0.1], 0.95),
        ([100.0, 10.0, 8.0, 6.0] + [0.05] * 26, 0.95),
        ([1900.0, 90.0, 1.7, 0.3, 0.1, 0.1], 0.99),
        (np.exp(2.5 * np.random.default_rng(0).normal(size=30)).tolist(), 0.95),
        (np.exp(1.5 * np.random.default_rng(1).normal(size=200)).tolist(), 0.95),
        ((0.4 * np.arange(1.0, 301.0) ** -0.5 * 10.0).tolist(), 0.95),
    ],
)
def test_wide_spectra_are_predicted_too(spectrum, tpr):
    """Four standard errors of 200,000 rows, at most 0.0045; three moments alone were off by up to 0.09 here."""
    d, rng = len(spectrum), np.random.default_rng(2)
    gaussians = TiedGaussians.from_parameters(np.zeros((1, d)), np.eye(d))
    prediction = predict_fpr(gaussians, np.zeros(d), ood_covariance=np.diag(spectrum), tpr=tpr)["gem"]
    squares = np.zeros(200_000)
    for value in spectrum:
        squares += value * rng.chisquare(1, size=len(squares))
    exact = np.mean(squares <= chi2.ppf(tpr, d))
    error = np.sqrt(max(exact * (1.0 - exact), 1e-5) / len(squares))
    assert abs(prediction.fpr - exact) < 4.0 * error + 5.0 * prediction.standard_error + 1e-3


@pytest.mark.parametrize("tpr", [0.05, 0.95, 0.99, 0.999])
@pytest.mark.parametrize("r", [2.0, 4.0])
def test_rates_where_there_is_no_rest_to_smooth_them(r, tpr):
    prediction = predict_fpr(TiedGaussians.from_parameters([[r]], [[1.0]]), [0.0], tpr=tpr)["gem"]
    exact = ncx2.cdf(chi2.ppf(tpr, 1), 1, r**2)
    assert prediction.fpr == pytest.approx(exact, rel=0.01, abs=5.0 * prediction.standard_error)
    assert prediction.standard_error < 0.01 * exact


def test_the_best_possible_rate_is_never_above_the_asked_one():
    result = analyze([[0.0, 0.0, 0.0]], np.eye(3), [0.0, 0.0, 0.0])
    assert result.predicted_fpr_optimal == pytest.approx(0.95)
    assert result.looseness["fpr_floor"] == pytest.approx(0.0, abs=1e-9)


def test_classes_close_together_are_told_apart_beside_one_that_is_far():
    near = np.array([[0.0, 0.0, 0.0, 0.0], [5.0, 0.0, 0.0, 0.0]])
    results = []
    for far in (1e3, 1e8):
        means = np.vstack([near, [0.0, far, 0.0, 0.0]])
        gaussians = TiedGaussians.from_parameters(means, np.eye(4))
        predicted = predict_fpr(gaussians, [2.5, 0.0, 0.0, 0.0])
        results.append((predicted["gem"].fpr, predicted["msp"].fpr))
        exact = np.log((3.0 + 2.0 * np.exp(-25.0 / 4.0)) / 3.0) - 2.0 * np.log(2.0)
        assert analyze_gaussians(gaussians, [2.5, 0.0, 0.0, 0.0]).log_expected_in == pytest.approx(exact, rel=1e-6)
    np.testing.assert_allclose(results[1], results[0], atol=0.01)


def test_a_singular_covariance_is_accepted_though_the_classes_are_ill_conditioned():
    rng = np.random.default_rng(4)
    rotation, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    scales = np.geomspace(1.0, 1e-10, 6)
    covariance = (rotation * scales) @ rotation.T
    for n_zero in (1, 2, 3):
        narrow = (rotation * np.where(np.arange(6) < 6 - n_zero, scales, 0.0)) @ rotation.T
        result = analyze(np.zeros((1, 6)), covariance, np.zeros(6), ood_covariance=0.5 * (narrow + narrow.T))
        assert result.fpr_floor == 0.0


@pytest.mark.parametrize("seed", range(10))
def test_the_looseness_of_the_certificate_is_to_the_rate_at_its_own_threshold(seed):
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(3, 5)) * 3.0
    gaussians = TiedGaussians.from_parameters(means, np.eye(5))
    result = analyze_gaussians(gaussians, np.zeros(5))
    assert result.looseness["certified_fpr"] > -0.02
    assert result.looseness["fpr_floor"] > -0.02
    outside = rng.normal(size=(200_000, 5))
    rate = np.mean(gem_scores(gaussians, outside) >= result.certified_threshold)
    if rate > 1e-3:
        expected = np.log10(result.certified_fpr / rate)
        assert result.looseness["certified_fpr"] == pytest.approx(expected, abs=0.05)


def test_a_generator_is_a_random_state_and_other_things_are_not():
    first = predict_fpr(STANDARD, np.ones(3), random_state=np.random.default_rng(5))
    same = predict_fpr(STANDARD, np.ones(3), random_state=np.random.default_rng(5))
    assert first == same
    for wrong in (-1, "a", 1.5):
        with pytest.raises(InputError, match="whole number of at least 0"):
            predict_fpr(STANDARD, np.ones(3), random_state=wrong)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: analyze(np.zeros((1, 2)), np.eye(2), [0.0, 0.0], ood_covariance=1e200 * np.eye(2)), "same units"),
        (lambda: analyze(np.zeros((1, 2)), np.eye(2), [0.0, 0.0], weights=[1e308]), "finite numbers"),
        (lambda: pinsker("a"), "kl cannot be read as numbers"),
        (lambda: log_overlap("a", 2), "distance cannot be read as numbers"),
        (lambda: log_overlap(1.0, "2"), "whole number of at least 1"),
        (lambda: log_overlap(1.0, float("nan")), "whole number of at least 1"),
        (lambda: log_overlap(1e200, 2), "finite"),
        (lambda: half_distance("a", "b", [[1.0]]), "cannot be read as numbers"),
        (lambda: kl_divergence([[1.0], [1.0, 2.0]], [0.0], [[1.0]]), "cannot be read as numbers"),
    ],
)
def test_bad_input_at_the_edges_is_one_clear_error(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_predictions_with_many_classes_in_few_dimensions_agree_with_simulation():
    rng = np.random.default_rng(6)
    gaussians = TiedGaussians.from_parameters(2.0 * rng.normal(size=(12, 2)), np.eye(2))
    inside, _ = gaussians.sample(200_000, random_state=rng)
    outside = 3.0 + 0.5 * rng.normal(size=(200_000, 2))
    predicted = predict_fpr(gaussians, [3.0, 3.0], ood_covariance=0.25 * np.eye(2))["gem"].fpr
    assert predicted == pytest.approx(
        fpr_at_tpr(gem_scores(gaussians, inside), gem_scores(gaussians, outside)), abs=0.01
    )
