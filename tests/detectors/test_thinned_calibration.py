"""Calibration on ranked scores: the same as on all of them where all are kept, bounded where some are left out."""

import json
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from spread_parts import SpreadParts
from test_contract import DETECTORS

from gem_ood import GEM, KNN, Combine, Energy, Mahalanobis, MaxLogit, load
from gem_ood.detectors.head_reading import feature_slack
from gem_ood.detectors.lowering import lowered_ranks
from gem_ood.detectors.saving import pack, unpack
from gem_ood.errors import CalibrationSizeError, FileFormatError, InputError, NotFittedError
from gem_ood.files import describe
from gem_ood.reports.panels.kept import kept_shares
from gem_ood.theory import certify
from gem_ood.thresholds import RankedScores, rank_scores, threshold_order

SINGLE = [name for name, detector in DETECTORS.items() if not isinstance(detector, Combine)]
COMBINED = [name for name in DETECTORS if name not in SINGLE]
PRECISION = 0.2


def ranked_scores(detector, rows, *, tpr=0.9, precision=PRECISION):
    scores = detector.score_samples(rows)
    batches = [(part, None) for part in np.array_split(scores, 7)]
    return rank_scores(batches, orders=lambda n: [threshold_order(n, tpr=tpr).order], precision=precision)


@pytest.fixture(name="many", scope="module")
def many_rows():
    """Rows of the same kind as the blobs: more than are kept with a coarse precision."""
    generator = np.random.default_rng(7)
    mixing = generator.normal(size=(5, 5))
    means = 6.0 * generator.normal(size=(3, 5))
    labels = generator.integers(3, size=5000)
    return means[labels] + generator.normal(size=(5000, 5)) @ mixing


@pytest.fixture(name="thinned")
def thinned_gem(blobs, many):
    detector = GEM().fit(blobs[0], blobs[1])
    return detector.calibrate_ranked(ranked_scores(detector, many), tpr=0.9)


@pytest.mark.parametrize("name", SINGLE)
def test_where_nothing_is_left_out_all_is_as_with_all_scores(name, blobs):
    features, labels, held_out, far = blobs
    local = clone(DETECTORS[name]).fit(features, labels)
    scores = np.unique(local.score_samples(held_out))
    spread = clone(DETECTORS[name]).fit(features, labels)
    local.calibrate_scores(scores, tpr=0.9)
    spread.calibrate_ranked(rank_scores([(scores[::-1], None)]), tpr=0.9)
    assert spread.calibration_ranks_ is None
    assert spread.threshold_ == local.threshold_
    rows = np.vstack([held_out, far])
    np.testing.assert_array_equal(spread.p_values(rows), local.p_values(rows))
    tensors, header = pack(spread)
    expected, expected_header = pack(local)
    assert header == expected_header
    assert set(tensors) == set(expected)
    np.testing.assert_array_equal(tensors["calibration.scores"], expected["calibration.scores"])


@pytest.mark.parametrize("name", SINGLE)
def test_scores_that_several_rows_share_count_as_often_as_they_came(name, blobs):
    features, labels, held_out, far = blobs
    local, spread = (clone(DETECTORS[name]).fit(features, labels) for _ in range(2))
    rows = np.vstack([held_out, far])
    scores = np.repeat(local.score_samples(held_out), 1 + np.arange(len(held_out)) % 4)
    local.calibrate_scores(scores, tpr=0.9)
    spread.calibrate_ranked(rank_scores([(scores, None)]), tpr=0.9)
    assert len(spread.calibration_scores_) == len(spread.calibration_ranks_) < len(scores)
    assert spread.offset_ == local.offset_
    assert spread.threshold_.n_rows == len(scores)
    np.testing.assert_array_equal(spread.p_values(rows), local.p_values(rows))
    np.testing.assert_array_equal(spread.is_ood(rows), local.is_ood(rows))


