import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom

from gem_ood.errors import CalibrationSizeError, InputError
from gem_ood.thresholds import (
    calibration,
    choose_threshold,
    conformal_threshold,
    pac_threshold,
    quantile_threshold,
    rows_needed,
    threshold_order,
)

METHODS = {
    "quantile": quantile_threshold,
    "conformal": conformal_threshold,
    "pac": pac_threshold,
}
ordinary_scores = st.floats(allow_nan=False) | st.sampled_from([-1.0, 0.0, 1.0])


def exact_binomial_cdf(count, n_rows, probability):
    return sum(math.comb(n_rows, k) * probability**k * (1 - probability) ** (n_rows - k) for k in range(count + 1))


@pytest.mark.parametrize(("confidence", "order"), [(0.95, 39), (0.99, 35)])
def test_pac_orders_for_a_thousand_rows_are_those_of_b5(confidence, order):
    threshold = pac_threshold(range(1000), tpr=0.95, confidence=confidence)
    assert threshold.order == order
    assert threshold.value == order - 1
    assert (threshold.tpr, threshold.confidence, threshold.method) == (0.95, confidence, "pac")
    assert threshold.n_rows == 1000


def test_conformal_order_is_the_floor_of_alpha_times_rows_plus_one():
    assert conformal_threshold(range(1000), tpr=0.95).order == 50
    assert conformal_threshold(range(999), tpr=0.95).order == 50
    assert conformal_threshold(range(998), tpr=0.95).order == 49


@pytest.mark.parametrize("tpr", [0.9, np.float64(0.9), np.float32(0.9), Fraction(9, 10)])
def test_a_rate_is_read_as_the_decimal_it_prints_as(tpr):
    threshold = conformal_threshold(range(9), tpr=tpr)
    assert threshold.order == 1
    assert threshold.tpr == 0.9


@given(
    n_rows=st.integers(1, 60),
    tpr=st.sampled_from([0.5, 0.8, 0.9, 0.95]),
    confidence=st.sampled_from([0.6, 0.9, 0.95, 0.99]),
)
def test_pac_order_is_that_of_a_search_with_exact_binomials(n_rows, tpr, confidence):
    alpha, delta = 1 - Fraction(str(tpr)), 1 - Fraction(str(confidence))
    orders = [j for j in range(1, n_rows + 1) if exact_binomial_cdf(j - 1, n_rows, alpha) <= delta]
    if orders:
        assert pac_threshold(range(n_rows), tpr=tpr, confidence=confidence).order == max(orders)
    else:
        with pytest.raises(CalibrationSizeError):
            pac_threshold(range(n_rows), tpr=tpr, confidence=confidence)


def test_pac_order_agrees_with_scipy_for_many_rows():
    n_rows = 200_000
    order = pac_threshold(np.arange(n_rows), tpr=0.95, confidence=0.99, assume_sorted=True).order
    assert binom.cdf(order - 1, n_rows, 0.05) <= 0.01 < binom.cdf(order, n_rows, 0.05)


def test_pac_order_of_a_hundred_million_rows_takes_few_looks(monkeypatch):
    looks = []
    is_rare = calibration._misses_rarely
    monkeypatch.setattr(calibration, "_misses_rarely", lambda *given: looks.append(given) or is_rare(*given))
    scores = np.broadcast_to(np.float64(1.0), 10**8)  # no memory behind it
    order = pac_threshold(scores, assume_sorted=True).order
    assert len(looks) <= 28  # halvings of a hundred million
    normal_approximation = 0.05e8 - 2.326 * math.sqrt(1e8 * 0.05 * 0.95)
    assert abs(order - normal_approximation) < 10


def test_a_guarantee_is_never_rounded_up():
    threshold = pac_threshold(range(2000), tpr=0.9, confidence=0.9999999999)
    assert "With 99.99999999% confidence" in threshold.guarantee


@given(st.lists(ordinary_scores, min_size=1, max_size=40), st.integers(1, 99))
def test_quantile_is_the_largest_score_that_keeps_enough_of_these_rows(scores, percent):
    threshold = quantile_threshold(scores, tpr=percent / 100)
    kept = {value: sum(score >= value for score in scores) for value in scores}
    assert threshold.value == max(value for value in scores if 100 * kept[value] >= percent * len(scores))


