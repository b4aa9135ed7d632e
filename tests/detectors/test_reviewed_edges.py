"""Edges where a detector could be silently wrong: ties across batch sizes, failed fits, shared memory, odd options."""

import joblib
import numpy as np
import pandas as pd
import pytest

from gem_ood import GEM, MSP, Energy, Head, Mahalanobis, load
from gem_ood.errors import FileFormatError, InputError

HEAD = Head(np.random.default_rng(0).normal(size=(3, 40)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("detector", [GEM(), GEM(normalize=True), GEM(relative=True), Mahalanobis(), MSP(head=HEAD)])
def test_a_row_that_ties_with_calibration_rows_is_kept_in_batches_of_any_size(detector, dtype):
    for seed in range(10):
        generator = np.random.default_rng(seed)
        labels = np.arange(600) % 3
        features = (generator.normal(size=(600, 40)) + 0.3 * labels[:, np.newaxis]).astype(dtype)
        detector.fit(features, labels)
        held_out = (generator.normal(size=(999, 40)) + 0.3).astype(dtype)
        lowest = held_out[np.argmin(detector.score_samples(held_out))]
        held_out[:300] = lowest  # 30 % of the rows are one and the same, and score lowest
        detector.calibrate(held_out, tpr=0.95)
        for size in (1, 4, 5, 300):
            rows = np.repeat(lowest[np.newaxis], size, axis=0)
            assert not detector.is_ood(rows).any()
            assert detector.p_values(rows).min() > 0.3


def test_a_failed_fit_leaves_the_detector_as_it_was(blobs):
    features, labels, held_out, _ = blobs
    wider = np.full((20, 9), np.nan)
    for detector in (GEM(), Energy()):
        detector.fit(features, labels).calibrate(held_out)
        before = detector.score_samples(held_out), detector.threshold_
        for verb, arguments in (
            (detector.fit, (wider,)),
            (detector.fit_batches, ([(wider, None)],)),
            (detector.partial_fit, (wider, np.zeros(20, dtype=int))),
        ):
            with pytest.raises(InputError):
                verb(*arguments)
            np.testing.assert_array_equal(detector.score_samples(held_out), before[0])
            assert detector.threshold_ == before[1]


def test_a_failed_first_batch_leaves_nothing_behind(blobs):
    features, labels, _, _ = blobs
    for spoiled in (np.nan, 1e200):
        bad = features.copy()
        bad[7, 0] = spoiled
        detector = GEM()
        with pytest.raises(InputError):
            detector.partial_fit(bad, labels % 2)
        assert not hasattr(detector, "n_features_in_")
        detector.partial_fit(features[:, :4], labels, classes=[0, 1, 2])
        assert detector.statistics_.n_rows == len(features)


def test_an_overflowing_batch_is_refused_and_changes_nothing(blobs):
    features, labels, held_out, _ = blobs
    detector = GEM().partial_fit(features, labels)
    before = detector.score_samples(held_out)
    for repeats in (1, 400):  # one chunk, and several
        huge = np.tile(features, (repeats, 1))
        huge[3] = 1e200
        with pytest.raises(InputError, match="rescale"):
            detector.partial_fit(huge, np.tile(labels, repeats))
        np.testing.assert_array_equal(detector.score_samples(held_out), before)


def test_classes_declared_late_are_refused(blobs):
    detector = GEM().partial_fit(blobs[0], blobs[1], classes=[0, 1, 2])
    detector.partial_fit(blobs[0], blobs[1], classes=[0, 1, 2])
    with pytest.raises(InputError, match="declare all of them in the first call"):
        detector.partial_fit(blobs[0], blobs[1], classes=[0, 1, 2, 3])


def test_columns_by_name_must_stay_the_same_in_partial_fit_too(blobs):
    frame = pd.DataFrame(blobs[0], columns=list("abcde"))
    for detector in (GEM(), Energy()):
        detector.partial_fit(frame, blobs[1])
        with pytest.raises(ValueError, match="feature names"):
            detector.partial_fit(frame[list("edcba")], blobs[1])


def test_labelled_and_unlabelled_rows_do_not_mix(blobs):
    features, labels, _, _ = blobs
    for mix in (
        lambda: GEM().fit(features, labels).merge(GEM().fit(features)),
        lambda: GEM().fit(features).merge(GEM().fit(features, labels)),
        lambda: GEM().fit_batches([(features, None), (features, labels)]),
        lambda: GEM().fit_batches([(features, labels), (features, None)]),
        lambda: GEM().fit(features).partial_fit(features, labels),
    ):
        with pytest.raises(InputError, match="labels"):
            mix()


def test_a_detector_in_shared_read_only_memory_goes_on_learning(blobs, tmp_path):
    features, labels, held_out, _ = blobs
    joblib.dump(GEM().partial_fit(features, labels), tmp_path / "detector.joblib")
    shared = joblib.load(tmp_path / "detector.joblib", mmap_mode="r").partial_fit(features, labels)
    expected = GEM().partial_fit(features, labels).partial_fit(features, labels)
    np.testing.assert_allclose(shared.score_samples(held_out), expected.score_samples(held_out), rtol=1e-12)


def test_scores_of_logits_stream_and_merge_too(blobs):
    features, labels, held_out, _ = blobs
    head = Head(np.random.default_rng(0).normal(size=(3, 5)))
    names = np.array(["a", "b", "c"])[labels]
    first, second = (Energy(head=head).partial_fit(features[part], names[part]) for part in (slice(0, 1), slice(1, 9)))
    assert first.classes_.tolist() == [0, 1, 2]
    assert first.merge(second).classes_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(first.merge(second).score_samples(held_out), first.score_samples(held_out))
    assert first.partial_fit(features, names).classes_.tolist() == ["a", "b", "c"]
    with pytest.raises(InputError, match="cannot merge a MSP into a Energy"):
        first.merge(MSP(head=head).fit(features))


def test_unfitted_scores_of_logits_give_verdicts_and_explanations():
    logits = np.array([[3.0, 1.0], [0.0, 5.0]])
    assert Energy().verdicts(logits).nearest_class.tolist() == [0, 1]
    assert Energy().explain(logits).classes.tolist() == [0, 1]
    with pytest.raises(InputError, match=r"head is a ndarray; pass Head\(weight, bias\)"):
        MSP(head=np.eye(2)).score_samples(logits)


@pytest.mark.parametrize(
    "options",
    [
        {"covariance": np.float32(0.5)},
        {"covariance": np.int64(0)},
        {"priors": np.array([0.2, 0.3, 0.5], dtype=np.float32)},
        {"tpr": np.float32(0.99)},
        {"calibration": np.float32(0.5), "tpr": 0.5, "random_state": np.int64(3)},
    ],
)
def test_options_in_numpys_own_types_work_and_come_back(options, blobs, tmp_path):
    detector = GEM(**options).fit(blobs[0], blobs[1])
    detector.save(tmp_path / "detector.safetensors")
    loaded = load(tmp_path / "detector.safetensors")
    detector.calibrate(blobs[2][:99])
    assert loaded.calibrate(blobs[2][:99]).threshold_ == detector.threshold_


@pytest.mark.parametrize("options", [{"calibration": "a"}, {"calibration": 0.5, "random_state": "a"}])
def test_options_that_are_no_numbers_are_refused(options, blobs):
    with pytest.raises(InputError, match="pass a"):
        GEM(**options).fit(blobs[0], blobs[1])


def test_the_hold_out_leaves_every_class_a_row():
    generator = np.random.default_rng(0)
    features, labels = generator.normal(size=(60, 2)), np.append(np.zeros(59, dtype=int), 1)
    for seed in range(20):
        detector = GEM(calibration=0.5, random_state=seed).fit(features, labels)
        assert detector.gaussians_.classes.tolist() == [0, 1]


def test_float32_features_of_any_scale_have_finite_scores():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(200, 40))
    expected = GEM().fit(features).score_samples(features)
    for scale in (1e-40, 1e-20, 1e20, 1e37):
        scaled = (features * scale).astype(np.float32)
        scores = GEM().fit(scaled).score_samples(scaled)
        assert np.isfinite(scores).all()
        if scale > 1e-38:  # below, float32 itself has lost digits
            np.testing.assert_allclose(scores, expected, rtol=1e-4)


def test_few_dimensions_keep_their_accuracy_in_float32():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(3000, 2)).astype(np.float32)
    scores = GEM().fit(features, np.arange(3000) % 3).score_samples(features)
    exact = GEM().fit(features, np.arange(3000) % 3).score_samples(features.astype(np.float64))
    np.testing.assert_allclose(scores, exact, rtol=1e-9)


