"""Predicted false positive rates against closed forms and simulation."""

import numpy as np
import pytest
from configurations import configuration
from scipy.stats import chi2, ncx2, norm

from gem_ood.gaussians import TiedGaussians
from gem_ood.metrics import fpr_at_tpr
from gem_ood.scores import gem_scores, linear_energy, mahalanobis_scores, weighted_gem
from gem_ood.theory import predict_fpr

N_ROWS = 100_000
#: Four standard errors of a rate and of the threshold it is read at, at most √2 · ½ / √n each, plus what three matched
#: moments may err by where the covariances differ; seeds are fixed.
TOLERANCE = 4.0 * np.sqrt(2.0) * 0.5 / np.sqrt(N_ROWS) + 0.003


@pytest.mark.parametrize("tpr", [0.5, 0.95, 0.99])
@pytest.mark.parametrize(("d", "r"), [(1, 2.0), (2, 0.0), (8, 3.0), (512, 10.0)])
def test_one_class_is_a_non_central_chi_square_at_the_quantile_of_a_central_one(d, r, tpr):
    mean = np.zeros((1, d))
    mean[0, 0] = r
    predictions = predict_fpr(TiedGaussians.from_parameters(mean, np.eye(d)), np.zeros(d), tpr=tpr)
    quantile = chi2.ppf(tpr, d)
    expected = ncx2.cdf(quantile, d, r**2) if r > 0.0 else tpr
    assert predictions["gem"].fpr == pytest.approx(expected, abs=3e-3)
    assert predictions["mahalanobis"].fpr == predictions["gem"].fpr
    assert predictions["gem"].threshold == pytest.approx(-0.5 * quantile, abs=0.02 * np.sqrt(2 * d))
    assert predictions["mahalanobis"].threshold == pytest.approx(2.0 * predictions["gem"].threshold)
    if r > 0.0:  # at no distance the ratio is 1 everywhere, and a threshold keeps all rows or none
        assert predictions["linear-energy"].fpr == pytest.approx(norm.cdf(norm.ppf(tpr) - r), rel=0.1)


def measured(gaussians, inside, outside, *, weights):
    scores = {
        "gem": lambda rows: weighted_gem(gaussians.exponents(rows), weights),
        "mahalanobis": lambda rows: mahalanobis_scores(gaussians, rows),
        "msp": lambda rows: gaussians.posterior(rows).max(axis=1),
    }
    return {name: fpr_at_tpr(score(inside), score(outside)) for name, score in scores.items()}


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize(
    ("n_classes", "dimension", "scale"), [(3, 2, 1.0), (2, 5, 0.8), (6, 8, 0.5), (4, 40, 0.4), (30, 20, 0.6)]
)
def test_predictions_agree_with_simulation_with_priors_weights_and_another_covariance(
    n_classes, dimension, scale, is_tied
):
    case = configuration(n_classes, n_classes=n_classes, dimension=dimension, scale=scale)
    covariance = case.gaussians.covariance if is_tied else 0.5 * case.ood_covariance
    weights = np.linspace(1.0, 2.0, n_classes)
    rng = np.random.default_rng(1)
    inside, _ = case.gaussians.sample(N_ROWS, random_state=rng)
    outside = rng.standard_normal((N_ROWS, dimension)) @ np.linalg.cholesky(covariance).T + case.ood_mean
    predicted = predict_fpr(
        case.gaussians, case.ood_mean, ood_covariance=None if is_tied else covariance, weights=weights
    )
    for name, rate in measured(case.gaussians, inside, outside, weights=weights).items():
        assert predicted[name].fpr == pytest.approx(rate, abs=TOLERANCE), name


def test_the_general_law_gives_the_tied_one_where_the_covariances_are_equal():
    case = configuration(5, n_classes=4, dimension=12, scale=0.7)
    tied = predict_fpr(case.gaussians, case.ood_mean)
    general = predict_fpr(case.gaussians, case.ood_mean, ood_covariance=case.gaussians.covariance)
    for name in tied:
        assert general[name].fpr == pytest.approx(tied[name].fpr, abs=6 * tied[name].standard_error + 2e-3)
        assert general[name].threshold == pytest.approx(tied[name].threshold)