@given(st.lists(ordinary_scores, min_size=1, max_size=150), st.sampled_from(sorted(METHODS)))
def test_the_value_is_the_order_statistic_and_sorted_scores_give_the_same(scores, method):
    try:
        threshold = METHODS[method](scores, tpr=0.8)
    except CalibrationSizeError:
        assert method != "quantile"
        return
    assert threshold.value == sorted(scores)[threshold.order - 1]
    assert METHODS[method](sorted(scores), tpr=0.8, assume_sorted=True) == threshold


@given(
    seed=st.integers(0, 2**32 - 1),
    decimals=st.sampled_from([0, 1, 9]),
    rates=st.tuples(st.integers(1, 97), st.integers(1, 97)),
    method=st.sampled_from(sorted(METHODS)),
)
def test_asking_to_keep_more_never_raises_the_threshold(seed, decimals, rates, method):
    scores = np.random.default_rng(seed).normal(size=200).round(decimals)
    lenient, strict = (METHODS[method](scores, tpr=rate / 100) for rate in sorted(rates, reverse=True))
    assert lenient.value <= strict.value
    assert lenient.order <= strict.order


def test_asking_for_more_confidence_never_raises_the_threshold():
    orders = [pac_threshold(range(1000), confidence=c).order for c in (0.5, 0.9, 0.99, 0.999)]
    assert orders == sorted(orders, reverse=True)


def test_infinite_scores_are_ordinary_extremes():
    assert quantile_threshold([-math.inf, 0.0, math.inf], tpr=0.5).value == 0.0
    assert conformal_threshold([-math.inf] * 5 + [1.0] * 15, tpr=0.9).value == -math.inf


def test_conformal_keeps_the_rate_on_average():
    # The TPR of s_(j) on uniform scores is 1 - s_(j) ~ Beta(n + 1 - j, j), with mean 1 - j/(n + 1) = .95 and
    # standard deviation .0217. The mean of 4,000 draws is under .95 - 4 standard errors with probability
    # 3e-5.
    generator = np.random.default_rng(0)
    rates = [1 - conformal_threshold(generator.random(99), tpr=0.95).value for _ in range(4000)]
    assert np.mean(rates) >= 0.95 - 4 * beta(95, 5).std() / math.sqrt(4000)


def test_pac_keeps_the_rate_with_the_confidence_asked():
    # Misses ~ Bin(4000, at most .05): more than its .99999 quantile happens with probability under 1e-5.
    generator = np.random.default_rng(0)
    rates = np.array([1 - pac_threshold(generator.random(200), confidence=0.95).value for _ in range(4000)])
    assert np.count_nonzero(rates < 0.95) <= binom(4000, 0.05).ppf(0.99999)
    assert np.count_nonzero(rates < 0.95) >= 20  # nor is it so careful that it would throw away rows


def test_quantile_misses_the_rate_about_half_of_the_time():
    generator = np.random.default_rng(0)
    rates = np.array([1 - quantile_threshold(generator.random(200)).value for _ in range(1000)])
    assert np.mean(rates < 0.95) > 0.4


@pytest.mark.parametrize(
    ("tpr", "confidence", "n_rows"),
    [(0.95, None, 19), (0.9, None, 9), (0.5, None, 1), (0.95, 0.95, 59), (0.95, 0.99, 90), (0.5, 0.5, 1)],
)
def test_rows_needed_are_enough_and_one_fewer_is_refused_with_the_number(tpr, confidence, n_rows):
    assert rows_needed(tpr=tpr, confidence=confidence) == n_rows
    assert choose_threshold(range(n_rows), tpr=tpr, confidence=confidence).order == 1
    if n_rows > 1:
        wanted = f"needs at least {n_rows} calibration rows but {n_rows - 1} came; pass more rows"
        with pytest.raises(CalibrationSizeError, match=wanted):
            choose_threshold(range(n_rows - 1), tpr=tpr, confidence=confidence)


@given(tpr=st.integers(1, 999), confidence=st.none() | st.integers(1, 999))
def test_rows_needed_is_always_the_least_that_works(tpr, confidence):
    options = {"tpr": tpr / 1000, "confidence": None if confidence is None else confidence / 1000}
    n_rows = rows_needed(**options)
    assert choose_threshold(np.zeros(n_rows), **options).order >= 1
    if n_rows > 1:
        with pytest.raises(CalibrationSizeError):
            choose_threshold(np.zeros(n_rows - 1), **options)