@pytest.mark.parametrize("labels", [[2**70, 1], [b"\xff", b"a"]])
def test_labels_beyond_64_bits_or_utf8_are_refused(labels):
    with pytest.raises(InputError, match="pass"):
        GEM().fit([[1.0], [2.0]], np.array(labels, dtype=object))


def test_saving_to_a_folder_or_into_none_names_what_was_given(blobs, tmp_path):
    detector = GEM().fit(blobs[0], blobs[1])
    with pytest.raises(IsADirectoryError, match=f"{tmp_path} is a folder"):
        detector.save(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist; create it first"):
        detector.save(tmp_path / "none" / "detector.safetensors")


def test_a_threshold_that_does_not_fit_its_scores_is_refused(blobs, tmp_path):
    from gem_ood import storage

    path = tmp_path / "detector.safetensors"
    GEM().fit(blobs[0], blobs[1]).calibrate(blobs[2]).save(path)
    tensors, header = storage.read(path)
    for change in ({"value": 1.0}, {"order": 0}, {"n_rows": 3}):
        storage.write(path, tensors=tensors, header=header | {"threshold": header["threshold"] | change})
        with pytest.raises(FileFormatError, match="calibration scores are missing or damaged"):
            load(path)


def test_explaining_a_frame_gives_no_false_warning(blobs):
    frame = pd.DataFrame(blobs[0], columns=list("abcde"))
    detector = GEM().fit(frame, blobs[1])
    assert detector.explain(frame[:2]).scores.shape == (2,)  # warnings are errors here
