"""Ranked scores against sorting them all: exact values and ranks, bounded p-values, and a guarantee that is counted."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gem_ood.errors import CalibrationSizeError, InputError
from gem_ood.thresholds import (
    RankedScores,
    choose_threshold,
    conformal_p_values,
    rank_scores,
    threshold_order,
)

GENERATOR = np.random.default_rng(0)
MANY = 100_000
SAMPLES = {
    "a million normal": GENERATOR.normal(size=1_000_000),
    "distances": -GENERATOR.chisquare(128, size=MANY),
    "far from zero": 1e6 + GENERATOR.normal(size=MANY),
    "of all sizes": GENERATOR.choice([-1.0, 1.0], size=MANY) * 10.0 ** GENERATOR.uniform(-300, 300, size=MANY),
    "few distinct": GENERATOR.integers(-3, 50, size=MANY).astype(np.float64),
    "one value with most rows": np.where(GENERATOR.random(MANY) < 0.9, -1.5, GENERATOR.normal(size=MANY)),
    "infinities": np.where(
        GENERATOR.random(MANY) < 0.1, GENERATOR.choice([-np.inf, np.inf], size=MANY), GENERATOR.normal(size=MANY)
    ),
    "all minus infinity": np.full(50, -np.inf),
    "denormal": 5e-324 * GENERATOR.integers(-(10**5), 10**5, size=MANY),
    "huge": 1e308 * GENERATOR.uniform(-1.7, 1.7, size=MANY),
    "neighbours": 1.0 + 2.0**-52 * GENERATOR.integers(0, 30_000, size=MANY),
    "both zeros": GENERATOR.choice([-0.0, 0.0, 1e-300, -1e-300], size=1000),
    "single precision": GENERATOR.normal(size=MANY).astype(np.float32),
    "whole numbers": GENERATOR.integers(0, 5, size=100),
    "all equal": np.full(1000, 2.5),
    "one row": np.array([3.7]),
    "two rows": np.array([1.0, -1.0]),
}


def in_batches(scores, n_batches=3):
    """Cut scores into batches, some of one dimension and some of one column."""
    parts = [part for part in np.array_split(scores, n_batches) if len(part)]
    return [(part[:, np.newaxis] if place % 2 else part, None) for place, part in enumerate(parts)]


def probes(scores):
    """Return numbers at, just beside and between the scores."""
    some = np.random.default_rng(1).permutation(np.asarray(scores, dtype=np.float64))[:20_000]
    with np.errstate(over="ignore"):  # beside the largest float lies infinity
        beside = [np.nextafter(some, np.inf), np.nextafter(some, -np.inf), 0.5 * some]
    return np.concatenate([some, *beside, np.sort(scores)[:50], [-np.inf, 0.0, np.inf]])


def check_ranked(ranked, scores, *, precision):
    """Compare with the sorted scores: exact values and ranks, p-values from the exact ones to so much above them."""
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    assert ranked.n_rows == len(ordered)
    np.testing.assert_array_equal(ranked.ranks, 1 + np.searchsorted(ordered, ranked.values, side="left"))
    np.testing.assert_array_equal(ranked.values, ordered[ranked.ranks - 1])
    asked = probes(scores)
    exact, found = conformal_p_values(ordered, asked), ranked.p_values(asked)
    assert (found >= exact).all()
    assert (found <= (1.0 + precision) * exact * (1.0 + 1e-12)).all()
    is_low = exact * (len(ordered) + 1.0) < 1.0 / precision
    np.testing.assert_array_equal(found[is_low], exact[is_low])


@pytest.mark.parametrize("name", SAMPLES)
def test_values_and_ranks_are_those_of_sorting_all_scores(name):
    scores = SAMPLES[name]
    n_rows = len(scores)
    orders = sorted({1, 1 + n_rows // 20, 1 + n_rows // 3, n_rows})
    ranked = rank_scores(in_batches(scores), orders=orders)
    check_ranked(ranked, scores, precision=1e-3)
    assert np.isin(np.sort(scores)[np.array(orders) - 1], ranked.values).all()


@given(
    st.lists(st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0, 2.0]), min_size=1, max_size=60),
    st.sampled_from([1e-4, 0.05, 0.3, 0.9]),
    st.integers(1, 5),
    st.data(),
)
def test_no_numbers_defeat_the_ranking(scores, precision, n_batches, data):
    orders = data.draw(st.lists(st.integers(1, len(scores)), max_size=3))
    ranked = rank_scores(in_batches(np.array(scores), n_batches), orders=orders, precision=precision)
    check_ranked(ranked, scores, precision=precision)
    assert np.isin(np.sort(scores)[np.array(orders, dtype=np.int64) - 1], ranked.values).all()


def test_as_many_values_are_kept_as_ranks_that_grow_by_the_precision():
    """Ranks up to 1/precision one by one, then by factors of 1 + precision; cells that end early cost some more."""
    for precision in (1e-3, 1e-2):
        ladder = 1.0 / precision + math.log(1e6 * precision) / math.log1p(precision)
        n_values = len(rank_scores([(SAMPLES["a million normal"], None)], precision=precision).values)
        assert 0.9 * ladder < n_values < 1.2 * ladder


def test_of_few_rows_every_score_is_kept():
    scores = np.random.default_rng(2).normal(size=900).round(2)
    ranked, whole = rank_scores([(scores, None)]), RankedScores.of(scores)
    np.testing.assert_array_equal(ranked.values, whole.values)
    np.testing.assert_array_equal(ranked.ranks, whole.ranks)
    assert not ranked.is_whole  # some rows share a value
    assert RankedScores.of(np.arange(5)).is_whole


@given(st.lists(st.integers(0, 12) | st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(-5.0, 20.0))
def test_p_values_of_all_scores_are_the_conformal_ones(scores, asked):
    ranked = RankedScores.of(scores)
    both = [asked, *scores]
    np.testing.assert_array_equal(ranked.p_values(both), conformal_p_values(scores, both))


@given(
    st.lists(st.integers(0, 30), min_size=2, max_size=40), st.sampled_from([0.05, 0.3, 0.9]), st.integers(0, 2**32 - 1)
)
def test_p_values_of_exchangeable_rows_are_never_too_often_small(scores, precision, seed):
    """Each of m rows is the new one equally often, so P(p <= t) is the share of them: the k-th smallest p is >= k/m."""
    rows = np.array(scores) + np.random.default_rng(seed).choice([0.0, 1e-3], size=len(scores))
    found = []
    for place, row in enumerate(rows):
        ranked = rank_scores([(np.delete(rows, place), None)], precision=precision)
        found.append(float(ranked.p_values([row])[0]))
    m = len(rows)
    assert (np.sort(found) * m >= np.arange(1, m + 1) * (1.0 - 1e-12)).all()


def test_thinned_p_values_of_drawn_rows_are_never_too_often_small():
    """60,000 p-values of 300 calibrations; the share below t is t but for four standard errors of the calibrations."""
    generator, found = np.random.default_rng(3), []
    for _ in range(300):
        ranked = rank_scores([(generator.normal(size=2000), None)], precision=0.2)
        assert len(ranked.values) < 100
        found.append(ranked.p_values(generator.normal(size=200)))
    for level in (0.001, 0.01, 0.05, 0.2, 0.5):
        shares = np.mean(np.array(found) <= level, axis=1)
        assert shares.mean() <= level + 4.0 * shares.std() / math.sqrt(300)


@given(
    st.lists(st.integers(0, 20) | st.floats(-1e6, 1e6), min_size=1, max_size=60),
    st.sampled_from([(0.5, None, None), (0.9, None, "quantile"), (0.8, 0.9, None), (0.6, None, "pac")]),
)
def test_the_threshold_of_all_scores_is_that_of_the_scores(scores, asked):
    options = dict(zip(("tpr", "confidence", "method"), asked, strict=True))
    ranked = RankedScores.of(scores)
    try:
        expected = choose_threshold(scores, **options)
    except CalibrationSizeError as error:
        with pytest.raises(CalibrationSizeError, match=str(error)[:40]):
            ranked.threshold(**options)
        return
    found = ranked.threshold(**options)
    assert found.value == expected.value
    assert found.order == 1 + np.count_nonzero(np.array(scores) < found.value) <= expected.order
    assert (found.tpr, found.confidence, found.method, found.n_rows) == (
        expected.tpr,
        expected.confidence,
        expected.method,
        expected.n_rows,
    )


@pytest.mark.parametrize("tpr", [0.999, 0.95, 0.8, 0.5, 0.1])
def test_a_threshold_that_was_not_kept_gives_way_to_one_below(tpr):
    scores = SAMPLES["distances"]
    ranked = rank_scores([(scores, None)], precision=0.1)
    found, exact = ranked.threshold(tpr=tpr), choose_threshold(scores, tpr=tpr)
    assert found.value <= exact.value
    assert exact.order / 1.11 <= found.order <= exact.order
    assert found.value == np.sort(scores)[found.order - 1]
    kept = rank_scores([(scores, None)], precision=0.1, orders=lambda n: [threshold_order(n, tpr=tpr).order])
    assert kept.threshold(tpr=tpr) == exact


@pytest.mark.parametrize("name", ["distances", "few distinct", "infinities"])
def test_a_row_is_under_the_threshold_exactly_when_its_p_value_says_so(name):
    ranked = rank_scores([(SAMPLES[name], None)], precision=0.1)
    cut, asked = ranked.threshold(tpr=0.9), probes(SAMPLES[name])
    np.testing.assert_array_equal(asked < cut.value, ranked.p_values(asked) <= cut.order / (cut.n_rows + 1))


def test_each_value_stands_for_the_rows_from_it_to_the_next():
    ranked = RankedScores(np.array([1.0, 4.0]), np.array([1, 4]), 5)
    assert ranked.counts.tolist() == [3, 2]
    assert ranked.sample(100).tolist() == [1.0, 1.0, 1.0, 4.0, 4.0]
    assert ranked.sample(1).tolist() == [1.0]
    scores = SAMPLES["few distinct"]
    np.testing.assert_array_equal(RankedScores.of(scores).sample(len(scores)), np.sort(scores))
    some, middles = rank_scores([(SAMPLES["distances"], None)]).sample(1000), (np.arange(1000) + 0.5) / 1000
    below = np.searchsorted(np.sort(SAMPLES["distances"]), some) / MANY
    assert (below <= middles).all()
    assert (below >= middles / 1.001 - 1.0 / MANY).all()


def test_the_passes_hold_no_more_than_their_tables():
    batches = _Repeated(np.random.default_rng(4).normal(size=100_000), times=100)
    expected = np.sort(batches.scores)[9_999]
    tracemalloc.start()
    ranked = rank_scores(batches, orders=[1_000_000])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert ranked.n_rows == 10_000_000
    assert ranked.threshold(tpr=0.9).value == expected
    assert batches.n_passes <= 4
    assert peak < 40e6  # all scores are 80 MB


class _Repeated:
    def __init__(self, scores, times):
        self.scores, self.times, self.n_passes = scores, times, 0

    def __iter__(self):
        self.n_passes += 1
        return ((self.scores, None) for _ in range(self.times))


def test_nan_is_refused_by_its_row_among_all():
    batches = [(np.arange(5.0), None), (np.array([[1.0], [np.nan]]), None)]
    with pytest.raises(InputError, match="scores row 6 is NaN; remove or mend that row"):
        rank_scores(batches)


def test_batches_that_are_no_scores_are_refused():
    with pytest.raises(InputError, match="batches is empty"):
        rank_scores([])
    with pytest.raises(InputError, match="can be read only once"):
        rank_scores(iter([([1.0], None)]))
    with pytest.raises(InputError, match=r"one dimension but has shape \(3, 2\)"):
        rank_scores([(np.zeros((3, 2)), None)])
    with pytest.raises(InputError, match="scores has dtype <U1"):
        rank_scores([(["a"], None)])
    with pytest.raises(InputError, match="the same rows each time"):
        rank_scores(_Changing())


class _Changing:
    def __init__(self):
        self.generator = np.random.default_rng(0)

    def __iter__(self):
        return iter([(self.generator.normal(size=10_000), None)])


@pytest.mark.parametrize("orders", [[0], [6], [1.5], [True], lambda n: [n + 1]], ids=["0", "6", "1.5", "true", "made"])
def test_orders_that_no_score_has_are_refused(orders):
    with pytest.raises(InputError, match="there are 5 scores; pass numbers from 1 to 5"):
        rank_scores([(np.arange(5.0), None)], orders=orders)


@pytest.mark.parametrize("precision", [0.0, 1e-5, 1.0, -0.1, math.nan, "0.1", True])
def test_a_precision_out_of_range_is_refused(precision):
    with pytest.raises(InputError, match="precision is"):
        rank_scores([(np.arange(5.0), None)], precision=precision)


@pytest.mark.parametrize(
    ("values", "ranks", "n_rows", "message"),
    [
        ([1.0, 2.0], [1], 5, "one whole number per value"),
        ([1.0, 2.0], [1.0, 2.0], 5, "one whole number per value"),
        ([1.0, 2.0], [1, 2], 2.5, "one whole number per value"),
        ([2.0, 1.0], [1, 2], 5, "must ascend"),
        ([1.0, 1.0], [1, 2], 5, "must ascend"),
        ([1.0, 2.0], [2, 2], 5, "must ascend"),
        ([1.0, 2.0], [0, 2], 5, "ranks go from 0 to 2"),
        ([1.0, 2.0], [1, 6], 5, "ranks go from 1 to 6"),
        ([1.0, math.nan], [1, 2], 5, "values row 1 is NaN"),
        ([], [], 5, "values is empty"),
    ],
)
def test_what_is_no_ranking_is_refused(values, ranks, n_rows, message):
    with pytest.raises(InputError, match=message):
        RankedScores(np.array(values), np.array(ranks), n_rows)


def test_a_ranking_without_its_lowest_scores_says_what_it_lacks():
    ranked = RankedScores(np.array([1.0, 2.0]), np.array([50, 80]), 100)
    assert ranked.threshold(tpr=0.4).order == 50
    with pytest.raises(InputError, match=r"score 10 of 100 .* number 50; rank the scores with orders=\[10\]"):
        ranked.threshold(tpr=0.9)


def test_no_score_and_nan_have_no_p_value():
    ranked = RankedScores.of([1.0, 2.0])
    with pytest.raises(InputError, match="scores row 1 is NaN"):
        ranked.p_values([0.0, math.nan])