@pytest.mark.parametrize("name", SINGLE)
def test_thinned_p_values_are_a_little_above_the_exact_ones(name, blobs, many):
    features, labels, held_out, far = blobs
    local, spread = (clone(DETECTORS[name]).fit(features, labels) for _ in range(2))
    local.calibrate(many, tpr=0.9)
    spread.calibrate_ranked(ranked_scores(spread, many), tpr=0.9)
    assert len(spread.calibration_scores_) < 100
    # Some slacks are 1e-10 of the median size of the scores, which is taken of ranked ones here.
    np.testing.assert_allclose(
        spread.offset_, local.offset_, rtol=1e-10, atol=1e-10 * np.median(np.abs(local.calibration_scores_))
    )
    rows = np.vstack([held_out, far, many[:500]])
    found, exact = spread.p_values(rows), local.p_values(rows)
    is_clear = np.abs(rows_gap(local, rows)) > 1e-9
    assert (found >= exact)[is_clear].all()
    assert (found <= (1.0 + PRECISION) * exact * (1.0 + 1e-12))[is_clear].all()
    np.testing.assert_array_equal(spread.is_ood(rows)[is_clear], local.is_ood(rows)[is_clear])
    assert (spread.p_values(many[:500]) > spread.threshold_.order / 5001.0)[~spread.is_ood(many[:500])].all()


def rows_gap(detector, rows):
    """Return how far each score is from the nearest calibration score, relative to it."""
    scores, ordered = detector.score_samples(rows), detector.calibration_scores_
    at = np.searchsorted(ordered, scores)
    gaps = [np.abs(scores - ordered[np.clip(at + step, 0, len(ordered) - 1)]) for step in (-1, 0)]
    return np.minimum(*gaps) / np.maximum(np.abs(scores), 1e-300)


@pytest.mark.parametrize("name", SINGLE)
def test_no_score_overtakes_another_by_its_slack(name, blobs):
    detector = clone(DETECTORS[name]).fit(blobs[0], blobs[1])
    usual = np.sort(detector.score_samples(np.vstack([blobs[2], blobs[3]])))
    sizes = np.geomspace(1e-300, 1e300, 5000)
    scores = np.unique(np.concatenate([usual, np.linspace(usual[0], usual[-1], 5000), -sizes, sizes, [0.0]]))
    lowered = scores - detector._slack(scores)
    assert (np.diff(lowered) >= 0.0).all()
    assert (lowered <= scores).all()


@pytest.mark.parametrize("counts", [[1, 1, 1], [4, 1, 1], [1, 2, 1], [1, 1, 6], [2, 3, 3]])
def test_the_usual_size_is_the_median_of_all_rows(counts):
    scores = np.array([0.5, -2.0, 7.0])
    expected = np.unique(feature_slack(np.repeat(scores, counts)))
    np.testing.assert_array_equal(np.unique(feature_slack(scores, np.array(counts))), expected)


def test_scores_that_become_equal_when_lowered_have_the_lowest_rank():
    ranked = RankedScores(np.array([1.0, 1.0 + 2.0**-52, 3.0]), np.array([1, 5, 9]), 12)
    lowered = lowered_ranks(ranked, np.full(3, 5.0))  # between -4 and -2 floats are twice as far apart as above 1
    assert lowered.values.tolist() == [-4.0, -2.0]
    assert lowered.ranks.tolist() == [1, 9]


def test_a_score_that_is_lowered_below_others_takes_them_along():
    ranked = RankedScores(np.array([1.0, 2.0, 3.0]), np.array([1, 5, 9]), 12)
    lowered = lowered_ranks(ranked, np.array([0.0, 2.0, 0.0]))
    assert lowered.values.tolist() == [0.0, 3.0]
    assert lowered.ranks.tolist() == [1, 9]


def test_the_threshold_moves_among_the_kept_values(thinned, blobs, many):
    local = GEM().fit(blobs[0], blobs[1]).calibrate(many, tpr=0.9)
    assert thinned.offset_ == local.offset_
    for options in ({"tpr": 0.5}, {"tpr": 0.99}, {"tpr": 0.8, "confidence": 0.99}, {"tpr": 0.7, "method": "quantile"}):
        before = thinned.calibration_scores_
        moved, exact = thinned.calibrate(**options).threshold_, local.calibrate(**options).threshold_
        assert moved.value <= exact.value
        assert moved.order <= exact.order <= (1.0 + PRECISION) * (moved.order + 1)
        assert moved.guarantee == exact.guarantee
        assert moved.order in thinned.calibration_ranks_
        np.testing.assert_array_equal(thinned.calibration_scores_, before)


