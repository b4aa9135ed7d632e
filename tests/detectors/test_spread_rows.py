"""Rows that are spread: every detector learns from parts of them what it learns from all, however they are parted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from spread_parts import N_ROWS, WORDS, SpreadParts, by_class, check_equal, partitionings
from test_contract import DETECTORS, HEAD, NEAREST_MEAN

from gem_ood import (
    GEM,
    KNN,
    MSP,
    SHE,
    ClassGaussians,
    OpenMax,
    ReAct,
    RelativeMahalanobis,
    Residual,
    ViM,
)
from gem_ood.batches import SpreadBatches
from gem_ood.detectors import available
from gem_ood.detectors.bank_base import BankDetector
from gem_ood.detectors.registry import name_of
from gem_ood.errors import InputError, LabelOrderWarning
from gem_ood.gaussians import Statistics, merge
from gem_ood.gaussians.class_statistics import collect_classes, merge_classes

#: Those that keep all rows cannot be fitted to spread ones; with a sample they are their own, drawn by content.
SAMPLED = ["knn, some rows", "nn-guide"]
WHOLE = {"knn", "knn, clusters", "combine, minimum"}
EXACT = [name for name in DETECTORS if name not in {*SAMPLED, *WHOLE}]


@pytest.fixture(name="rows")
def few_rows(blobs):
    features, labels, held_out, _ = blobs
    return features[:N_ROWS], labels[:N_ROWS], held_out[:60]


def test_every_detector_of_the_registry_is_among_those_tried():
    assert {name_of(DETECTORS[name]) for name in (*EXACT, *SAMPLED)} == set(available())


@pytest.mark.parametrize("parting", partitionings(np.arange(N_ROWS) % 3))
@pytest.mark.parametrize("name", EXACT)
def test_spread_rows_give_what_all_rows_give(name, parting, rows):
    features, labels, held_out = rows
    expected = clone(DETECTORS[name]).fit(features, labels)
    spread = SpreadParts(features, labels, **partitionings(labels)[parting])
    check_equal(clone(DETECTORS[name]).fit_batches(spread), expected, held_out)


NAMED = [name for name in EXACT if not (DETECTORS[name].reads_logits and DETECTORS[name].uses_labels)]


@pytest.mark.parametrize("name", NAMED)
def test_declared_names_stay_in_their_order_and_may_be_words(name, rows):
    features, labels, held_out = rows
    declared = [*WORDS, "bee", "cow"] if DETECTORS[name].reads_logits else WORDS
    expected = clone(DETECTORS[name]).fit(features, WORDS[labels], classes=declared)
    spread = SpreadParts(features, WORDS[labels], cuts=[20, 21, 90], order=by_class(labels))
    check_equal(clone(DETECTORS[name]).fit_batches(spread, classes=declared), expected, held_out)


@pytest.mark.parametrize("name", [name for name in EXACT if not DETECTORS[name].uses_labels])
def test_labels_are_not_needed_where_they_only_name_classes(name, rows):
    features, _, held_out = rows
    expected = clone(DETECTORS[name]).fit(features)
    check_equal(clone(DETECTORS[name]).fit_batches(SpreadParts(features, cuts=[1, 77])), expected, held_out)


@pytest.mark.parametrize(
    "detector",
    [GEM(), GEM(covariance="ledoit-wolf", normalize=True), ClassGaussians(covariance="ledoit-wolf")],
    ids=str,
)
def test_gaussians_without_labels_are_one(detector, rows):
    features, _, held_out = rows
    found = clone(detector).fit_batches(SpreadParts(features, cuts=[1, 77, 80], rows_per_batch=9))
    check_equal(found, detector.fit(features), held_out)


CUT_AT_WILL = [
    "gem, relative, ledoit-wolf",
    "class-gaussians, normalised",
    "openmax",
    "she",
    "react",
    "vim",
    "kl-matching",
]


@pytest.mark.parametrize("name", CUT_AT_WILL)
@settings(max_examples=8)
@given(cuts=st.lists(st.integers(0, 90), max_size=12), shuffle=st.integers(0, 99), seed=st.integers(0, 99))
def test_rows_may_be_cut_anywhere_and_merged_in_any_order(name, cuts, shuffle, seed):
    generator = np.random.default_rng(31)
    labels = np.arange(90) % 3
    features = generator.normal(size=(90, 5)) + NEAREST_MEAN.weight[labels]
    detector = clone(DETECTORS[name])
    if hasattr(detector, "head"):
        detector.set_params(head=NEAREST_MEAN)
    order = np.random.default_rng(shuffle).permutation(90)
    spread = SpreadParts(features, labels, cuts=cuts, order=order, seed=seed, rows_per_batch=11)
    check_equal(clone(detector).fit_batches(spread), detector.fit(features, labels), features + 0.5)


def test_float32_parts_give_what_float32_rows_give(rows):
    features, labels, held_out = rows
    narrow = features.astype(np.float32)
    for detector in (GEM(covariance="ledoit-wolf"), ReAct(head=HEAD), Residual()):
        spread = SpreadParts(narrow, labels, cuts=[3, 70])
        check_equal(clone(detector).fit_batches(spread), detector.fit(narrow, labels), held_out)


def test_rows_far_from_zero_lose_no_more_than_the_rounding_of_their_means(rows):
    features, labels, held_out = rows
    spread = SpreadParts(features + 1e6, labels, cuts=range(1, N_ROWS))
    found = GEM().fit_batches(spread).score_samples(held_out + 1e6)
    np.testing.assert_allclose(found, GEM().fit(features, labels).score_samples(held_out), rtol=1e-7)


# What is sent and what comes back


@pytest.mark.parametrize("name", [*EXACT, *SAMPLED])
def test_a_second_fit_sends_nothing_of_the_first(name, rows):
    features, labels, _ = rows
    spread = [SpreadParts(features, labels, cuts=[70]) for _ in range(2)]
    detector = clone(DETECTORS[name]).fit_batches(spread[0])
    detector.calibrate(features).fit_batches(spread[1])
    assert spread[1].largest_work == spread[0].largest_work
    assert not detector.is_calibrated


def test_only_statistics_travel():
    features = np.random.default_rng(0).normal(size=(3000, 40))
    labels = np.arange(3000) % 4
    spread = SpreadParts(features, labels, cuts=range(500, 3000, 500))
    GEM(covariance="ledoit-wolf", relative=True).fit_batches(spread)
    n_numbers = 4 * 40 + 40 * 40  # k·m + m²
    assert spread.largest_summary < 8 * n_numbers + 2000
    assert spread.largest_work < 8 * 4 * 40 + 2000  # the class means, for the second pass
    assert spread.n_passes == 3


def test_rows_are_read_as_often_as_from_batches(rows):
    features, labels, _ = rows
    passes = {}
    for detector in (
        GEM(),
        SHE(head=NEAREST_MEAN),
        OpenMax(head=HEAD),
        ViM(head=HEAD),
        MSP(head=HEAD),
        KNN(k=2, bank=9),
    ):
        spread = SpreadParts(features, labels, cuts=[50])
        detector.fit_batches(spread)
        passes[type(detector).__name__] = spread.n_passes
    assert passes == {"GEM": 1, "SHE": 2, "OpenMax": 3, "ViM": 2, "MSP": 1, "KNN": 1}


def test_collecting_spread_rows_leaves_statistics_of_all(rows):
    features, labels, _ = rows
    found = GEM(normalize=True).collect(SpreadParts(features, labels, cuts=[7, 8]))
    expected = GEM(normalize=True).collect([(features, labels)])
    np.testing.assert_array_equal(found.counts, expected.counts)
    np.testing.assert_allclose(found.means, expected.means, rtol=1e-12)
    np.testing.assert_allclose(found.scatter, expected.scatter, rtol=1e-11, atol=1e-14)


def test_columns_keep_their_names(rows):
    spread = SpreadParts(rows[0], rows[1], cuts=[7])
    spread.feature_names = tuple("abcde")
    assert GEM().fit_batches(spread).feature_names_in_.tolist() == list("abcde")


def test_the_order_of_logits_is_judged_by_the_first_rows_only(rows):
    features, labels, _ = rows
    with pytest.warns(LabelOrderWarning, match="only [012] of 5 rows are classified as their label"):
        MSP(head=NEAREST_MEAN).fit_batches(SpreadParts(features, WORDS[labels], cuts=[60]))


def test_spread_rows_are_never_iterated_over(rows):
    with pytest.raises(TypeError, match="pass work to reduce_rows"):
        list(SpreadParts(rows[0]))


# Bad input


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_keeping_all_rows_is_refused_before_any_are_read(name, rows):
    spread = SpreadParts(rows[0], rows[1], cuts=[50])
    with pytest.raises(InputError, match=r"KNN with bank=None keeps all rows.*pass bank=10_000 "):
        clone(DETECTORS[name]).fit_batches(spread)
    assert spread.n_passes == 0


@pytest.mark.parametrize("name", [*EXACT, *SAMPLED])
def test_a_row_that_is_not_finite_is_named_and_nothing_is_learned(name, rows):
    features, labels, held_out = rows
    detector = clone(DETECTORS[name]).fit(features, labels)
    before = detector.score_samples(held_out)
    broken = features.copy()
    broken[57, 3] = np.nan
    with pytest.raises(InputError, match="features row 17, column 3 is NaN"):
        detector.fit_batches(SpreadParts(broken, labels, cuts=[40, 90]))
    np.testing.assert_array_equal(detector.score_samples(held_out), before)


@pytest.mark.parametrize("name", [*EXACT, *SAMPLED])
def test_parts_of_another_width_are_refused(name, rows):
    features, labels, _ = rows
    spread = SpreadParts(features, labels, cuts=[40, 90])
    spread.parts[2] = [(X[:, :4], y) for X, y in spread.parts[2]]
    with pytest.raises(InputError, match=r"(5.*4|4.*5).*; pass "):
        clone(DETECTORS[name]).fit_batches(spread)


@pytest.mark.parametrize("name", [*EXACT, *SAMPLED])
def test_numbers_in_some_parts_and_words_in_others_are_refused(name, rows):
    features, labels, _ = rows
    spread = SpreadParts(features, labels, cuts=[40, 90])
    spread.parts[1] = [(X, WORDS[y]) for X, y in spread.parts[1]]
    with pytest.raises(InputError, match=r"whole.number.*strings"):
        clone(DETECTORS[name]).fit_batches(spread)


@pytest.mark.parametrize("name", [name for name in (*EXACT, "knn, some rows") if name != "nn-guide"])
def test_labels_in_some_parts_only_are_refused_where_they_matter(name, rows):
    features, labels, _ = rows
    detector = clone(DETECTORS[name])
    spread = SpreadParts(features, labels, cuts=[40, 90])
    spread.parts[1] = [(X, None) for X, _ in spread.parts[1]]
    if not (detector.uses_labels or isinstance(detector, BankDetector)):
        detector.fit_batches(spread)  # they only name the logits
        assert detector.classes_.tolist() == clone(detector).fit(features, labels).classes_.tolist()
        return
    with pytest.raises(InputError, match=r"labels.*; pass|; pass .*labels|leave the labels out"):
        detector.fit_batches(spread)


def test_rows_cannot_be_held_back_from_spread_ones(rows):
    with pytest.raises(InputError, match="calibration holds rows back from fit and cannot from batches"):
        GEM(calibration=0.1).fit_batches(SpreadParts(rows[0]))


def test_no_rows_at_all_are_refused(rows):
    with pytest.raises(InputError, match="batches is empty"):
        GEM().fit_batches(Nowhere())


class Nowhere(SpreadBatches):
    def head(self):
        return []

    def reduce(self, work, merge):
        raise AssertionError("there is nothing to work on")


def test_one_class_is_too_few_for_a_relative_score_in_whatever_parts(rows):
    features, labels, _ = rows
    with pytest.raises(InputError, match="pass labels of at least two classes"):
        RelativeMahalanobis().fit_batches(SpreadParts(features, 0 * labels, cuts=[10]))


def test_a_sum_that_overflows_only_when_it_is_merged_is_refused():
    one, other = ([[-1e154], [-1e154]], [0, 0]), ([[1e154], [1e154]], [0, 0])
    with pytest.raises(InputError, match="squares overflow float64; rescale"):
        merge(GEM().collect([one]), GEM().collect([other]))
    far = [
        Statistics(np.zeros(1, int), np.ones(1, int), np.array([[mean]]), np.zeros((1, 1)), 0.0)
        for mean in (-1e308, 1e308)
    ]
    with pytest.raises(InputError, match="squares overflow float64; rescale"):
        merge(*far)


def test_classes_that_are_too_many_only_together_are_refused(monkeypatch):
    monkeypatch.setattr("gem_ood.gaussians.class_statistics.MOST_NUMBERS", 3)
    one, other = (collect_classes([([[0.0], [1.0]], names)]) for names in (["a", "b"], ["c", "d"]))
    assert len(merge_classes(one, one).parts) == 2
    with pytest.raises(InputError, match=r"the covariances of 4 classes of 1 features are 4.0e\+00 numbers, more than"):
        merge_classes(one, other)
