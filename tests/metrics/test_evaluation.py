import math
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import example, given
from hypothesis import strategies as st

from gem_ood.errors import InputError
from gem_ood.metrics import aupr, auroc, evaluate, fpr_at_tpr, roc_curve
from gem_ood.metrics.labelled import CHUNK_ROWS

#: Sums of up to a few hundred thousand precisions, in another order than scikit-learn's.
ROUNDING = {"rtol": 1e-11, "atol": 1e-13}

few_values = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=30)
any_values = st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=30)
infinite_values = st.lists(
    st.sampled_from([-math.inf, -1e300, -1.0, -5e-324, -0.0, 0.0, 5e-324, 2e-308, 1.0, 1e300, math.inf]),
    min_size=1,
    max_size=30,
)
two_sides = st.one_of(st.tuples(values, values) for values in (few_values, any_values, infinite_values))
rates = st.sampled_from([0.05, 0.5, 0.75, 0.9, 0.95, 5 / 7])


def joined(id_scores, ood_scores):
    """Scores of both sides as finite ranks, which keep order and ties, and whether each row is ID."""
    scores = np.concatenate([id_scores, ood_scores])
    ranks = np.unique(scores, return_inverse=True)[1].astype(float)
    return ranks, np.arange(len(scores)) < len(id_scores)


def paper_oracle(id_scores, ood_scores, tpr):
    """The paper's convention, word for word: recall nearest tpr over the distinct ID scores."""
    id_scores, ood_scores = np.array(id_scores), np.array(ood_scores)
    values, counts = np.unique(id_scores, return_counts=True)
    recalls = [Fraction(int(count), len(id_scores)) for count in np.cumsum(counts[::-1])[::-1]]
    distances = [(abs(recall - Fraction(str(tpr))), -recall) for recall in recalls]
    nearest = distances.index(min(distances))
    threshold = values[nearest]
    ranks, is_id = joined(id_scores, ood_scores)
    return {
        "fpr": float((ood_scores >= threshold).mean()),
        "tpr": float(recalls[nearest]),
        "threshold": threshold,
        "aupr_in": sklearn.metrics.average_precision_score(is_id, ranks),
        "aupr_out": sklearn.metrics.average_precision_score(~is_id, -ranks),
    }


def openood_oracle(id_scores, ood_scores, tpr):
    """OpenOOD 1.5 on scikit-learn: OOD is positive, areas are trapezoidal."""
    ranks, is_id = joined(id_scores, ood_scores)
    fpr_list, tpr_list, thresholds = sklearn.metrics.roc_curve(~is_id, -ranks, drop_intermediate=False)
    index = np.argmax(tpr_list >= tpr)
    precision_in, recall_in, _ = sklearn.metrics.precision_recall_curve(is_id, ranks)
    precision_out, recall_out, _ = sklearn.metrics.precision_recall_curve(~is_id, -ranks)
    distinct = np.unique(np.concatenate([id_scores, ood_scores]))
    return {
        "fpr": fpr_list[index],
        "tpr": tpr_list[index],
        "threshold": distinct[int(-thresholds[index])],
        "aupr_in": sklearn.metrics.auc(recall_in, precision_in),
        "aupr_out": sklearn.metrics.auc(recall_out, precision_out),
    }


def shared_oracle(id_scores, ood_scores):
    """What does not depend on the convention."""
    ranks, is_id = joined(id_scores, ood_scores)
    false_rate, true_rate, _ = sklearn.metrics.roc_curve(is_id, ranks, drop_intermediate=False)
    return {
        "auroc": sklearn.metrics.roc_auc_score(is_id, ranks),
        "detection_error": float(np.min(false_rate + 1 - true_rate)) / 2,
    }


ORACLES = {"paper": paper_oracle, "openood": openood_oracle}


def assert_matches_oracles(id_scores, ood_scores, tpr, convention):
    result = evaluate(id_scores, ood_scores, tpr=tpr, convention=convention)
    expected = ORACLES[convention](id_scores, ood_scores, tpr) | shared_oracle(id_scores, ood_scores)
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(result, name), value, **ROUNDING, err_msg=name)
    assert (result.n_id, result.n_ood) == (len(id_scores), len(ood_scores))
    assert (result.convention, result.intervals) == (convention, None)


