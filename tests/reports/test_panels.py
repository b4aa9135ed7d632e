"""The numbers behind a report's figures, against SciPy, scikit-learn, simulation and naive loops."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import auc, precision_recall_curve, roc_auc_score, roc_curve

from gem_ood.errors import InputError
from gem_ood.reports.panels.curves import detection_curves
from gem_ood.reports.panels.histograms import score_histogram
from gem_ood.reports.panels.kept import ASKED, kept_shares
from gem_ood.reports.panels.quantiles import chi2_curves
from gem_ood.thresholds import conformal_threshold, pac_threshold, quantile_threshold

LEVELS = st.lists(st.sampled_from([-np.inf, -1e300, -7.0, -1.0, 0.0, 1e-300, 0.5, 1.0, 3.0, 1e12]), min_size=1)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(5)
    return rng.normal(-30.0, 5.0, 4000), rng.normal(-42.0, 8.0, 1500)


def naive_shares(scores, edges):
    """Each row goes to the last bin that starts at or below it, rows before all bins to the first."""
    counts = [0] * (len(edges) - 1)
    for score in scores:
        counts[max([0, *(place for place in range(len(edges) - 1) if edges[place] <= score)])] += 1
    return np.array(counts) / len(scores)


# Histograms


@pytest.mark.parametrize("threshold", [None, -37.3])
def test_each_bin_has_its_share_of_the_rows(rows, threshold):
    inside, near = rows
    found = score_histogram(inside, {"near": near}, threshold=threshold, n_bins=30)
    np.testing.assert_allclose(np.diff(found.edges), np.diff(found.edges)[0], rtol=1e-9)
    np.testing.assert_allclose(found.id, naive_shares(inside, found.edges), rtol=1e-12)
    np.testing.assert_allclose(found.ood["near"], naive_shares(near, found.edges), rtol=1e-12)
    assert found.id_beyond == (sum(inside < found.edges[0]), sum(inside > found.edges[-1]))
    assert found.ood_beyond == {"near": (sum(near < found.edges[0]), sum(near > found.edges[-1]))}
    assert sum(found.id_beyond) <= 0.003 * len(inside)


@given(LEVELS, LEVELS, st.sampled_from([-np.inf, -1e4, -1.0, 0.0, 0.3, 1.0, 1e12]), st.integers(2, 70))
def test_bars_left_of_the_threshold_are_the_rows_that_are_out(inside, outside, threshold, n_bins):
    found = score_histogram(inside, {"set": outside}, threshold=threshold, n_bins=n_bins)
    assert len(found.edges) == n_bins + 1
    assert np.isfinite(found.edges).all()
    assert (np.diff(found.edges) > 0.0).all()
    for scores, shares in ((inside, found.id), (outside, found.ood["set"])):
        assert shares.sum() == pytest.approx(1.0)
        if np.isfinite(threshold):
            is_left = found.edges[1:] <= threshold
            assert threshold in found.edges[1:-1]
            assert shares[is_left].sum() == pytest.approx(np.mean(np.array(scores) < threshold))


def test_a_far_set_leaves_in_distribution_rows_a_quarter_of_the_axis(rows):
    inside, near = rows
    far = np.append(np.full(999, -1e6), -np.inf)
    found = score_histogram(inside, {"near": near, "far": far, "above": [1e9]}, threshold=-38.0)
    low, high = np.quantile(inside, [0.001, 0.999])
    assert (high - low) / (found.edges[-1] - found.edges[0]) > 0.2
    assert found.ood_beyond == {"near": (0, 0), "far": (1000, 0), "above": (0, 1)}
    assert found.ood["far"][0] == found.ood["above"][-1] == 1.0


def test_one_outlier_among_the_in_distribution_rows_does_not_squash_the_others(rows):
    inside = np.append(rows[0][:99], -1e9)
    found = score_histogram(inside, {})
    assert found.edges[0] > -150.0
    assert found.id_beyond == (1, 0)


def test_the_axis_reaches_a_threshold_far_away(rows):
    found = score_histogram(rows[0], {}, threshold=-500.0)
    assert found.edges[0] <= -500.0
    assert found.edges[1] == -500.0
    assert found.id[0] == 0.0


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ([2.0], {}),
        ([2.0] * 50, {"same": [2.0]}),
        ([0.0] * 99 + [1.0], {"two values": [0.0, 1.0]}),
        ([-np.inf] * 3, {"finite": [1.0, 2.0]}),
        ([-np.inf], {"infinite": [np.inf]}),
        ([1.7e308, -1.7e308, 0.0], {"huge": [-1.7e308]}),
        ([1e-320, 2e-320], {}),
        ([1e16, 1e16 + 2.0], {"tied in all digits": [1e16]}),
        ([True, False], {"whole numbers": [3, 4]}),
    ],
)
def test_ties_extremes_and_single_rows_have_a_histogram(inside, outside):
    for threshold in (None, float(inside[0])):
        found = score_histogram(inside, outside, threshold=threshold)
        assert (np.diff(found.edges) > 0.0).all()
        for shares in (found.id, *found.ood.values()):
            assert shares.sum() == pytest.approx(1.0)
        json.dumps(found.as_dict(), allow_nan=False)


def test_a_histogram_is_written_in_the_form_of_a_report():
    found = score_histogram([0.0, 1.0], {"<b>": [1e9]}, threshold=0.5, n_bins=2).as_dict()
    assert found == {
        "edges": [-3.75, 0.5, 4.75],  # 8 interquartile ranges above the upper quartile, and as far to the left
        "id": [0.5, 0.5],
        "ood": {"<b>": [0.0, 1.0]},
        "beyond": {"id": [0, 0], "ood": {"<b>": [0, 1]}},
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_bins": 1}, "n_bins is 1; pass a whole number of at least 2"),
        ({"n_bins": 9.5}, "n_bins is 9.5"),
        ({"threshold": np.nan}, "threshold is NaN; pass a score to cut at, or None"),
    ],
)
def test_options_that_make_no_histogram_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        score_histogram([1.0, 2.0], {}, **options)


def test_the_set_with_a_nan_is_named():
    with pytest.raises(InputError, match=r"ood_scores\['far'\] row 1 is NaN"):
        score_histogram([1.0], {"far": [1.0, np.nan]})


# ROC and precision-recall


def exact_curves(inside, outside):
    is_in = np.concatenate([np.ones(len(inside)), np.zeros(len(outside))])
    scores = np.nan_to_num(np.concatenate([inside, outside]), neginf=-1e300)
    fpr, tpr, _ = roc_curve(is_in, scores, drop_intermediate=False)
    precision, recall, _ = precision_recall_curve(is_in, scores)
    return fpr, tpr, recall[::-1], precision[::-1]


def pairs(x, y):
    return {(round(first, 10), round(second, 10)) for first, second in zip(x, y, strict=True)}


@pytest.mark.parametrize("digits", [None, 1, -1])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 2), (300, 2000), (5000, 400), (20_000, 20_000)])
def test_reduced_curves_are_points_of_scikit_learns_with_the_same_area(sizes, digits):
    rng = np.random.default_rng(sizes[0])
    inside, outside = rng.normal(3.0, 2.0, sizes[0]), rng.standard_t(3, sizes[1])
    if digits is not None:
        inside, outside = inside.round(digits), outside.round(digits)
    outside[0] = -np.inf
    found = detection_curves(inside, outside)
    fpr, tpr, recall, precision = exact_curves(inside, outside)
    assert pairs(found.fpr, found.tpr) <= pairs(fpr, tpr)
    assert pairs(found.recall, found.precision) <= pairs(recall, precision)
    assert auc(found.fpr, found.tpr) == pytest.approx(auc(fpr, tpr), abs=0.001)
    assert auc(found.recall, found.precision) == pytest.approx(auc(recall, precision), abs=0.001)
    assert (found.fpr[0], found.tpr[0], found.fpr[-1], found.tpr[-1]) == (0.0, 0.0, 1.0, 1.0)
    assert (found.recall[0], found.precision[0], found.recall[-1]) == (0.0, 1.0, 1.0)
    assert found.precision[-1] == pytest.approx(sizes[0] / sum(sizes))
    assert max(len(found.fpr), len(found.recall)) <= 300


def test_few_points_are_all_kept_but_those_inside_a_straight_run():
    inside, outside = [1.0, 2.0, 5.0, 6.0, 7.0], [3.0, 3.5, 0.0]
    found = detection_curves(inside, outside)
    np.testing.assert_allclose(found.fpr, [0.0, 0.0, 2 / 3, 2 / 3, 1.0])
    np.testing.assert_allclose(found.tpr, [0.0, 0.6, 0.6, 1.0, 1.0])
    np.testing.assert_allclose(found.precision, [1.0, 1.0, 3 / 5, 4 / 6, 5 / 7, 5 / 8])


@pytest.mark.parametrize("n", [150, 1000, 30_000])
def test_the_area_holds_for_a_curve_that_is_all_teeth(n):
    inside, outside = np.arange(0.0, 2.0 * n, 2.0), np.arange(1.0, 2.0 * n, 2.0)
    found = detection_curves(inside, outside, n_points=50)
    expected = roc_auc_score(np.repeat([1, 0], n), np.concatenate([inside, outside]))
    assert auc(found.fpr, found.tpr) == pytest.approx(expected, abs=0.001)
    _, _, recall, precision = exact_curves(inside, outside)
    assert auc(found.recall, found.precision) == pytest.approx(auc(recall, precision), abs=0.001)


def test_a_million_rows_have_two_hundred_points():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(size=500_000), rng.normal(-1.0, 1.0, 500_000)
    found = detection_curves(inside, outside)
    assert max(len(found.fpr), len(found.recall)) <= 200
    assert auc(found.fpr, found.tpr) == pytest.approx(stats.norm.cdf(1.0 / np.sqrt(2.0)), abs=0.003)


def test_all_scores_tied_are_the_diagonal_and_chance():
    found = detection_curves([1.0, 1.0], [1.0, 1.0, 1.0]).as_dict()
    assert found == {"fpr": [0.0, 1.0], "tpr": [0.0, 1.0], "recall": [0.0, 1.0], "precision": [1.0, 0.4]}


@pytest.mark.parametrize("n_points", [1, 20.5, True])
def test_a_number_of_points_that_is_none_is_refused(n_points):
    with pytest.raises(InputError, match="pass a whole number of at least 2, for example 200"):
        detection_curves([1.0], [0.0], n_points=n_points)


# Shares asked for and kept


def test_the_realised_share_is_that_of_the_conformal_threshold(rows):
    calibration, test = rows[0][:700], rows[0][700:1500]
    own = pac_threshold(calibration, tpr=0.93, confidence=0.9)
    found = kept_shares(calibration, test, threshold=own)
    assert found.asked.tolist() == sorted([*ASKED[:-1], 0.93])  # 0.999 needs 999 rows
    for asked, realised in zip(found.asked, found.realised, strict=True):
        assert realised == np.mean(test >= conformal_threshold(calibration, tpr=asked).value)
    assert (found.own_asked, found.own_realised) == (0.93, np.mean(test >= own.value))
    law = stats.betabinom(800, 701 - own.order, own.order)
    assert (found.own_low, found.own_high) == (law.ppf(0.025) / 800, law.ppf(0.975) / 800)
    assert (found.n_calibration, found.n_test) == (700, 800)


@pytest.mark.parametrize(("n_calibration", "n_test"), [(1, 1), (1, 40), (3, 3), (60, 25), (500, 2000), (40, 15_000)])
def test_the_range_is_the_beta_binomials(n_calibration, n_test):
    own = quantile_threshold([0.0])
    found = kept_shares(np.arange(n_calibration), np.arange(n_test), threshold=own)
    for asked, low, high in zip(found.asked, found.low, found.high, strict=True):
        order = conformal_threshold(np.arange(n_calibration), tpr=asked).order
        law = stats.betabinom(n_test, n_calibration + 1 - order, order)
        assert (low * n_test, high * n_test) == pytest.approx((law.ppf(0.025), law.ppf(0.975)), abs=1e-6)


def test_the_share_kept_lies_in_the_range_as_often_as_said():
    n_runs, n_calibration, n_test = 4000, 60, 200
    found = kept_shares(np.arange(n_calibration), np.arange(n_test), threshold=quantile_threshold([0.0]))
    scores = np.random.default_rng(11).normal(size=(n_runs, n_calibration + n_test))
    calibration, test = np.sort(scores[:, :n_calibration]), scores[:, n_calibration:]
    for asked, low, high in zip(found.asked, found.low, found.high, strict=True):
        order = int(np.floor((1.0 - asked) * (n_calibration + 1) + 1e-9))
        kept = np.mean(test >= calibration[:, order - 1 : order], axis=1)
        # Five standard deviations of a share of 2.5 % are 0.0125.
        assert np.mean(kept < low) < 0.025 + 0.0125
        assert np.mean(kept > high) < 0.025 + 0.0125
        assert np.mean((low < kept) & (kept < high)) < 0.95 + 0.0175


def test_very_many_rows_have_the_range_of_the_beta_law():
    found = kept_shares(np.arange(39.0), np.arange(1e6), threshold=quantile_threshold([0.0]))
    place = found.asked.tolist().index(0.95)
    expected = stats.beta.ppf([0.025, 0.975], 38, 2)  # the 2nd of 39; a million test rows add next to nothing
    np.testing.assert_allclose([found.low[place], found.high[place]], expected, atol=3e-4)


def test_calibration_of_few_tied_and_infinite_rows_works():
    tied = kept_shares([1.0, 1.0, 1.0], [1.0, 1.0], threshold=quantile_threshold([1.0]))
    assert set(tied.realised) == {1.0}
    assert tied.asked.max() == 0.75
    infinite = kept_shares([-np.inf], [0.0, -np.inf], threshold=conformal_threshold([-np.inf], tpr=0.5))
    assert infinite.as_dict() == {
        "asked": [0.5],
        "realised": [1.0],
        "low": [0.0],
        "high": [1.0],
        "n_calibration": 1,
        "n_test": 2,
        "own": {"asked": 0.5, "realised": 1.0, "low": 0.0, "high": 1.0, "chance": pytest.approx(2 / 3)},
    }


def test_a_threshold_that_is_a_mere_number_is_refused():
    with pytest.raises(InputError, match=r"threshold is -3.0; pass a detector's threshold_"):
        kept_shares([1.0], [1.0], threshold=-3.0)


# Quantiles


def test_curves_of_classes_are_their_ordered_rows_against_chi_square():
    rng = np.random.default_rng(2)
    classes = {"cat": rng.chisquare(6, 30), "<dog>": rng.chisquare(6, 11)}
    found = chi2_curves(list(classes.values()), 6, names=list(classes)).as_dict()
    assert [curve["name"] for curve in found["curves"]] == [None, "cat", "<dog>"]
    expected = [np.concatenate(list(classes.values())), *classes.values()]
    for curve, distances in zip(found["curves"], expected, strict=True):
        n = len(distances)
        np.testing.assert_array_equal(curve["found"], np.sort(distances))
        np.testing.assert_allclose(stats.chi2.cdf(curve["expected"], 6), (np.arange(n) + 0.5) / n)
    ranks = np.arange(1, 42)
    np.testing.assert_allclose(stats.binom.sf(ranks - 1, 41, stats.chi2.cdf(found["band"]["low"], 6)), 0.025)
    np.testing.assert_allclose(stats.binom.sf(ranks - 1, 41, stats.chi2.cdf(found["band"]["high"], 6)), 0.975)
    assert found["class_band"] is None


def test_many_classes_are_a_band_and_one_class_is_all_rows():
    classes = np.random.default_rng(1).chisquare(4, (13, 50))
    many = chi2_curves(list(classes), 4).as_dict()
    assert len(many["curves"]) == 1
    np.testing.assert_allclose(many["class_band"]["low"], np.sort(classes).min(axis=0))
    np.testing.assert_allclose(many["class_band"]["high"], np.sort(classes).max(axis=0))
    assert many["class_band"]["n_classes"] == 13
    assert [curve["name"] for curve in chi2_curves(classes[:1], 4).as_dict()["curves"]] == [None]


@pytest.mark.parametrize("n_kept", [0, 150, 180, 187, 190, 195, 200])
def test_the_chance_of_a_kept_share_is_that_of_the_beta_binomial(n_kept):
    calibration, threshold = np.arange(100.0), conformal_threshold(np.arange(100.0), tpr=0.95)
    inside = np.repeat([-1.0, 200.0], [200 - n_kept, n_kept])
    law = stats.betabinom(200, 100 + 1 - threshold.order, threshold.order)
    expected = min(1.0, 2.0 * min(law.cdf(n_kept), law.sf(n_kept - 1)))
    found = kept_shares(calibration, inside, threshold=threshold).own_chance
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("n_values", [2, 5, 20])
def test_the_range_holds_for_tied_scores_too(n_values):
    generator, outside = np.random.default_rng(0), 0
    for _ in range(400):
        scores = generator.integers(0, n_values, size=400).astype(float)
        found = kept_shares(scores[:200], scores[200:], threshold=conformal_threshold(scores[:200], tpr=0.9))
        outside += not found.own_low <= found.own_realised <= found.own_high
        assert (found.low <= found.high).all()
    # At most 5 % of the draws, and five standard errors of that.
    assert outside <= 400 * 0.05 + 5 * np.sqrt(400 * 0.05 * 0.95)
