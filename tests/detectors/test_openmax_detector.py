"""OpenMax as a detector: what it learns from correctly classified rows, its edges, and its storage."""

import numpy as np
import pytest
from scipy.spatial import distance as scipy_distance

from gem_ood import Head, load, storage
from gem_ood.detectors import openmax as openmax_module
from gem_ood.detectors.openmax import OpenMax
from gem_ood.errors import FileFormatError, InputError, NotFittedError
from gem_ood.scores.openmax import fit_weibull

N_CLASSES = 4


def draw(n, seed=0, strength=6.0):
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % N_CLASSES
    return strength * np.eye(N_CLASSES)[labels] + 2.0 * generator.normal(size=(n, N_CLASSES)), labels


def test_means_and_tails_come_from_the_correctly_classified_rows():
    logits, labels = draw(400)
    is_correct = logits.argmax(axis=1) == labels
    assert 0 < is_correct.sum() < 400
    model = OpenMax(tail_size=15).fit(logits, labels)._model
    for place in range(N_CLASSES):
        rows = logits[is_correct & (labels == place)]
        mean = rows.mean(axis=0)
        np.testing.assert_allclose(model.centres.means[place], mean, rtol=1e-12)
        distances = [scipy_distance.euclidean(row, mean) / 200.0 + scipy_distance.cosine(row, mean) for row in rows]
        tail = np.sort(distances)[-15:]
        np.testing.assert_allclose(model.smallest[place], tail[0], rtol=1e-10)
        np.testing.assert_allclose([model.shapes[place], model.log_scales[place]], fit_weibull(tail), rtol=1e-7)


def test_rows_of_no_class_score_below_rows_of_a_class():
    logits, labels = draw(800, strength=12.0)
    detector = OpenMax().fit(logits, labels)
    inside, _ = draw(200, seed=1, strength=12.0)
    outside = 12.0 * np.ones((200, N_CLASSES)) + np.random.default_rng(2).normal(size=(200, N_CLASSES))
    assert np.median(detector.score_samples(inside)) > detector.score_samples(outside).max()


def test_a_head_gives_the_scores_of_its_logits():
    features, labels = draw(400)
    head = Head(np.random.default_rng(3).normal(size=(N_CLASSES, N_CLASSES)) + 3.0 * np.eye(N_CLASSES), [0.1, 0, 0, 0])
    expected = OpenMax().fit(head.logits(features), labels).score_samples(head.logits(features))
    np.testing.assert_allclose(OpenMax(head=head).fit(features, labels).score_samples(features), expected, rtol=1e-9)


def test_names_in_the_order_of_the_logits_are_labels_too():
    logits, labels = draw(400)
    names = np.array(["ant", "bee", "cat", "dog"])
    detector = OpenMax().fit(logits, names[labels])
    np.testing.assert_array_equal(detector.score_samples(logits), OpenMax().fit(logits, labels).score_samples(logits))
    np.testing.assert_array_equal(detector.verdicts(logits).nearest_class, names[logits.argmax(axis=1)])
    batches = [(logits[:200], names[labels[:200]]), (logits[200:], names[labels[200:]])]
    np.testing.assert_allclose(
        OpenMax().fit_batches(batches).score_samples(logits), detector.score_samples(logits), rtol=1e-8
    )


def test_labels_are_needed():
    with pytest.raises(InputError, match="OpenMax learns from labelled rows; pass labels"):
        OpenMax().fit(draw(40)[0])


def test_labels_that_agree_with_no_logit_are_refused():
    logits, labels = draw(40, strength=50.0)
    with pytest.raises(InputError, match="labels and logits in the same order"):
        OpenMax().fit(logits, (labels + 1) % N_CLASSES)


def test_a_class_without_two_different_correct_rows_keeps_its_logit():
    logits, labels = draw(400, strength=50.0)
    kept = (labels != 1) & ((labels != 2) | (np.arange(400) == 2))
    detector = OpenMax().fit(logits[kept], labels[kept])
    np.testing.assert_array_equal(detector._model.shapes > 0.0, [True, False, False, True])
    rows = np.array([[0.0, 30.0, 0.0, 0.0], [0.0, 0.0, 30.0, 0.0]])
    np.testing.assert_allclose(detector.score_samples(rows), np.log(np.exp(rows).sum(axis=1)), rtol=1e-9)


def test_a_class_smaller_than_the_tail_is_fitted_to_its_rows():
    logits, labels = draw(24, strength=50.0)
    few = OpenMax(tail_size=6).fit(logits, labels)
    np.testing.assert_array_equal(
        OpenMax(tail_size=500).fit(logits, labels).score_samples(logits), few.score_samples(logits)
    )


