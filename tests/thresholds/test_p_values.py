import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gem_ood.errors import InputError
from gem_ood.thresholds import conformal_p_values, conformal_threshold

scores_with_ties = st.floats(allow_nan=False) | st.integers(-3, 3).map(float)


@given(st.lists(scores_with_ties, min_size=1, max_size=20), st.lists(scores_with_ties, min_size=1, max_size=20))
def test_p_values_are_the_textbook_loop(calibration, scores):
    expected = [(1 + sum(c <= score for c in calibration)) / (len(calibration) + 1) for score in scores]
    np.testing.assert_array_equal(conformal_p_values(calibration, scores), expected)
    np.testing.assert_array_equal(conformal_p_values(sorted(calibration), scores, assume_sorted=True), expected)


@pytest.mark.parametrize(
    "values",
    [[1, 2, 3, 4, 5], [1, 1, 2, 2, 3], [1, 1, 1, 1, 1], [1, 2, 2, 2, 3], [-math.inf, 0, 0, 5, math.inf]],
)
def test_p_values_are_super_uniform_over_every_order_of_exchangeable_scores(values):
    # Exchangeable: each order of the five values is equally likely; the last one is the new row.
    p_values = [
        conformal_p_values(order[:-1], order[-1:]).item()
        for order in itertools.permutations([float(value) for value in values])
    ]
    for rank in range(1, 6):
        at_most = sum(p <= rank / 5 for p in p_values)
        assert Fraction(at_most, len(p_values)) <= Fraction(rank, 5)
    if len(set(values)) == 5:  # without ties it is exactly uniform
        assert sum(p <= 1 / 5 for p in p_values) * 5 == len(p_values)


@given(
    calibration=st.lists(scores_with_ties, min_size=19, max_size=60),
    scores=st.lists(scores_with_ties, min_size=1, max_size=20),
    tpr=st.sampled_from([0.5, 0.8, 0.9, 0.95]),
)
def test_a_row_is_under_the_conformal_threshold_exactly_when_its_p_value_is_small(calibration, scores, tpr):
    threshold = conformal_threshold(calibration, tpr=tpr)
    p_values = conformal_p_values(calibration, scores)
    is_small = p_values <= threshold.order / (len(calibration) + 1)
    np.testing.assert_array_equal(np.array(scores) < threshold.value, is_small)


@pytest.mark.parametrize(
    ("calibration", "scores", "message"),
    [
        ([], [1.0], "calibration_scores is empty"),
        ([1.0, math.nan], [1.0], "calibration_scores row 1 is NaN"),
        ([1.0], [], "scores is empty"),
        ([1.0], [math.nan], "scores row 0 is NaN"),
        ([1.0], [[1.0]], "scores must have one dimension"),
    ],
)
def test_what_is_no_score_is_refused(calibration, scores, message):
    with pytest.raises(InputError, match=message):
        conformal_p_values(calibration, scores)