def test_choose_threshold_dispatches_to_the_method_that_was_meant():
    scores = np.random.default_rng(0).normal(size=500)
    assert choose_threshold(scores) == conformal_threshold(scores)
    assert choose_threshold(scores, confidence=0.9) == pac_threshold(scores, confidence=0.9)
    assert choose_threshold(scores, method="pac") == pac_threshold(scores, confidence=0.99)
    assert choose_threshold(scores, method="quantile", tpr=0.9) == quantile_threshold(scores, tpr=0.9)
    assert choose_threshold(scores, method="conformal") == conformal_threshold(scores)


def test_each_guarantee_is_one_plain_sentence():
    scores = range(1000)
    assert quantile_threshold(scores).guarantee == (
        "At least 95% of the 1000 calibration rows are kept; nothing is promised for new rows."
    )
    assert conformal_threshold(scores, tpr=0.999).guarantee == (
        "Averaged over draws of the 1000 calibration rows, at least 99.9% of new in-distribution rows are "
        "kept, if new rows and calibration rows are exchangeable."
    )
    assert pac_threshold(scores).guarantee == (
        "With 99% confidence over the draw of the 1000 calibration rows, at least 95% of new in-distribution "
        "rows are kept, if new rows and calibration rows are independent draws from one distribution."
    )


def test_a_threshold_survives_pickling():
    threshold = pac_threshold(range(1000))
    assert pickle.loads(pickle.dumps(threshold)) == threshold


@pytest.mark.parametrize("rate", [0, 1, 0.0, 1.0, -0.1, 95, math.nan, math.inf, "0.95", None, [0.95]])
def test_a_rate_outside_zero_and_one_is_refused(rate):
    with pytest.raises(InputError, match="tpr must lie strictly between 0 and 1 but is "):
        conformal_threshold(range(100), tpr=rate)
    with pytest.raises(InputError, match="confidence must lie strictly between 0 and 1 but is "):
        pac_threshold(range(100), confidence=rate)


def test_contradictions_and_unknown_methods_are_refused():
    with pytest.raises(InputError, match=r'method="conformal" has no confidence but confidence is 0\.9'):
        choose_threshold(range(100), method="conformal", confidence=0.9)
    with pytest.raises(InputError, match='method="quantile" has no confidence'):
        choose_threshold(range(100), method="quantile", confidence=0.9)
    with pytest.raises(InputError, match="but is 'bayes'; pass one of these"):
        choose_threshold(range(100), method="bayes")


def test_scores_that_are_no_scores_are_refused():
    with pytest.raises(InputError, match="scores row 2 is NaN"):
        quantile_threshold([1.0, 2.0, math.nan])
    with pytest.raises(InputError, match="scores is empty"):
        quantile_threshold([])
    with pytest.raises(InputError, match="one dimension"):
        quantile_threshold([[1.0, 2.0]])


@pytest.mark.parametrize(
    "options",
    [{}, {"tpr": 0.9}, {"confidence": 0.9}, {"method": "pac"}, {"method": "quantile"}, {"method": "conformal"}],
    ids=str,
)
def test_the_order_is_known_without_the_scores(options):
    scores = np.random.default_rng(0).permutation(500).astype(np.float64)
    order, threshold = threshold_order(500, **options), choose_threshold(scores, **options)
    assert order.at(float(np.sort(scores)[order.order - 1])) == threshold


def test_the_order_among_more_rows_than_fit_anywhere_is_exact():
    assert threshold_order(10**15, tpr=0.95).order == 5 * 10**13
    assert threshold_order(10**15 - 1, tpr=0.95, method="quantile").order == 5 * 10**13


def test_the_order_needs_rows_and_enough_of_them():
    with pytest.raises(CalibrationSizeError, match="needs at least 19 calibration rows but 18 came"):
        threshold_order(18, tpr=0.95)
    for n_rows in (0, -1, 2.5, True, None):
        with pytest.raises(InputError, match="pass the number of calibration rows"):
            threshold_order(n_rows)
