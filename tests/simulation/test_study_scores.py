"""The four scores of one pass, against the library's own, and the exact reduction of B3 row by row."""

import numpy as np
import pytest

from gem_ood.gaussians import TiedGaussians
from gem_ood.metrics import fpr_at_tpr
from gem_ood.scores import gem_scores, linear_energy, mahalanobis_scores, msp
from gem_ood.simulation import SCORES, Setting, study_means
from gem_ood.simulation.scoring import Scorer


def drawn(setting, n=400, seed=0):
    """Half the rows from the classes, half from the other side."""
    generator = np.random.default_rng(seed)
    rows = setting.sigma * generator.standard_normal((n, setting.dimension))
    rows[: n // 2] += study_means(setting.n_classes, setting.dimension, setting.distance)[
        np.arange(n // 2) % setting.n_classes
    ]
    return rows


def library_scores(gaussians, rows):
    return {
        "gem": gem_scores(gaussians, rows),
        "mahalanobis": mahalanobis_scores(gaussians, rows),
        "msp": msp(gaussians.exponents(rows)),
        "linear-energy": linear_energy(gaussians, rows),
    }


def correlated_gaussians():
    generator = np.random.default_rng(3)
    mixing = generator.standard_normal((6, 6))
    return TiedGaussians.from_parameters(5.0 + generator.standard_normal((4, 6)), mixing @ mixing.T + np.eye(6))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "gaussians",
    [Setting(10, 64, 4.0).gaussians(), Setting(7, 40, 9.0, sigma=3.0).gaussians(), correlated_gaussians()],
    ids=["paper", "wide", "correlated"],
)
def test_the_four_scores_are_the_library_s_own(gaussians, dtype):
    generator = np.random.default_rng(1)
    rows = gaussians.sample(300, random_state=generator)[0]
    rows[::2] -= gaussians.class_means.mean(axis=0)
    rows = rows.astype(dtype)
    found = Scorer.of(gaussians).scores(rows)
    found["msp"] = 1.0 / (1.0 + np.exp(-found["msp"]))
    expected = library_scores(gaussians, rows.astype(np.float64))
    tolerance = 1e-10 if dtype == np.float64 else 1e-5
    assert tuple(found) == SCORES
    for name in SCORES:
        np.testing.assert_allclose(found[name], expected[name], rtol=tolerance, atol=50 * tolerance, err_msg=name)


def test_log_odds_tell_apart_rows_whose_msp_rounds_to_one():
    gaussians = TiedGaussians.from_parameters([[-10.0], [10.0]], [[1.0]])
    rows = np.array([[3.0], [5.0], [40.0], [-41.0]])
    np.testing.assert_array_equal(msp(gaussians.exponents(rows))[1:], 1.0)
    np.testing.assert_allclose(Scorer.of(gaussians).scores(rows)["msp"], [60.0, 100.0, 800.0, 820.0], rtol=1e-12)


def test_one_class_is_always_certain():
    found = Scorer.of(TiedGaussians.from_parameters([[1.0, 0.0]], np.eye(2))).scores(np.array([[0.0, 2.0]]))
    assert found["msp"] == np.inf
    np.testing.assert_allclose(
        [found["gem"][0], found["mahalanobis"][0], found["linear-energy"][0]], [-2.5, -5.0, -0.5]
    )


@pytest.mark.parametrize("setting", [Setting(10, 64, 6.0), Setting(5, 5, 2.0), Setting(8, 43, 9.0, sigma=2.5)])
def test_coordinates_on_the_means_and_the_rest_s_length_are_all_that_scores_see(setting):
    rows = drawn(setting)
    directions = study_means(setting.n_classes, setting.dimension, 1.0)
    coordinates = rows @ directions.T / setting.sigma
    residual = np.sum((rows / setting.sigma - coordinates @ directions) ** 2, axis=1)
    projected = Scorer.of(setting.projected_gaussians()).scores(coordinates, residual=residual)
    full = Scorer.of(setting.gaussians()).scores(rows)
    for name in SCORES:
        np.testing.assert_allclose(projected[name], full[name], rtol=1e-9, atol=1e-8, err_msg=name)


def test_single_precision_moves_a_rate_by_no_more_than_two_rows():
    # Of the paper's settings this one has the largest predicted error in float32.
    setting = Setting(100, 100, 10.0)
    gaussians, n = setting.gaussians(), 4000
    rows = drawn(setting, 2 * n).astype(np.float32)
    scorer = Scorer.of(gaussians)
    assert scorer.narrow.centre.dtype == np.float32
    narrow, wide = scorer.scores(rows), scorer.scores(rows.astype(np.float64))
    for name in ("gem", "mahalanobis"):
        rates = [fpr_at_tpr(scores[name][:n], scores[name][n:]) for scores in (narrow, wide)]
        assert rates[1] > 0.005
        assert abs(rates[0] - rates[1]) <= 2 / n


def test_classes_too_far_apart_for_single_precision_are_scored_in_double():
    assert Scorer.of(Setting(10, 64, 1000.0).gaussians()).narrow.centre.dtype == np.float64
    assert Scorer.of(Setting(10, 16, 1.0).gaussians()).narrow.centre.dtype == np.float64