def test_explanations_and_verdicts_have_the_same_p_values(thinned, blobs):
    rows = np.vstack([blobs[2], blobs[3]])
    expected = RankedScores(thinned.calibration_scores_, thinned.calibration_ranks_, 5000).p_values(
        thinned.score_samples(rows)
    )
    np.testing.assert_array_equal(thinned.p_values(rows), expected)
    np.testing.assert_array_equal(thinned.verdicts(rows).p_value, expected)
    np.testing.assert_array_equal(thinned.explain(rows).p_values, expected)
    assert thinned.verdicts(blobs[3]).is_ood.all()


def test_other_calibrations_and_fits_forget_the_ranks(thinned, blobs):
    assert thinned.ranked_calibration.n_rows == 5000
    thinned.calibrate(blobs[2])
    assert thinned.calibration_ranks_ is None
    assert thinned.ranked_calibration is None
    thinned.calibrate_ranked(rank_scores([(np.arange(30.0) // 2, None)]))
    assert thinned.calibration_ranks_ is not None
    thinned.fit(blobs[0], blobs[1])
    assert thinned.calibration_ranks_ is None
    assert not thinned.is_calibrated


def test_a_thinned_calibration_is_saved_and_loaded(thinned, blobs, tmp_path):
    path = tmp_path / "gem.safetensors"
    thinned.save(path)
    rows = np.vstack([blobs[2], blobs[3]])
    for again in (load(path), pickle.loads(pickle.dumps(thinned))):
        assert again.threshold_ == thinned.threshold_
        np.testing.assert_array_equal(again.calibration_ranks_, thinned.calibration_ranks_)
        np.testing.assert_array_equal(again.p_values(rows), thinned.p_values(rows))
        assert again.calibrate(tpr=0.6).threshold_ == clone_calibrated(thinned).calibrate(tpr=0.6).threshold_
    info = describe(path)
    assert {array.name: array.shape for array in info.arrays}["calibration.ranks"] == thinned.calibration_ranks_.shape
    assert info.detector.threshold["n_rows"] == 5000


def clone_calibrated(detector):
    return pickle.loads(pickle.dumps(detector))


def changed_at(place, value):
    def change(array):
        changed = array.copy()
        changed[place] = value
        return changed

    return change


def of_neighbours(*places):
    """Return a change to the third and fourth alone, so that the ends and the threshold stay as they were."""

    def change(array):
        return np.concatenate([array[:2], array[2:4][list(places)], array[4:]])

    return change


DAMAGED = {
    "two ranks that fall": ("calibration.ranks", of_neighbours(1, 0)),
    "two equal ranks": ("calibration.ranks", of_neighbours(0, 0)),
    "two scores that fall": ("calibration.scores", of_neighbours(1, 0)),
    "two equal scores": ("calibration.scores", of_neighbours(0, 0)),
    "a table of scores": ("calibration.scores", lambda array: array[:, np.newaxis]),
    "ranks that fall": ("calibration.ranks", lambda array: array[::-1]),
    "ranks of nothing": ("calibration.ranks", changed_at(0, 0)),
    "ranks beyond the rows": ("calibration.ranks", changed_at(-1, 5001)),
    "equal ranks": ("calibration.ranks", lambda array: np.append(array[:1], array[:-1])),
    "other ranks": ("calibration.ranks", lambda array: np.append(1, array[:-1] + 1)),
    "fewer ranks": ("calibration.ranks", lambda array: array[1:]),
    "no ranks": ("calibration.ranks", lambda array: array[:0]),
    "a table of ranks": ("calibration.ranks", lambda array: array[:, np.newaxis]),
    "ranks that are no whole numbers": ("calibration.ranks", lambda array: array.astype(np.float64)),
    "short ranks": ("calibration.ranks", lambda array: array.astype(np.int32)),
    "scores out of order": ("calibration.scores", lambda array: array[::-1]),
    "equal scores": ("calibration.scores", lambda array: np.append(array[:1], array[:-1])),
    "a score that is NaN": ("calibration.scores", changed_at(1, np.nan)),
    "scores that are missing": ("calibration.scores", None),
    "ranks that are missing": ("calibration.ranks", None),
}


@pytest.mark.parametrize(("name", "change"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_ranking_is_refused(name, change, thinned):
    tensors, header = pack(thinned)
    if change is None:
        del tensors[name]
    else:
        tensors[name] = np.ascontiguousarray(change(tensors[name]))
    with pytest.raises(FileFormatError, match="the calibration scores are missing or damaged"):
        unpack(tensors, json.loads(json.dumps(header)), name="the file")


@pytest.mark.parametrize(("key", "value"), [("order", 7), ("n_rows", 40), ("n_rows", 5000.5), ("value", 0.125)])
def test_a_threshold_of_other_ranks_is_refused(key, value, thinned):
    tensors, header = pack(thinned)
    assert value not in thinned.calibration_ranks_
    with pytest.raises(FileFormatError, match="missing or damaged"):
        unpack(tensors, header | {"threshold": header["threshold"] | {key: value}}, name="the file")


@pytest.mark.parametrize("damage", ["a table", "short numbers", "order 0", "n_rows 40.0"])
def test_all_scores_that_are_damaged_are_refused(damage, blobs):
    tensors, header = pack(GEM().fit(blobs[0], blobs[1]).calibrate(blobs[2][:40]))
    scores, threshold = tensors["calibration.scores"], dict(header["threshold"])
    if damage == "a table":
        scores = scores[:, np.newaxis]
    elif damage == "short numbers":
        scores = scores.astype(np.float32)
        threshold["value"] = float(scores[threshold["order"] - 1])
    elif damage == "order 0":
        threshold |= {"order": 0, "value": float(scores[-1])}
    else:
        threshold["n_rows"] = 40.0
    with pytest.raises(FileFormatError, match="missing or damaged"):
        unpack(tensors | {"calibration.scores": scores}, header | {"threshold": threshold}, name="the file")


def test_ranks_beside_all_scores_are_refused(blobs):
    tensors, header = pack(GEM().fit(blobs[0], blobs[1]).calibrate(blobs[2][:40]))
    ranks = np.arange(2, 42)
    with pytest.raises(FileFormatError, match="missing or damaged"):
        unpack(tensors | {"calibration.ranks": ranks}, header, name="the file")


@pytest.mark.parametrize("cuts", [[], [1, 2, 900], list(range(50, 5000, 50))], ids=["one part", "few", "many"])
def test_spread_scores_are_ranked_as_those_at_hand(cuts, thinned, many):
    scores = thinned.score_samples(many)
    spread = SpreadParts(scores[:, np.newaxis], cuts=cuts)
    order = np.random.default_rng(0).permutation(5000)
    shuffled = SpreadParts(scores, cuts=cuts, order=order, seed=3)
    expected = rank_scores([(scores, None)], orders=[500], precision=0.01)
    for batches in (spread, shuffled):
        found = rank_scores(batches, orders=[500], precision=0.01)
        np.testing.assert_array_equal(found.values, expected.values)
        np.testing.assert_array_equal(found.ranks, expected.ranks)
        assert batches.largest_summary < 33 * 5000 + 2000  # 32 bytes for each of 5,000 rows at the most
        assert batches.n_passes <= 4


@pytest.mark.parametrize("name", COMBINED)
def test_a_combination_has_no_ranks_and_says_so(name, blobs):
    detector = clone(DETECTORS[name]).fit(blobs[0], blobs[1])
    with pytest.raises(InputError, match=r"Combine is calibrated on the scores of all its parts.*calibrate_scores"):
        detector.calibrate_ranked(RankedScores.of(np.arange(50.0)), tpr=0.9)
    assert not detector.is_calibrated


def test_what_cannot_calibrate_is_refused_and_changes_nothing(thinned):
    before = dict(thinned.__dict__)
    with pytest.raises(InputError, match="ranked is a list; pass RankedScores, or scores to calibrate_scores"):
        thinned.calibrate_ranked([1.0, 2.0])
    with pytest.raises(CalibrationSizeError, match="needs at least 19 calibration rows but 3 came"):
        thinned.calibrate_ranked(RankedScores.of([1.0, 1.0, 2.0]))
    for rounding in (-1.0, np.inf, np.nan, [0.1, 0.2], np.zeros(25)):
        with pytest.raises(InputError, match=r"rounding .*one finite number of at least 0"):
            thinned.calibrate_ranked(RankedScores.of(np.arange(50.0) // 2), rounding=rounding)
    assert thinned.__dict__ == before
    with pytest.raises(NotFittedError):
        GEM().calibrate_ranked(RankedScores.of(np.arange(50.0)))


def test_rounding_lowers_every_value_as_it_does_every_score():
    scores = np.repeat(np.random.default_rng(0).normal(size=500), 3)
    local, spread = (MaxLogit().fit(np.zeros((2, 1))) for _ in range(2))
    local.calibrate_scores(scores, rounding=0.25)
    spread.calibrate_ranked(RankedScores.of(scores), rounding=0.25)
    assert spread.offset_ == local.offset_ == np.sort(scores)[local.threshold_.order - 1] - 0.25
    asked = np.linspace(-3.0, 3.0, 1001)[:, np.newaxis]
    np.testing.assert_array_equal(spread.p_values(asked), local.p_values(asked))


def test_infinitely_far_calibration_rows_stay_infinitely_far():
    scores = np.concatenate([np.full(30, -np.inf), np.arange(100.0), [np.inf]])
    local, spread = (Energy().fit(np.zeros((2, 1))) for _ in range(2))
    local.calibrate_scores(scores, tpr=0.9)
    spread.calibrate_ranked(rank_scores([(scores, None)]), tpr=0.9)
    assert local.offset_ == spread.offset_ == -np.inf
    asked = np.linspace(-10.0, 110.0, 200)[:, np.newaxis]
    np.testing.assert_array_equal(spread.p_values(asked), local.p_values(asked))


@pytest.mark.parametrize("detector", [GEM(), Mahalanobis()], ids=str)
def test_a_certificate_reads_ranks_as_it_reads_scores(detector, blobs, many):
    features, labels, _, far = blobs
    local, spread = (clone(detector).fit(features, labels) for _ in range(2))
    local.calibrate(many, tpr=0.9)
    spread.calibrate_ranked(ranked_scores(spread, many, precision=1e-3), tpr=0.9)
    assert spread.calibration_ranks_ is not None
    exact, found = (certify(one, ood=far, tpr=0.9) for one in (local, spread))
    assert found.n_id_scores == exact.n_id_scores == 5000
    assert found.trust == exact.trust
    assert found.calibration_distance == pytest.approx(exact.calibration_distance, abs=2e-3)
    for one, other in zip(found.rates, exact.rates, strict=True):
        assert one.measured_tpr == pytest.approx(other.measured_tpr, abs=2e-3)
        assert one.measured_fpr == other.measured_fpr


def test_a_report_reads_ranks_as_it_reads_scores(blobs, many):
    local, spread = (GEM().fit(blobs[0], blobs[1]) for _ in range(2))
    local.calibrate(many, tpr=0.9)
    spread.calibrate_ranked(ranked_scores(spread, many, precision=1e-3), tpr=0.9)
    inside = local.score_samples(many[:1000])
    exact = kept_shares(local.calibration_scores_, inside, threshold=local.threshold_)
    found = kept_shares(spread.ranked_calibration, inside, threshold=spread.threshold_)
    assert (found.n_calibration, found.own_realised) == (exact.n_calibration, exact.own_realised)
    np.testing.assert_array_equal(found.asked, exact.asked)
    assert (found.realised >= exact.realised).all()  # thresholds that were not kept give way to lower ones
    for name in ("realised", "low", "high"):
        np.testing.assert_allclose(getattr(found, name), getattr(exact, name), atol=4e-3)
    assert found.own_chance == pytest.approx(exact.own_chance, abs=0.02)
    with pytest.raises(InputError, match=r"of 5000 calibration rows but \d+ scores came; .*ranked_calibration"):
        kept_shares(spread.calibration_scores_, inside, threshold=spread.threshold_)


def test_neighbours_of_rows_are_judged_by_ranks(blobs, many):
    detector = KNN(k=5).fit(blobs[0])
    detector.calibrate_ranked(ranked_scores(detector, many), tpr=0.9)
    assert detector.is_ood(blobs[3]).all()
    assert detector.is_ood(many).mean() == pytest.approx(0.1, abs=1e-3)