def test_tails_kept_in_small_runs_are_those_kept_at_once(monkeypatch):
    logits, labels = draw(2000)
    batches = [(logits[start : start + 50], labels[start : start + 50]) for start in range(0, 2000, 50)]
    expected = OpenMax(tail_size=7).fit_batches(batches)._model
    monkeypatch.setattr(openmax_module, "ROWS_WAITING", 10)
    found = OpenMax(tail_size=7).fit_batches(batches)._model
    np.testing.assert_array_equal(found.shapes, expected.shapes)
    np.testing.assert_array_equal(found.smallest, expected.smallest)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tail_size": 1}, "tail_size is 1; pass a whole number of at least 2"),
        ({"tail_size": 2.5}, "tail_size is 2.5"),
        ({"alpha": 0}, "alpha is 0; pass a whole number of at least 1"),
        ({"alpha": True}, "alpha is True"),
        ({"distance": "manhattan"}, "pass one of 'eucos', 'euclidean', 'cosine'"),
        ({"head": 3}, "head is a int"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        OpenMax(**options).fit(*draw(40))


def test_an_unfitted_openmax_says_so():
    with pytest.raises(NotFittedError, match=r"call fit\(features, labels\)"):
        OpenMax().score_samples(draw(4)[0])


@pytest.mark.parametrize("factor", [1e-6, 1e30, 1e150])
def test_logits_of_any_size_give_finite_scores(factor):
    logits, labels = draw(200)
    scores = (
        OpenMax().fit(factor * logits, labels).score_samples(factor * np.vstack([logits, np.zeros((1, N_CLASSES))]))
    )
    assert np.isfinite(scores).all()


def test_logits_beyond_float64_are_refused_at_the_fit():
    logits, labels = draw(200)
    with pytest.raises(InputError, match="too large for float64"):
        OpenMax().fit(1e307 * logits, labels)


@pytest.mark.parametrize("distance", ["eucos", "euclidean", "cosine"])
def test_saved_and_loaded_scores_are_the_same_to_the_bit(distance, tmp_path):
    logits, labels = draw(400)
    detector = OpenMax(distance=distance, alpha=2, tail_size=9).fit(logits, labels).calibrate(draw(100, seed=4)[0])
    detector.save(tmp_path / "openmax.safetensors")
    loaded = load(tmp_path / "openmax.safetensors")
    assert loaded.get_params() == detector.get_params()
    np.testing.assert_array_equal(loaded.score_samples(logits), detector.score_samples(logits))
    assert loaded.threshold_ == detector.threshold_


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("openmax.shapes", -np.ones(N_CLASSES), "shape of the file is negative"),
        ("openmax.means", np.zeros((N_CLASSES, 2)), "openmax.means"),
        ("openmax.smallest", np.full(N_CLASSES, np.nan), "NaN or infinity"),
    ],
)
def test_a_damaged_file_is_refused(name, array, message, tmp_path):
    OpenMax().fit(*draw(80)).save(tmp_path / "openmax.safetensors")
    tensors, header = storage.read(tmp_path / "openmax.safetensors")
    tensors[name] = array
    storage.write(tmp_path / "damaged.safetensors", tensors=tensors, header=header)
    with pytest.raises(FileFormatError, match=message):
        load(tmp_path / "damaged.safetensors")


def test_a_failed_fit_leaves_the_last_one_as_it_was():
    logits, labels = draw(400)
    detector = OpenMax().fit(logits, labels)
    before = detector.score_samples(logits)
    with pytest.raises(InputError, match="names none of the 4 logits"):
        detector.fit(logits, np.append(labels[:-1], 9))
    np.testing.assert_array_equal(detector.score_samples(logits), before)


def test_a_distance_changed_after_the_fit_waits_for_the_next_fit(tmp_path):
    logits, labels = draw(400)
    detector = OpenMax().fit(logits, labels)
    before = detector.score_samples(logits)
    detector.set_params(distance="cosine").save(tmp_path / "openmax.safetensors")
    np.testing.assert_array_equal(detector.score_samples(logits), before)
    np.testing.assert_array_equal(load(tmp_path / "openmax.safetensors").score_samples(logits), before)


def test_a_file_that_does_not_say_the_distance_of_its_model_has_that_of_the_option(tmp_path):
    logits, labels = draw(400)
    detector = OpenMax(distance="cosine").fit(logits, labels)
    detector.save(tmp_path / "openmax.safetensors")
    tensors, header = storage.read(tmp_path / "openmax.safetensors")
    del header["state"]["distance"]
    storage.write(tmp_path / "older.safetensors", tensors=tensors, header=header)
    loaded = load(tmp_path / "older.safetensors")
    np.testing.assert_array_equal(loaded.score_samples(logits), detector.score_samples(logits))
