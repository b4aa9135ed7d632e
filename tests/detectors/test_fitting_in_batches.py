"""Batches are read no more often than needed, and statistics collected apart are fitted as if together."""

import weakref

import numpy as np
import pytest

from gem_ood import GEM, MSP, Energy, Head
from gem_ood.errors import InputError


class CountedBatches:
    """Re-iterable batches that count how often each of their passes began and how many batches were taken."""

    def __init__(self, batches):
        self.batches, self.passes, self.taken = batches, 0, 0

    def __iter__(self):
        self.passes += 1
        for batch in self.batches:
            self.taken += 1
            yield batch


def halves(blobs):
    features, labels, *_ = blobs
    return [(features[:250], labels[:250]), (features[250:], labels[250:])]


def test_a_fit_from_batches_reads_each_batch_once(blobs):
    batches = CountedBatches(halves(blobs))
    detector = GEM().fit_batches(batches)
    assert (batches.passes, batches.taken) == (1, 2)
    features, labels, held_out, _ = blobs
    expected = GEM().fit(features, labels).score_samples(held_out)
    np.testing.assert_allclose(detector.score_samples(held_out), expected, rtol=1e-10)


def test_ledoit_wolf_reads_the_batches_twice_and_gives_what_fit_gives(blobs):
    batches = CountedBatches(halves(blobs))
    detector = GEM(covariance="ledoit-wolf").fit_batches(batches)
    assert batches.passes == 2
    features, labels, held_out, _ = blobs
    expected = GEM(covariance="ledoit-wolf").fit(features, labels).score_samples(held_out)
    np.testing.assert_allclose(detector.score_samples(held_out), expected, rtol=1e-10)


def test_an_iterator_is_refused_before_it_is_read(blobs):
    batches = iter(halves(blobs))
    with pytest.raises(InputError, match="can be read only once"):
        GEM().fit_batches(batches)
    assert len(list(batches)) == 2


@pytest.mark.parametrize("normalize", [False, True])
def test_fitting_collected_statistics_equals_fitting_the_rows(blobs, normalize):
    features, labels, held_out, _ = blobs
    detector = GEM(normalize=normalize)
    statistics = detector.collect(halves(blobs))
    assert "n_features_in_" not in detector.__dict__
    expected = GEM(normalize=normalize).fit(features, labels).score_samples(held_out)
    np.testing.assert_allclose(detector.fit_statistics(statistics).score_samples(held_out), expected, rtol=1e-10)


def test_only_a_score_of_logits_without_a_head_reads_logits():
    assert MSP().reads_logits
    assert not Energy(head=Head([[1.0], [2.0]])).reads_logits
    assert not GEM().reads_logits


def test_a_row_that_ties_up_to_the_rounding_of_its_rows_is_kept(blobs):
    features, labels, *_ = blobs
    detector = GEM().fit(features, labels)
    scores = np.full(100, -10.0)
    assert detector.calibrate_scores(scores).offset_ > -10.0 * (1 + 1e-6)
    assert detector.calibrate_scores(scores, rounding=1e-4).offset_ == -10.0 - 1e-4
    assert detector.calibrate_scores([-np.inf, *scores], rounding=1e-4).calibration_scores_[0] == -np.inf


def test_scores_that_may_move_by_different_amounts_are_ordered_after_they_are_lowered(blobs):
    detector = GEM().fit(blobs[0], blobs[1]).calibrate_scores([-5.0, -5.5], tpr=0.5, rounding=[1.0, 0.0])
    np.testing.assert_allclose(detector.calibration_scores_, [-6.0, -5.5], rtol=1e-6)


@pytest.mark.parametrize("rounding", [-1.0, np.nan, np.inf, [0.1, 0.1]])
def test_an_impossible_rounding_is_refused(blobs, rounding):
    with pytest.raises(InputError, match="rounding must be one finite number"):
        GEM().fit(blobs[0], blobs[1]).calibrate_scores(np.zeros(100), rounding=rounding)


def test_the_first_batch_is_let_go_once_it_has_been_taken(blobs):
    alive = []

    class Rows(np.ndarray):
        pass

    class Watched:
        def __iter__(self):
            for rows, labels in halves(blobs):
                kept = rows.copy().view(Rows)
                alive.append(weakref.ref(kept))
                batch = (kept, labels)
                del kept
                yield batch
                del batch
                assert sum(reference() is not None for reference in alive) <= 1

    GEM().fit_batches(Watched())
    assert len(alive) == 2


def test_names_of_logits_keep_their_order():
    rows = [[9.0, 0.0, 1.0], [0.0, 9.0, 1.0]]
    names = ["dog", "cat", "eel"]
    detector = MSP().fit_batches([(rows, None)], classes=names)
    assert detector.verdicts(rows).nearest_class.tolist() == ["dog", "cat"]
    assert detector.partial_fit(rows, ["cat", "dog"]).classes_.tolist() == names
    assert detector.merge(MSP().fit_batches([(rows, None)], classes=names)).classes_.tolist() == names
