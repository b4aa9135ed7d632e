import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from gem_ood.errors import InputError
from gem_ood.thresholds import benjamini_hochberg, conformal_p_values


def textbook_selection(p_values, level):
    last = 0
    for rank, p_value in enumerate(sorted(p_values), start=1):
        if p_value <= rank * level / len(p_values):
            last = rank
    cut = sorted(p_values)[last - 1] if last else -1
    return [p_value <= cut for p_value in p_values]


@given(
    counts=st.lists(st.integers(1, 100), min_size=1, max_size=60),
    level=st.sampled_from(["0.01", "0.05", "0.1", "0.15", "0.3"]),
)
def test_the_selection_is_the_textbook_loop_in_exact_arithmetic(counts, level):
    expected = textbook_selection([Fraction(count, 100) for count in counts], Fraction(level))
    selected = benjamini_hochberg(np.array(counts) / 100, level=float(level))
    np.testing.assert_array_equal(selected, expected)


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=60),
    st.floats(0.01, 0.5),
)
def test_the_selection_is_scipys_away_from_equality(p_values, level):
    adjusted = false_discovery_control(p_values)
    if not np.isclose(adjusted, level, rtol=1e-12, atol=0).any():
        np.testing.assert_array_equal(benjamini_hochberg(p_values, level=level), adjusted <= level)


def test_rows_exactly_on_the_line_are_declared():
    # 1/10 <= 2/3 · 0.15 holds with equality; computed without tolerance it fails by one rounding.
    p_values = [0.1, 0.1, 1.0]
    assert not (false_discovery_control(p_values) <= 0.15).any()
    assert benjamini_hochberg(p_values, level=0.15).tolist() == [True, True, False]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.tuples(st.floats(0.01, 0.5), st.floats(0.01, 0.5)))
def test_a_higher_level_never_declares_fewer_rows(p_values, levels):
    low, high = sorted(levels)
    assert np.all(benjamini_hochberg(p_values, level=low) <= benjamini_hochberg(p_values, level=high))


def test_nothing_is_declared_when_no_p_value_is_small():
    assert not benjamini_hochberg([0.5, 0.6, 1.0], level=0.1).any()


def test_the_false_discovery_rate_holds_with_conformal_p_values():
    # 1,000 draws of 400 calibration rows, 80 ID and 20 OOD rows at level .2: the rate is at most .8 · .2 =
    # .16. The share of false discoveries lies in [0, 1]; by Hoeffding its mean exceeds .16 + .07 with
    # probability under 6e-5.
    generator = np.random.default_rng(0)
    shares, powers = [], []
    for _ in range(1000):
        new_scores = np.concatenate([generator.normal(size=80), generator.normal(loc=-4, size=20)])
        p_values = conformal_p_values(generator.normal(size=400), new_scores)
        declared = benjamini_hochberg(p_values, level=0.2)
        shares.append(declared[:80].sum() / max(1, declared.sum()))
        powers.append(declared[80:].mean())
    assert np.mean(shares) <= 0.16 + 0.07
    assert np.mean(powers) > 0.8


@pytest.mark.parametrize(
    ("p_values", "message"),
    [
        ([0.5, math.nan], "p_values row 1 is NaN"),
        ([0.5, 1.5], r"p_values row 1 is 1.5 but a p-value lies in \[0, 1\]"),
        ([-0.1, 0.5], "p_values row 0 is -0.1"),
        ([], "p_values is empty"),
        ([[0.5]], "p_values must have one dimension"),
    ],
)
def test_what_is_no_p_value_is_refused(p_values, message):
    with pytest.raises(InputError, match=message):
        benjamini_hochberg(p_values, level=0.1)


@pytest.mark.parametrize("level", [0, 1, 5, math.nan])
def test_a_level_outside_zero_and_one_is_refused(level):
    with pytest.raises(InputError, match="level must lie strictly between 0 and 1"):
        benjamini_hochberg([0.5], level=level)
