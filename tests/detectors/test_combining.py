"""Combine: p-values of several detectors joined, and a joint verdict that keeps its guarantee."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.base import clone

from gem_ood import GEM, MSP, ClassGaussians, Energy, Head, Mahalanobis, MaxLogit, OpenMax, Residual, load
from gem_ood.detectors.combining import SAMPLE_ROWS, Combine
from gem_ood.errors import CalibrationSizeError, FileFormatError, InputError, NotFittedError
from gem_ood.thresholds import join_log_p_values, log_p_values

HEAD = Head(np.random.default_rng(0).normal(size=(3, 5)), [0.1, -0.2, 0.3])


def parts():
    return [GEM(), Energy(head=HEAD)]


@pytest.fixture
def fitted(blobs):
    return Combine(parts()).fit(blobs[0], blobs[1])


def conformal(reference, score):
    """The definition, in a loop."""
    return (1 + sum(other <= score for other in reference)) / (len(reference) + 1)


@pytest.mark.parametrize("method", ["fisher", "minimum", "cauchy"])
def test_the_score_joins_the_conformal_p_values_of_the_parts(blobs, method):
    features, labels, held_out, far = blobs
    joint = Combine(parts(), method=method).fit(features, labels).calibrate(held_out, tpr=0.9)
    dealt = np.random.default_rng(0).permutation(len(held_out))
    reference = held_out[np.sort(dealt[: len(held_out) // 2])]
    rows = np.vstack([held_out[:40], far[:5]])
    p = np.empty((len(rows), 2))
    for place, part in enumerate(parts()):
        part.fit(features, labels)
        among = part.score_samples(reference)
        p[:, place] = [conformal(among - 1e-9 * np.abs(among), score) for score in part.score_samples(rows)]
    inside = (p > 1 / (len(reference) + 1)).all(axis=1)  # beyond the reference the tail goes on
    expected = {
        "fisher": -0.5 * np.array([stats.combine_pvalues(row, "fisher").statistic for row in p]),
        "minimum": np.log(p).min(axis=1),
        "cauchy": -np.arcsinh(np.tan((0.5 - np.minimum(p, 0.99)) * np.pi).mean(axis=1)),
    }[method]
    assert inside.sum() > 30
    np.testing.assert_allclose(joint.score_samples(rows)[inside], expected[inside], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(joint.part_p_values(rows)[inside], p[inside], rtol=1e-9)


def test_the_threshold_is_set_by_rows_that_are_not_in_the_reference(blobs):
    features, labels, held_out, _ = blobs
    joint = Combine(parts()).fit(features, labels).calibrate(held_out)
    assert joint.threshold_.n_rows == len(held_out) - len(held_out) // 2
    moved = Combine(parts(), reference=0.25).fit(features, labels).calibrate(held_out)
    assert moved.threshold_.n_rows == len(held_out) - len(held_out) // 4


def dependent_rows(rng, n_rows):
    """Rows whose two logit scores are nearly the same number: as dependent as parts can be."""
    return np.abs(rng.normal(size=(n_rows, 4))) * rng.exponential(size=(n_rows, 1))


@pytest.mark.parametrize("method", ["fisher", "minimum", "cauchy"])
def test_the_guarantees_hold_although_the_parts_depend_on_each_other(method):
    rng = np.random.default_rng(0)
    joint = Combine([Energy(), MSP(), MSP(temperature=2.0)], method=method).fit(dependent_rows(rng, 200))
    kept, is_pac_kept = [], []
    for _ in range(300):
        evidence, new = np.split(joint.evidence(dependent_rows(rng, 2400)), [400])
        for confidence, found in ((None, kept), (0.9, is_pac_kept)):
            joint.calibrate_scores(evidence, tpr=0.9, confidence=confidence)
            scores = join_log_p_values(joint._log_p(new), method)
            found.append(np.mean(scores >= joint.offset_))
    # Standard errors over 300 draws: below 0.0015 of the mean and 0.018 of the share; 2,000 new rows blur each rate.
    assert 0.9 - 3 * 0.0015 < np.mean(kept) < 0.93
    assert np.mean(np.array(is_pac_kept) >= 0.9 - 0.007) > 0.9 - 3 * 0.018


@pytest.mark.parametrize("n_rows", [40, 80])
def test_few_rows_keep_the_rate_because_reference_and_threshold_are_apart(n_rows):
    # Rows that set both would flag too many: about 9 % of new rows instead of 5 % with 40 of them.
    rng = np.random.default_rng(1)
    joint = Combine([Energy(), MSP(), MSP(temperature=9.0), MaxLogit()], method="minimum").fit(rng.normal(size=(99, 4)))
    kept = []
    for _ in range(400):
        evidence, new = np.split(joint.evidence(rng.normal(size=(n_rows + 300, 4))), [n_rows])
        joint.calibrate_scores(evidence, tpr=0.95 if n_rows == 80 else 0.9)
        kept.append(np.mean(join_log_p_values(joint._log_p(new), "minimum") >= joint.offset_))
    asked, error = joint.threshold_.tpr, np.std(kept) / np.sqrt(len(kept))
    assert np.mean(kept) > asked - 3.0 * error


class Column(GEM):
    """A detector whose score is the first column, and may be off by a billionth of its size."""

    shift = 0.0

    def _scores(self, features, nearest=None):
        scores = super()._scores(features, nearest)
        scores[:] = features[:, 0] + self.shift * np.abs(features[:, 0])
        return scores

    def _slack(self, scores):
        return 1e-9 * np.abs(scores)


@pytest.mark.parametrize("lowest", [1e9 + 2.0, 1e9 + 5.0])
def test_the_lowest_calibration_row_is_kept_however_its_score_rounds(blobs, lowest):
    joint = Combine([Column()]).fit(blobs[0], blobs[1])
    held_out = np.full((40, 5), 1e9 + 7.0)  # so large that a billionth of it is one
    held_out[:12, 0] = 1e9 + 5.0  # in the reference as well as beside it
    held_out[np.random.default_rng(0).permutation(40)[-1], 0] = lowest  # beside the reference, within or beyond it
    joint.calibrate(held_out, tpr=0.95)
    for shift in (0.0, -0.9e-9):  # as much as rounding may do
        joint.detectors_[0].shift = shift
        assert not joint.is_ood(np.full((1, 5), lowest))[0]


def test_before_calibration_training_rows_are_the_reference(blobs, fitted):
    features = blobs[0]
    assert len(features) <= SAMPLE_ROWS
    gem = GEM().fit(blobs[0], blobs[1])
    among = gem.score_samples(features)
    own = gem.score_samples(blobs[2])
    expected = [conformal(among - 1e-9 * np.maximum(np.abs(among), 5), score) for score in own]
    found = fitted.part_p_values(blobs[2])[:, 0]
    inside = found >= 1 / (len(features) + 1)
    np.testing.assert_allclose(found[inside], np.array(expected)[inside], rtol=1e-9)
    assert not fitted.is_calibrated


def test_rows_far_beyond_the_reference_keep_their_order(fitted, blobs):
    fitted.calibrate(blobs[2], tpr=0.9)
    steps = blobs[3][:1] * np.array([[1.0], [10.0], [100.0], [1e6]])
    gem = fitted.detectors_[0].score_samples(steps)
    p_values = log_p_values(fitted._references[0], gem, assume_sorted=True)
    assert (np.diff(p_values) < 0).all()
    assert np.isfinite(p_values).all()


def test_fitting_leaves_the_given_detectors_alone(blobs):
    given = parts()
    Combine(given).fit(blobs[0], blobs[1])
    assert not hasattr(given[0], "n_features_in_")
    assert not hasattr(given[1], "n_features_in_")


def test_streaming_and_merging_equal_fitting_once(blobs, fitted):
    features, labels, held_out, _ = blobs
    streamed = Combine(parts())
    for start in range(0, len(features), 70):
        streamed.partial_fit(features[start : start + 70], labels[start : start + 70], classes=np.unique(labels))
    np.testing.assert_allclose(streamed.score_samples(held_out), fitted.score_samples(held_out), rtol=1e-7)
    first = Combine(parts()).fit(features[::2], labels[::2])
    joined = first.merge(Combine(parts()).fit(features[1::2], labels[1::2]))
    np.testing.assert_allclose(joined.score_samples(held_out), fitted.score_samples(held_out), rtol=1e-7)
    assert first.score_samples(held_out).shape == (len(held_out),)


def test_a_batch_that_fails_leaves_the_fit_as_it_was(blobs, fitted):
    before = fitted.score_samples(blobs[2])
    bad = blobs[0][:5].copy()
    bad[3, 1] = np.nan
    with pytest.raises(InputError, match="row 3, column 1 is NaN"):
        fitted.partial_fit(bad, blobs[1][:5])
    np.testing.assert_array_equal(fitted.score_samples(blobs[2]), before)


def test_a_large_fit_keeps_a_sample_that_does_not_depend_on_batches():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(2 * SAMPLE_ROWS, 2))
    once = Combine([GEM()]).fit(features)
    parts_of_it = [(features[start : start + 777], None) for start in range(0, len(features), 777)]
    batched = Combine([GEM()]).fit_batches(parts_of_it)
    assert len(once._references[0]) == SAMPLE_ROWS
    np.testing.assert_allclose(batched._references[0], once._references[0], rtol=1e-9)
    assert stats.kstest(once._sample.rows[:, 0], "norm").pvalue > 1e-3


def test_merged_fits_share_one_sample_and_a_batch_that_fails_leaves_it_alone():
    features = np.random.default_rng(0).normal(size=(2 * SAMPLE_ROWS, 2))
    first, second = Combine([GEM()]).fit(features[:SAMPLE_ROWS]), Combine([GEM()]).fit(features[SAMPLE_ROWS:])
    joined = first.merge(second)
    assert len(joined.part_p_values(features[:3])) == 3
    assert joined._sample.rows.shape == (SAMPLE_ROWS, 2)
    assert joined._sample.n_seen == 2 * SAMPLE_ROWS
    before = joined._sample
    with pytest.raises(InputError, match="row 0, column 0 is NaN"):
        joined.partial_fit([[np.nan, 0.0]])
    assert joined._sample is before
    np.testing.assert_array_equal(first._sample.rows, features[:SAMPLE_ROWS])


def test_a_loaded_combination_streams_and_merges_on(blobs, tmp_path):
    features, labels, held_out, _ = blobs
    classes = np.unique(labels)
    halves = slice(0, 300), slice(300, None)
    saved = []
    for place, rows in enumerate(halves):
        Combine(parts()).partial_fit(features[rows], labels[rows], classes=classes).save(
            tmp_path / f"{place}.safetensors"
        )
        saved.append(load(tmp_path / f"{place}.safetensors"))
    saved[0].merge(saved[1]).save(tmp_path / "both.safetensors")
    expected = Combine(parts()).fit(features, labels)
    merged = load(tmp_path / "both.safetensors")
    np.testing.assert_allclose(merged.score_samples(held_out), expected.score_samples(held_out), rtol=1e-7)
    saved[0].partial_fit(features[300:], labels[300:])
    np.testing.assert_allclose(saved[0].score_samples(held_out), expected.score_samples(held_out), rtol=1e-7)
    assert len(saved[0]._references[0]) == len(features)


def test_calibrating_on_evidence_in_parts_equals_calibrating_on_rows(blobs, fitted):
    held_out = blobs[2]
    expected = clone(fitted).fit(blobs[0], blobs[1]).calibrate(held_out, tpr=0.9)
    evidence = np.vstack([fitted.evidence(held_out[:100]), fitted.evidence(held_out[100:])])
    fitted.calibrate_scores(evidence, tpr=0.9)
    np.testing.assert_array_equal(fitted.is_ood(blobs[3]), expected.is_ood(blobs[3]))
    assert fitted.threshold_.order == expected.threshold_.order


def test_a_combination_saves_and_loads_to_the_bit(blobs, tmp_path):
    nested = Combine([Combine(parts(), method="cauchy"), Mahalanobis(normalize=True)], method="minimum")
    nested.fit(blobs[0], blobs[1]).calibrate(blobs[2], tpr=0.9)
    nested.save(tmp_path / "joint.safetensors")
    loaded = load(tmp_path / "joint.safetensors")
    rows = np.vstack([blobs[2], blobs[3]])
    np.testing.assert_array_equal(loaded.score_samples(rows), nested.score_samples(rows))
    np.testing.assert_array_equal(loaded.p_values(rows), nested.p_values(rows))
    assert [type(part) for part in loaded.detectors] == [Combine, Mahalanobis]
    assert loaded.detectors[0].method == "cauchy"
    np.testing.assert_array_equal(loaded.detectors[0].detectors[1].head.weight, HEAD.weight)
    loaded.fit(blobs[0], blobs[1])  # what was loaded can be fitted again


def test_a_file_whose_parts_were_exchanged_is_refused(fitted, tmp_path, blobs):
    from gem_ood import storage

    fitted.save(tmp_path / "joint.safetensors")
    tensors, header = storage.read(tmp_path / "joint.safetensors")
    header["state"]["parts"].reverse()
    storage.write(tmp_path / "bad.safetensors", tensors=tensors, header=header)
    with pytest.raises(FileFormatError, match=r"bad\.safetensors"):
        load(tmp_path / "bad.safetensors")


@pytest.mark.parametrize(
    ("combination", "message"),
    [
        (Combine([]), "pass a list of at least one detector"),
        (Combine(GEM()), "pass a list of at least one detector"),
        (Combine([GEM]), "detectors holds a ABCMeta; pass detectors such as"),
        (Combine([GEM(), Energy()]), r"Energy would read logits and the other parts features; pass head"),
        (Combine([GEM(calibration=0.5)]), "has calibration set; set it on Combine instead"),
        (Combine([GEM()], method="mean"), "method is 'mean'; pass one of 'fisher', 'minimum', 'cauchy'"),
        (Combine([GEM()], reference=1.0), "reference is 1.0; pass a share between 0 and 1"),
        (Combine([GEM(covariance="none")]), "covariance"),
    ],
)
def test_bad_options_are_refused_before_rows_are_read(combination, message, blobs):
    with pytest.raises(InputError, match=message):
        combination.fit(blobs[0], blobs[1])


def test_too_few_rows_for_reference_and_threshold_say_so(fitted, blobs):
    before = fitted.score_samples(blobs[2])
    with pytest.raises(CalibrationSizeError, match=r"at least 19 .* 10 came.*10 of the 20 rows serve as reference"):
        fitted.calibrate(blobs[2][:20], tpr=0.95)
    np.testing.assert_array_equal(fitted.score_samples(blobs[2]), before)
    with pytest.raises(CalibrationSizeError):
        fitted.calibrate(blobs[2][:1])


def test_evidence_of_another_shape_is_refused(fitted):
    for shape in ((4, 3), (4,), (4, 1)):
        with pytest.raises(InputError, match=r"scores has shape .* but there are 2 parts"):
            fitted.calibrate_scores(np.zeros(shape))
    with pytest.raises(InputError, match="scores row 3 holds NaN"):
        fitted.calibrate_scores(np.array([[0.0, 0.0]] * 3 + [[0.0, np.nan]]))
    with pytest.raises(InputError, match=r"rounding has shape \(3,\); pass one number, or one for each of 4 rows"):
        fitted.calibrate_scores(np.zeros((4, 2)), rounding=[0.0, 0.0, 0.0])
    with pytest.raises(NotFittedError):
        Combine(parts()).calibrate_scores(np.zeros((4, 2)))
    with pytest.raises(InputError, match="only a Combine of the same parts"):
        fitted.merge(Combine([GEM()]))


def test_what_cannot_stream_or_merge_says_so(blobs):
    one_pass = Combine([GEM(), OpenMax(head=HEAD)])
    with pytest.raises(InputError, match="OpenMax cannot stream; use fit or fit_batches"):
        one_pass.partial_fit(blobs[0], blobs[1])
    one_pass.fit(blobs[0], blobs[1])
    with pytest.raises(InputError, match="OpenMax cannot be merged; fit to all rows at once"):
        one_pass.merge(clone(one_pass).fit(blobs[0], blobs[1]))


def test_a_batch_that_one_part_refuses_changes_no_part(blobs):
    joint = Combine([Residual(), GEM(), ClassGaussians(covariance="pooled")])
    joint.partial_fit(blobs[0][:100], blobs[1][:100])
    with pytest.raises(InputError):
        joint.partial_fit(blobs[0][100:200], blobs[1][100:200] + 1)  # GEM knows no such label
    assert [part.statistics_.n_rows for part in joint.detectors_] == [100, 100, 100]


def test_columns_by_name_are_kept_while_streaming(blobs):
    frame = pd.DataFrame(blobs[0], columns=list("abcde"))
    joint = Combine(parts()).partial_fit(frame[:100], blobs[1][:100], classes=np.unique(blobs[1]))
    joint.partial_fit(frame[100:], blobs[1][100:])
    joint.score_samples(frame)
    with pytest.raises(ValueError, match="feature names"):
        joint.score_samples(frame[list("edcba")])
