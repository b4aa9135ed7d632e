"""Every bound over random configurations: it holds, and the sharper one is sharper."""

import numpy as np
import pytest
from configurations import configuration
from scipy.stats import chi2, norm

from gem_ood.theory import analyze, analyze_gaussians

#: Rounding alone may put a bound that is met with equality on the wrong side by this much.
ROUNDING = 1e-12


def analysis_of(seed: int, *, is_tied: bool):
    rng = np.random.default_rng(seed)
    case = configuration(
        seed,
        n_classes=int(rng.integers(1, 8)),
        dimension=int(rng.integers(1, 12)),
        scale=float(rng.choice([0.1, 1.0, 4.0])),
    )
    weights = None if rng.random() < 0.5 else case.gaussians.priors
    covariance = None if is_tied else case.ood_covariance
    return analyze_gaussians(case.gaussians, case.ood_mean, ood_covariance=covariance, weights=weights)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("seed", range(30))
def test_every_bound_holds(seed, is_tied):
    result = analysis_of(seed, is_tied=is_tied)
    expected_out, slack = np.exp(result.log_expected_out), 1.0 + ROUNDING
    assert expected_out <= slack * result.bound_expected_out_sharp
    assert result.bound_expected_out_sharp <= slack * result.bound_expected_out
    assert result.separation <= slack * result.bound_separation_total_variation
    assert result.bound_separation_total_variation <= slack * result.bound_separation_pinsker
    assert result.bound_separation_total_variation <= slack * result.bound_separation_pinsker_large
    assert result.fpr_floor <= result.predicted_fpr
    for name, decades in result.looseness.items():
        assert decades is None or decades > -0.02, name


def test_bounds_are_the_papers_formulas_written_out():
    rng = np.random.default_rng(0)
    means, covariance, ood_mean = rng.normal(size=(4, 3)), np.diag([1.0, 2.0, 0.5]), rng.normal(size=3)
    result = analyze(means, covariance, ood_mean)
    alpha = 0.5 * np.sqrt((((means - ood_mean) ** 2) / np.diag(covariance)).sum(axis=1))
    ball = chi2.cdf(alpha**2, 3)
    np.testing.assert_allclose(result.half_distances, alpha)
    assert result.bound_expected_out == pytest.approx(np.sum((1.0 - ball) + np.exp(-(alpha**2) / 2.0)))
    assert result.bound_expected_out_sharp == pytest.approx(np.sum((1.0 - ball) + ball * np.exp(-(alpha**2) / 2.0)))
    assert result.bound_separation_pinsker == pytest.approx(alpha.sum())
    assert result.bound_separation_pinsker_large == pytest.approx(4.0 - 0.5 * np.exp(-2.0 * alpha**2).sum())
    assert result.bound_separation_total_variation == pytest.approx(np.sum(2.0 * norm.cdf(alpha) - 1.0))


def test_looseness_is_the_ratio_in_decades():
    result = analyze(10.0 * np.eye(10, 512), np.eye(512), np.zeros(512))
    expected = np.log10(result.bound_expected_out) - result.log_expected_out / np.log(10.0)
    assert result.looseness["bound_expected_out"] == pytest.approx(expected)
    assert result.looseness["bound_expected_out"] == pytest.approx(87.9, abs=0.05)
    expected = np.log10(result.bound_separation_pinsker) - result.log_abs_separation / np.log(10.0)
    assert result.looseness["bound_separation_pinsker"] == pytest.approx(expected)


def test_bounds_on_a_negative_separation_are_called_trivial():
    result = analyze(np.eye(10, 12), np.eye(12), np.zeros(12))
    assert result.separation < 0.0
    assert result.looseness["bound_separation_pinsker"] is None
    assert "trivial" in str(result)


@pytest.mark.parametrize("alpha", [1.7, 3.0])
def test_the_first_corollary_with_the_whole_distance_for_alpha_is_false(alpha):
    """E1: in one dimension the corollary's right side falls under the exact expectation."""
    exact = np.exp(analyze([[alpha]], [[1.0]], [0.0]).log_expected_out)
    as_printed = chi2.sf(alpha**2, 1) + np.exp(-(alpha**2) / 2.0)
    assert as_printed < exact