@pytest.mark.parametrize("convention", ["paper", "openood"])
@given(sides=two_sides, tpr=rates)
@example(sides=([1.0], [1.0]), tpr=0.95)
@example(sides=([0.0], [-0.0]), tpr=0.95)
@example(sides=([1e300, 5e-324], [1e-323, 0.0]), tpr=0.5)
@example(sides=([1.0] * 7, [float(i) for i in range(7)]), tpr=5 / 7)
def test_every_number_is_that_of_scikit_learn(convention, sides, tpr):
    assert_matches_oracles(*sides, tpr, convention)


@pytest.mark.parametrize("convention", ["paper", "openood"])
@pytest.mark.parametrize("decimals", [0, 3, 16])
def test_every_number_is_that_of_scikit_learn_over_several_chunks(convention, decimals):
    generator = np.random.default_rng(decimals)
    id_scores = generator.normal(loc=1.0, scale=1000, size=CHUNK_ROWS + 12_345).round(decimals)
    ood_scores = generator.normal(scale=1500, size=CHUNK_ROWS + 1).round(decimals)
    assert_matches_oracles(id_scores, ood_scores, 0.95, convention)


def test_chunks_with_and_without_ties_follow_one_another():
    generator = np.random.default_rng(0)
    distinct, tied = generator.normal(size=3 * CHUNK_ROWS), np.full(2 * CHUNK_ROWS, 0.5)
    id_scores = np.concatenate([distinct[::2] + 0.1, tied])
    ood_scores = np.concatenate([distinct[1::2], tied[:777]])
    assert_matches_oracles(id_scores, ood_scores, 0.95, "paper")


@pytest.mark.parametrize("convention", ["paper", "openood"])
@pytest.mark.parametrize("value", [0.0, -7.5, math.inf])
def test_scores_that_are_all_equal_tell_nothing(convention, value):
    result = evaluate([value] * 40, [value] * 10, convention=convention)
    assert (result.fpr, result.tpr, result.auroc, result.detection_error) == (1.0, 1.0, 0.5, 0.5)
    assert result.threshold == value
    if convention == "paper":
        assert result.aupr_in == pytest.approx(0.8)
        assert result.aupr_out == pytest.approx(0.2)


@pytest.mark.parametrize("convention", ["paper", "openood"])
def test_scores_that_separate_are_perfect_and_reversed_ones_the_worst(convention):
    good = evaluate([2.0, 3.0, math.inf], [-math.inf, 1.0], convention=convention)
    assert (good.fpr, good.auroc, good.aupr_in, good.aupr_out, good.detection_error) == (0, 1, 1, 1, 0)
    bad = evaluate([1.0, 0.0], [2.0, 3.0], convention=convention)
    assert (bad.fpr, bad.auroc, bad.detection_error) == (1, 0, 0.5)
    many = evaluate(np.arange(49) + 49, np.arange(49), convention=convention)  # 49 · (1/49) is not 1 in floats
    assert (many.fpr, many.auroc, many.aupr_in, many.aupr_out, many.detection_error) == (0, 1, 1, 1, 0)


def test_the_nearest_recall_wins_and_of_two_the_higher():
    ids = [1.0, 2.0, 3.0, 4.0]
    assert evaluate(ids, [0.0], tpr=0.7).tpr == 0.75
    assert evaluate(ids, [0.0], tpr=0.8).tpr == 0.75
    assert evaluate(ids, [0.0], tpr=0.625).tpr == 0.75
    assert evaluate(ids, [0.0], tpr=0.01).tpr == 0.25


@given(two_sides)
def test_increasing_transformations_change_nothing_but_the_threshold(sides):
    ranks, is_id = joined(*sides)
    for convention in ("paper", "openood"):
        result = evaluate(*sides, convention=convention)
        moved = evaluate(ranks[is_id] * 3 - 5, ranks[~is_id] * 3 - 5, convention=convention)
        for name in ("fpr", "tpr", "auroc", "aupr_in", "aupr_out", "detection_error"):
            assert getattr(result, name) == getattr(moved, name)