@pytest.mark.parametrize(("d", "r"), [(8, 10.0), (64, 16.0), (512, 25.0)])
def test_rates_far_below_one_in_a_million_keep_their_digits(d, r):
    mean = np.zeros((1, d))
    mean[0, 0] = r
    prediction = predict_fpr(TiedGaussians.from_parameters(mean, np.eye(d)), np.zeros(d))["gem"]
    expected = ncx2.cdf(chi2.ppf(0.95, d), d, r**2)
    assert 0.0 < expected < 1e-6
    assert prediction.fpr == pytest.approx(expected, rel=0.05)
    assert abs(prediction.fpr - expected) < 6.0 * prediction.standard_error


def test_the_linear_energy_is_the_best_of_all_and_keeps_its_digits_in_the_tail():
    """E8; against a direct simulation where the rate is large, and the Neyman-Pearson floor where it is tiny."""
    gaussians = TiedGaussians.from_parameters(2.0 * np.eye(5, 16), np.eye(16))
    predicted = predict_fpr(gaussians, np.zeros(16))
    inside, _ = gaussians.sample(N_ROWS, random_state=0)
    outside = np.random.default_rng(1).standard_normal((N_ROWS, 16))
    rate = fpr_at_tpr(linear_energy(gaussians, inside), linear_energy(gaussians, outside))
    assert predicted["linear-energy"].fpr == pytest.approx(rate, abs=TOLERANCE)
    assert all(predicted["linear-energy"].fpr <= other.fpr + 1e-3 for other in predicted.values())
    far = predict_fpr(TiedGaussians.from_parameters([[12.0, 0.0]], np.eye(2)), [0.0, 0.0])["linear-energy"]
    assert far.fpr == pytest.approx(norm.cdf(norm.ppf(0.95) - 12.0), rel=0.1)


def test_two_classes_in_one_dimension_agree_with_quadrature():
    gaussians = TiedGaussians.from_parameters([[-2.0], [2.0]], [[1.0]])
    grid = np.linspace(-12.0, 12.0, 2_000_001)
    scores, step = gem_scores(gaussians, grid[:, np.newaxis]), grid[1] - grid[0]
    density = 0.5 * (norm.pdf(grid, -2.0) + norm.pdf(grid, 2.0))
    order = np.argsort(-scores)
    threshold = scores[order][np.searchsorted(np.cumsum(density[order]) * step, 0.95)]
    exact = norm.pdf(grid)[scores >= threshold].sum() * step
    assert predict_fpr(gaussians, [0.0])["gem"].fpr == pytest.approx(exact, abs=3e-3)


def test_the_standard_error_covers_the_scatter_of_other_seeds():
    gaussians = TiedGaussians.from_parameters(np.eye(3, 6), np.eye(6))
    predictions = [predict_fpr(gaussians, np.zeros(6), random_state=seed)["gem"] for seed in range(12)]
    scatter = np.std([prediction.fpr for prediction in predictions], ddof=1)
    stated = np.mean([prediction.standard_error for prediction in predictions])
    assert 0.4 < stated / scatter < 2.5
    again = predict_fpr(gaussians, np.zeros(6), random_state=3)["gem"]
    assert again == predictions[3]


def test_translation_and_rotation_change_nothing():
    """P36."""
    rng = np.random.default_rng(2)
    means = rng.normal(size=(4, 7))
    rotation, _ = np.linalg.qr(rng.normal(size=(7, 7)))
    shift = rng.normal(size=7)
    here = predict_fpr(TiedGaussians.from_parameters(means, np.eye(7)), np.zeros(7))
    there = predict_fpr(TiedGaussians.from_parameters(means @ rotation + shift, np.eye(7)), shift)
    assert there["gem"].fpr == pytest.approx(here["gem"].fpr, abs=1e-3)


def test_a_far_out_of_distribution_mean_does_not_blur_the_classes():
    """The threshold depends on the classes alone, wherever the out-of-distribution mean is."""
    means = np.random.default_rng(3).normal(size=(3, 9))
    gaussians = TiedGaussians.from_parameters(means, np.eye(9))
    near = predict_fpr(gaussians, means.mean(axis=0))["gem"]
    far = predict_fpr(gaussians, np.full(9, 1e8))["gem"]
    assert far.threshold == pytest.approx(near.threshold, abs=0.05)
    assert far.fpr == 0.0


def test_all_means_in_one_place_leave_nothing_to_integrate():
    gaussians = TiedGaussians.from_parameters(np.ones((3, 4)), np.eye(4))
    predictions = predict_fpr(gaussians, np.ones(4))
    assert predictions["gem"].fpr == pytest.approx(0.95, abs=1e-6)
    assert predictions["gem"].threshold == pytest.approx(np.log(3.0) - 0.5 * chi2.ppf(0.95, 4), abs=1e-4)
