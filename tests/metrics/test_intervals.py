import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from gem_ood.errors import InputError
from gem_ood.metrics import evaluate

METRICS = ["fpr", "auroc", "aupr_in", "aupr_out", "detection_error"]
side = st.lists(st.integers(-4, 4).map(float) | st.floats(-5, 5), min_size=2, max_size=15)


def delong_oracle(id_scores, ood_scores, confidence):
    """DeLong, DeLong & Clarke-Pearson's formulas with their double loop."""
    wins = np.array([[(x > y) + (x == y) / 2 for y in ood_scores] for x in id_scores])
    variance = np.var(wins.mean(axis=1), ddof=1) / len(id_scores)
    variance += np.var(wins.mean(axis=0), ddof=1) / len(ood_scores)
    reach = norm.ppf((1 + confidence) / 2) * math.sqrt(variance)
    return max(0, wins.mean() - reach), min(1, wins.mean() + reach)


@given(side, side, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_delong_is_its_double_loop(id_scores, ood_scores, confidence):
    result = evaluate(id_scores, ood_scores, intervals="delong", confidence=confidence)
    assert list(result.intervals) == ["auroc"]
    expected = delong_oracle(id_scores, ood_scores, confidence)
    np.testing.assert_allclose(result.intervals["auroc"], expected, atol=1e-12)


def test_delong_covers_the_true_auroc_at_its_confidence():
    # 1,000 draws of a 90 % interval. With its coverage, which is asymptotic, from .88 to .92, the count
    # leaves these bounds with probability under 1e-5 on each side.
    generator = np.random.default_rng(0)
    truth = norm.cdf(1 / math.sqrt(2))
    n_covered = 0
    for _ in range(1000):
        sides = generator.normal(loc=1, size=60), generator.normal(size=80)
        low, high = evaluate(*sides, intervals="delong", confidence=0.9).intervals["auroc"]
        n_covered += low <= truth <= high
    assert binom(1000, 0.88).ppf(1e-5) <= n_covered <= binom(1000, 0.92).ppf(1 - 1e-5)


@pytest.mark.parametrize("convention", ["paper", "openood"])
def test_bootstrap_intervals_cover_the_large_sample_values(convention):
    # Five 99 % intervals of one draw; with this seed all hold the values of a sample a hundred times larger.
    generator = np.random.default_rng(0)
    large = evaluate(generator.normal(loc=1.5, size=100_000), generator.normal(size=50_000), convention=convention)
    small = evaluate(
        generator.normal(loc=1.5, size=1000),
        generator.normal(size=500),
        convention=convention,
        intervals="bootstrap",
        confidence=0.99,
    )
    assert list(small.intervals) == METRICS
    for name in METRICS:
        low, high = small.intervals[name]
        assert low <= getattr(large, name) <= high
        assert low <= getattr(small, name) <= high
        assert 0 < high - low < 0.25


def test_bootstrap_is_the_percentile_of_plain_resamples():
    generator = np.random.default_rng(3)
    id_scores, ood_scores = generator.normal(loc=1, size=50).round(1), generator.normal(size=30).round(1)
    result = evaluate(id_scores, ood_scores, intervals="bootstrap", n_resamples=40, confidence=0.8, random_state=7)
    resampler = np.random.default_rng(7)
    resamples = [
        evaluate(id_scores[resampler.integers(50, size=50)], ood_scores[resampler.integers(30, size=30)])
        for _ in range(40)
    ]
    for name in METRICS:
        draws = [getattr(resample, name) for resample in resamples]
        np.testing.assert_allclose(result.intervals[name], np.quantile(draws, [0.1, 0.9]))


def test_bootstrap_is_reproducible_and_its_seed_matters():
    generator = np.random.default_rng(0)
    sides = generator.normal(loc=1, size=80), generator.normal(size=80)
    first, again = (evaluate(*sides, intervals="bootstrap", n_resamples=20) for _ in range(2))
    assert first == again
    other = evaluate(*sides, intervals="bootstrap", n_resamples=20, random_state=1)
    assert first.intervals != other.intervals
    assert first.auroc == other.auroc
    given_generator = evaluate(*sides, intervals="bootstrap", n_resamples=20, random_state=np.random.default_rng(0))
    assert given_generator == first


def test_the_bootstrap_of_rows_that_are_all_equal_is_a_point():
    result = evaluate([1.0] * 5, [1.0] * 5, intervals="bootstrap", n_resamples=5)
    assert result.intervals["fpr"] == (1.0, 1.0)
    assert result.intervals["auroc"] == (0.5, 0.5)


def test_delong_needs_two_rows_on_each_side():
    with pytest.raises(InputError, match="needs two rows per side but id_scores has 1 and ood_scores has 2"):
        evaluate([1.0], [0.0, 0.5], intervals="delong")