@given(sides=two_sides, tpr=rates)
def test_the_small_functions_give_the_same_numbers(sides, tpr):
    for convention in ("paper", "openood"):
        result = evaluate(*sides, tpr=tpr, convention=convention)
        assert fpr_at_tpr(*sides, tpr=tpr, convention=convention) == result.fpr
        assert aupr(*sides, positive="in", convention=convention) == result.aupr_in
        assert aupr(*sides, positive="out", convention=convention) == result.aupr_out
        assert auroc(*sides) == result.auroc


@given(any_values, any_values)
def test_the_curve_is_that_of_scikit_learn(id_scores, ood_scores):
    curve = roc_curve(id_scores, ood_scores)
    is_id = [True] * len(id_scores) + [False] * len(ood_scores)
    expected = sklearn.metrics.roc_curve(is_id, id_scores + ood_scores, drop_intermediate=False)
    for ours, theirs in zip((curve.fpr, curve.tpr, curve.thresholds), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_other_types_of_scores_give_the_same_numbers():
    id_scores, ood_scores = np.array([3, 5, 6, 7]), np.array([1, 2, 5])
    expected = evaluate(id_scores, ood_scores)
    assert evaluate(id_scores.astype(np.float32), ood_scores.tolist()) == expected
    backwards = evaluate(id_scores.astype(float)[::-1], np.repeat(ood_scores, 2)[::2])
    assert backwards == expected


def test_the_callers_arrays_are_left_alone():
    id_scores, ood_scores = np.array([3.0, 1.0, 2.0]), np.array([2.0, -0.0])
    id_scores.flags.writeable = ood_scores.flags.writeable = False
    evaluate(id_scores, ood_scores, intervals="bootstrap", n_resamples=2)
    assert id_scores.tolist() == [3.0, 1.0, 2.0]


def test_printing_shows_every_number_in_per_cent():
    result = evaluate([3.0, 4.0, 5.0, 6.0], [1.0, 2.0, 3.5, 0.0], tpr=0.75, intervals="delong")
    assert str(result).splitlines() == [
        "4 in-distribution and 4 out-of-distribution rows, paper convention",
        "FPR at 75.00% TPR       0.00%",
        "AUROC                  93.75%  [76.43%, 100.00%]",
        "AUPR in                95.00%",
        "AUPR out               95.00%",
        "Detection error        12.50%",
        "Threshold                   4",
    ]


@pytest.mark.parametrize(
    ("id_scores", "ood_scores", "message"),
    [
        ([], [1.0], "id_scores is empty"),
        ([1.0], [], "ood_scores is empty"),
        ([1.0, math.nan], [1.0], "id_scores row 1 is NaN"),
        ([1.0], [1.0, 2.0, math.nan], "ood_scores row 2 is NaN"),
        ([[1.0]], [1.0], "id_scores must have one dimension"),
        ([1.0], 1.0, "ood_scores must have one dimension"),
    ],
)
@pytest.mark.parametrize("function", [evaluate, fpr_at_tpr, auroc, aupr, roc_curve])
def test_what_is_no_score_is_refused(function, id_scores, ood_scores, message):
    with pytest.raises(InputError, match=message):
        function(id_scores, ood_scores)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tpr": 0}, "tpr must lie strictly between 0 and 1 but is 0"),
        ({"tpr": 1}, "tpr must lie strictly between 0 and 1 but is 1"),
        ({"tpr": 95}, "pass a fraction like 0.95"),
        ({"confidence": 1.5}, "confidence must lie strictly between 0 and 1"),
        ({"convention": "theirs"}, "convention must be .* but is 'theirs'"),
        ({"intervals": "exact"}, "intervals must be .* but is 'exact'"),
        ({"n_resamples": 0}, "n_resamples must be a whole number of at least 1 but is 0"),
        ({"n_resamples": 2.5}, "n_resamples must be a whole number of at least 1 but is 2.5"),
    ],
)
def test_an_option_that_is_none_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        evaluate([1.0, 2.0], [0.0, 1.0], **options)
    with pytest.raises(InputError, match='positive must be "in" or "out" but is None'):
        aupr([1.0], [0.0], positive=None)


def test_memory_stays_near_that_of_the_scores():
    generator = np.random.default_rng(0)
    id_scores, ood_scores = generator.normal(size=500_000), generator.normal(size=500_000)
    tracemalloc.start()
    evaluate(id_scores, ood_scores)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * (id_scores.nbytes + ood_scores.nbytes)
