"""The protocol of the paper's tables: which rows are drawn, and what is measured on them."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from gem_ood.comparison import METRICS
from gem_ood.errors import InputError
from gem_ood.experiments import Draws, Protocol
from gem_ood.experiments.protocol import measure_draws
from gem_ood.metrics import evaluate


def test_a_draw_has_a_fifth_of_the_in_distribution_rows_rounded_down():
    protocol = Protocol()
    found = [protocol.n_rows(n_id=n, n_ood=10_000) for n in range(1, 5001)]
    assert found == [max(1, n // 5) for n in range(1, 5001)]


@given(hundredths=st.integers(1, 300), n_id=st.integers(1, 10_000))
def test_a_share_is_the_decimal_it_is_written_as(hundredths, n_id):
    # 0.29 · 100 is 28.999999999999996 in floating point.
    protocol = Protocol(share=hundredths / 100)
    assert protocol.n_rows(n_id=n_id, n_ood=10**9) == max(1, hundredths * n_id // 100)


@pytest.mark.parametrize("share", [np.float32(0.2), np.float64(0.2), Fraction(1, 5)])
def test_a_share_may_be_any_kind_of_number(share):
    assert Protocol(share=share).n_rows(n_id=999, n_ood=10_000) == 199


def test_a_draw_repeats_no_row_and_takes_all_rows_alike():
    draws = Protocol(n_draws=400).rows("svhn", n_id=50, n_ood=40)
    assert len(draws) == 400
    for rows in draws:
        assert len(set(rows.tolist())) == len(rows) == 10
        assert rows.min() >= 0
        assert rows.max() < 40
    counts = np.bincount(np.concatenate(draws), minlength=40)
    # Each row is in a draw with probability 1/4; 5.5 standard deviations are passed by one of 40 once in 600,000 times.
    assert np.abs(counts - 100).max() < 5.5 * math.sqrt(400 * 0.25 * 0.75)


def test_draws_differ_from_each_other():
    first, second = Protocol(n_draws=2).rows("svhn", n_id=500, n_ood=1000)
    assert not np.array_equal(first, second)


def test_a_seed_and_a_name_draw_the_same_rows_again():
    first, second = (Protocol(seed=3).rows("svhn", n_id=100, n_ood=500) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_fewer_draws_are_the_first_of_more():
    few, many = (Protocol(n_draws=n).rows("svhn", n_id=100, n_ood=500) for n in (3, 10))
    np.testing.assert_array_equal(few, many[:3])


@pytest.mark.parametrize(
    ("name", "seed"), [("svhn", 1), ("SVHN", 0), ("svhn ", 0), ("日本", 0), ("", 0), ("\udc80", 0)]
)
def test_another_name_or_seed_draws_other_rows(name, seed):
    usual = Protocol().rows("svhn", n_id=500, n_ood=2000)
    other = Protocol(seed=seed).rows(name, n_id=500, n_ood=2000)
    assert not np.array_equal(usual, other)


@pytest.mark.parametrize("n_ood", [1, 19, 20])
def test_a_set_that_is_too_small_is_taken_whole_and_once(n_ood):
    (rows,) = Protocol().rows("small", n_id=100, n_ood=n_ood)
    np.testing.assert_array_equal(rows, np.arange(n_ood))


@pytest.mark.parametrize("n_ood", [21, 22, 40])
def test_a_set_that_is_larger_by_a_row_is_drawn_from(n_ood):
    draws = Protocol().rows("small", n_id=100, n_ood=n_ood)
    assert [len(set(rows.tolist())) for rows in draws] == [20] * 10


def test_without_a_share_every_set_is_taken_whole_and_once():
    protocol = Protocol.whole(tpr=0.9, seed=7)
    (rows,) = protocol.rows("svhn", n_id=10, n_ood=77)
    np.testing.assert_array_equal(rows, np.arange(77))
    assert (protocol.tpr, protocol.n_draws, protocol.share, protocol.seed) == (0.9, 1, None, 7)
    assert Protocol.whole() == Protocol(n_draws=1, share=None, tpr=0.95, seed=0)


def naive_fpr(id_scores, ood_scores, tpr):
    """Return the share of others at or above the threshold whose recall is nearest; of two, the higher recall."""
    thresholds = sorted(set(id_scores))
    recalls = [Fraction(sum(score >= threshold for score in id_scores), len(id_scores)) for threshold in thresholds]
    _, _, threshold = min(
        (abs(recall - tpr), -recall, threshold) for recall, threshold in zip(recalls, thresholds, strict=True)
    )
    return sum(score >= threshold for score in ood_scores) / len(ood_scores)


@pytest.mark.parametrize("n_levels", [None, 4])
@pytest.mark.parametrize("tpr", [0.95, 0.8])
def test_metrics_of_each_draw_are_those_of_the_drawn_rows(n_levels, tpr):
    rng = np.random.default_rng(5)
    inside, outside = rng.normal(1.0, 1.0, size=61), rng.normal(size=90)
    if n_levels:  # many ties
        inside, outside = (np.floor(n_levels * scores) for scores in (inside, outside))
    rows = Protocol(n_draws=4, tpr=tpr).rows("any", n_id=61, n_ood=90)
    found = measure_draws(inside, outside, rows, tpr=tpr)
    assert set(found.values) == set(METRICS)
    for place, chosen in enumerate(rows):
        drawn = outside[chosen]
        expected = evaluate(inside, drawn, tpr=tpr, convention="paper")
        for metric in METRICS:
            assert found.values[metric][place] == getattr(expected, metric)
        is_inside, scores = np.arange(61 + len(drawn)) < 61, np.concatenate([inside, drawn])
        assert found.values["auroc"][place] == pytest.approx(roc_auc_score(is_inside, scores), abs=1e-12)
        assert found.values["aupr_in"][place] == pytest.approx(average_precision_score(is_inside, scores), abs=1e-12)
        assert found.values["aupr_out"][place] == pytest.approx(average_precision_score(~is_inside, -scores), abs=1e-12)
        assert found.values["fpr"][place] == naive_fpr(inside.tolist(), drawn.tolist(), Fraction(str(tpr)))


def test_rows_that_are_infinitely_far_are_measured():
    found = measure_draws(np.array([0.0, 1.0]), np.array([-np.inf, 2.0]), [np.array([0]), np.array([1])])
    np.testing.assert_array_equal(found.values["auroc"], [1.0, 0.0])


def test_mean_and_spread_are_those_of_the_draws():
    values = np.random.default_rng(0).random(10)
    draws = Draws({"fpr": values})
    mean = math.fsum(values) / 10
    assert draws.mean("fpr") == pytest.approx(mean, abs=1e-15)
    assert draws.spread("fpr") == pytest.approx(math.sqrt(math.fsum((values - mean) ** 2) / 9), abs=1e-15)


def test_one_draw_has_no_spread():
    draws = Draws({"fpr": np.array([0.25])})
    assert draws.spread("fpr") == 0.0
    assert not draws.has_spread
    assert Draws({"fpr": np.array([0.25, 0.25])}).has_spread


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_draws": 0}, "n_draws must be a whole number, at least 1, but is 0"),
        ({"n_draws": 2.0}, "n_draws must be a whole number"),
        ({"n_draws": True}, "n_draws must be a whole number"),
        ({"seed": -1}, "seed must be a whole number, at least 0, but is -1"),
        ({"seed": None}, "seed must be a whole number"),
        ({"share": 0.0}, "share must be a number above 0 but is 0.0"),
        ({"share": -0.2}, "share must be a number above 0"),
        ({"share": math.nan}, "share must be a number above 0"),
        ({"share": math.inf}, "share must be a number above 0"),
        ({"share": True}, "share must be a number above 0"),
        ({"share": "0.2"}, "share must be a number above 0 but is '0.2'; pass 0.2, or None for whole sets"),
        ({"tpr": 95}, "tpr must lie strictly between 0 and 1 but is 95"),
        ({"tpr": 1.0}, "tpr must lie strictly between 0 and 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Protocol(**options)


def test_a_share_beyond_all_numbers_takes_every_set_whole():
    assert Protocol(share=1e308).n_rows(n_id=10_000, n_ood=26_032) == 26_032
