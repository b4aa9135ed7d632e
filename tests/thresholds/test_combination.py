"""Joining p-values: against SciPy's combinations, and at the ends of float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gem_ood.errors import InputError
from gem_ood.thresholds import conformal_p_values, join_log_p_values, log_p_values

P = np.random.default_rng(0).uniform(1e-4, 0.98, size=(200, 3))


def test_fisher_ranks_as_scipys_statistic():
    statistic = [stats.combine_pvalues(row, "fisher").statistic for row in P]
    np.testing.assert_allclose(join_log_p_values(np.log(P), "fisher"), -0.5 * np.array(statistic))


def test_minimum_ranks_as_scipys_tippett():
    joined = join_log_p_values(np.log(P), "minimum")
    np.testing.assert_allclose(np.exp(joined), [stats.combine_pvalues(row, "tippett").statistic for row in P])


def test_cauchy_ranks_as_the_cauchy_statistic():
    statistic = np.tan((0.5 - P) * np.pi).mean(axis=1)
    np.testing.assert_allclose(join_log_p_values(np.log(P), "cauchy"), -np.arcsinh(statistic), rtol=1e-9, atol=1e-12)


def test_cauchy_is_continuous_where_its_formula_changes():
    near = np.log([[1.001e-9, 0.3], [0.999e-9, 0.3], [1.001e-9, 1.1e-9], [0.999e-9, 1.1e-9]])
    joined = join_log_p_values(near, "cauchy")
    np.testing.assert_allclose(joined[[0, 2]], joined[[1, 3]], rtol=2e-4)
    assert (joined[[0, 2]] > joined[[1, 3]]).all()


@given(st.lists(st.floats(-1e6, 0.0), min_size=1, max_size=6), st.floats(0.1, 10.0))
def test_a_smaller_p_value_never_raises_the_result(logs, step):
    lower = [logs[0] - step, *logs[1:]]
    for method in ("fisher", "minimum", "cauchy"):
        higher, less = join_log_p_values([logs, lower], method)
        assert less <= higher + 1e-9 * abs(higher)


@pytest.mark.parametrize("method", ["fisher", "minimum", "cauchy"])
def test_impossible_rows_are_lowest_and_never_nan(method):
    joined = join_log_p_values([[-np.inf, 0.0], [-np.inf, -np.inf], [-1e300, -1.0], [0.0, 0.0]], method)
    assert np.isneginf(joined[:2]).all()
    assert np.isfinite(joined[2:]).all()
    assert joined[3] > joined[2]


def test_within_the_reference_the_log_is_that_of_the_conformal_p_value():
    rng = np.random.default_rng(1)
    reference, scores = rng.normal(size=50).round(1), rng.normal(size=300).round(1)
    inside = scores >= reference.min()
    expected = np.log(conformal_p_values(reference, scores))
    np.testing.assert_allclose(log_p_values(reference, scores)[inside], expected[inside])
    assert (log_p_values(reference, scores) <= expected + 1e-12).all()


def test_the_tail_goes_on_with_the_depth_of_the_lowest_scores():
    reference = -np.random.default_rng(2).exponential(scale=3.0, size=20_000)
    far = reference.min() - np.array([6.0, 6e6])
    expected = -np.log(20_001) - np.log1p(np.array([6.0, 6e6]) / 3.0)  # an exponential tail has one depth everywhere
    np.testing.assert_allclose(log_p_values(reference, far), expected, rtol=0.01)


def test_a_part_whose_reference_does_not_fit_cannot_drown_another():
    rng = np.random.default_rng(3)
    good = np.column_stack([log_p_values(rng.normal(size=500), rng.normal(size=300) - shift) for shift in (0.0, 0.0)])
    bad = good.copy()
    bad[:, 1] = log_p_values(rng.normal(size=500), -1e4 + rng.normal(size=300))  # everything lies far below it
    order = np.argsort(good[:, 0])
    joined = join_log_p_values(bad)[order]
    assert np.corrcoef(joined, good[order, 0])[0, 1] > 0.99


@pytest.mark.parametrize("reference", [[1.0], [2.0, 2.0, 2.0], [-np.inf, -np.inf], [-np.inf, 1.0, 2.0], [0.0, 5.0]])
def test_references_without_a_spread_still_order_what_is_below_them(reference):
    below = min(x for x in [*reference, 2.0] if np.isfinite(x)) - np.array([0.0, 1.0, 2.0])
    logs = log_p_values(reference, below)
    assert not np.isnan(logs).any()
    assert (np.diff(logs) <= 0.0).all()


def test_what_is_no_log_of_a_p_value_is_refused():
    for bad in ([[0.1, -1.0]], [[np.nan, -1.0]]):
        with pytest.raises(InputError, match="log_p must be logs of p-values, at most 0"):
            join_log_p_values(bad)
    with pytest.raises(InputError, match="method is 'sum'"):
        join_log_p_values([[-1.0]], "sum")
    with pytest.raises(InputError, match="two dimensions"):
        join_log_p_values([-1.0])


def test_a_reference_as_wide_as_float64_gives_no_nan():
    wide = [-1e308, 1e308]
    logs = log_p_values(wide, [-np.inf, -1.7e308, -1e308, 0.0])
    assert np.isneginf(logs[0])
    assert np.isfinite(logs[1:]).all()
    assert (np.diff(logs) >= 0.0).all()


def test_the_depth_of_the_tail_is_that_of_the_lowest_twentieth():
    reference = np.concatenate([[0.0, 1.0, 2.0, 3.0, 4.0], np.full(95, 10.0)])  # the sixth is at 10
    depth = np.mean(10.0 - np.arange(5.0))
    assert log_p_values(reference, [-depth])[0] == pytest.approx(np.log(1 / 101) - np.log(2.0))
