"""GradNorm, SHE, NCI and FDBD: against loops over the rows, streams, edges and refusals."""

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.base import clone

from gem_ood import Head, load
from gem_ood.detectors.boundaries import FDBD, NCI, SHE, GradNorm
from gem_ood.errors import InputError, LabelOrderWarning, NotFittedError

MEANS = 6.0 * np.random.default_rng(7).normal(size=(8, 5))[5:]  # those of the blobs
HEAD = Head(MEANS, -0.5 * (MEANS**2).sum(axis=1))
KINDS = (GradNorm, SHE, NCI, FDBD)
SUMMED = (SHE, NCI, FDBD)


def test_gradnorm_is_the_length_of_a_gradient_taken_by_differences(blobs):
    row = blobs[2][0] / 10.0
    head = Head(HEAD.weight / 10.0, [0.1, 0.0, -0.1])

    def divergence(weight):
        probabilities = softmax((weight @ row + head.bias) / 2.0)
        return np.sum(np.log(1.0 / 3.0 / probabilities)) / 3.0

    total = 0.0
    for place in np.ndindex(head.weight.shape):
        step = np.zeros(head.weight.shape)
        step[place] = 1e-6
        total += abs(divergence(head.weight + step) - divergence(head.weight - step)) / 2e-6
    detector = GradNorm(head=head, temperature=2.0)
    np.testing.assert_allclose(detector.score_samples([row]), total, rtol=1e-6)


def test_she_compares_with_the_mean_of_correctly_classified_rows(blobs):
    features, labels, held_out, _ = blobs
    wrong = labels.copy()
    wrong[::7] = (wrong[::7] + 1) % 3
    predicted = HEAD.logits(features).argmax(axis=1)
    patterns = [features[(wrong == place) & (predicted == place)].mean(axis=0) for place in range(3)]
    expected = [row @ patterns[HEAD.logits(row[np.newaxis]).argmax()] for row in held_out]
    detector = SHE(head=HEAD).fit(features, wrong)
    np.testing.assert_allclose(detector.patterns_, patterns, rtol=1e-12)
    np.testing.assert_allclose(detector.score_samples(held_out), expected, rtol=1e-11)


@pytest.mark.parametrize("alpha", [0.0, 0.0001, 0.1])
def test_nci_is_proximity_to_the_weight_vector_plus_the_norm(blobs, alpha):
    features, _, held_out, _ = blobs
    mean = features.mean(axis=0)
    expected = []
    for row in held_out:
        weight = HEAD.weight[HEAD.logits(row[np.newaxis]).argmax()]
        expected.append(weight @ (row - mean) / np.linalg.norm(row - mean) + alpha * np.linalg.norm(row, ord=1))
    detector = NCI(head=HEAD, alpha=alpha).fit(features)
    np.testing.assert_allclose(detector.mean_, mean, rtol=1e-12)
    np.testing.assert_allclose(detector.score_samples(held_out), expected, rtol=1e-11)


def test_fdbd_is_the_mean_distance_to_the_boundaries_over_that_to_the_mean(blobs):
    features, _, held_out, _ = blobs
    mean = features.mean(axis=0)
    expected = []
    for row in held_out:
        logits = HEAD.logits(row[np.newaxis])[0]
        best = int(logits.argmax())
        others = [place for place in range(3) if place != best]
        distances = [(logits[best] - logits[c]) / np.linalg.norm(HEAD.weight[best] - HEAD.weight[c]) for c in others]
        expected.append(np.mean(distances) / np.linalg.norm(row - mean))
    detector = FDBD(head=HEAD).fit(features)
    np.testing.assert_allclose(detector.mean_, mean, rtol=1e-12)
    np.testing.assert_allclose(detector.score_samples(held_out), expected, rtol=1e-9)


def test_labels_matter_to_she_alone():
    assert [kind(head=HEAD).uses_labels for kind in KINDS] == [False, True, False, False]
    assert not any(kind(head=HEAD).reads_logits for kind in KINDS)


# Streams and files


@pytest.mark.parametrize("kind", SUMMED)
def test_batches_and_merged_fits_equal_one_fit(kind, blobs):
    features, labels, held_out, _ = blobs
    expected = kind(head=HEAD).fit(features, labels).score_samples(held_out)
    streamed = kind(head=HEAD)
    for start in range(0, 600, 100):
        streamed.partial_fit(features[start : start + 100], labels[start : start + 100])
    np.testing.assert_allclose(streamed.score_samples(held_out), expected, rtol=1e-9)
    first, second = (kind(head=HEAD).fit(features[rows], labels[rows]) for rows in (slice(200), slice(200, None)))
    np.testing.assert_allclose(first.merge(second).score_samples(held_out), expected, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_scores_are_the_same_to_the_bit(kind, blobs, tmp_path):
    features, labels, held_out, far = blobs
    names = np.array(["x", "y", "z"])[labels]
    fitted = kind(head=HEAD).fit(features, names).calibrate(held_out)
    fitted.save(tmp_path / "detector.safetensors")
    loaded = load(tmp_path / "detector.safetensors")
    for rows in (held_out, far.astype(np.float32), held_out[:1]):
        np.testing.assert_array_equal(loaded.score_samples(rows), fitted.score_samples(rows))
    np.testing.assert_array_equal(loaded.verdicts(held_out).nearest_class, fitted.verdicts(held_out).nearest_class)
    assert loaded.threshold_ == fitted.threshold_


def test_labels_find_their_logits_by_name(blobs):
    features, labels, held_out, _ = blobs
    names = np.array(["zebra", "ant", "mole"])
    expected = SHE(head=HEAD).fit(features, labels).score_samples(held_out)
    batches = [(features, names[labels])]
    named = SHE(head=HEAD).fit_batches(batches, classes=names)
    np.testing.assert_allclose(named.score_samples(held_out), expected, rtol=1e-12)
    with pytest.raises(InputError, match="no correctly classified row"):
        SHE(head=HEAD).fit(features, names[labels])  # sorted names are in another order than the logits


def test_sums_of_logits_with_other_names_are_not_merged(blobs):
    features, labels, _, _ = blobs
    names = np.array(["zebra", "ant", "mole"])
    batches = [(features, names[labels])]
    first = SHE(head=HEAD).fit_batches(batches, classes=names)
    other_head = Head(HEAD.weight[[1, 0, 2]], HEAD.bias[[1, 0, 2]])
    second = SHE(head=other_head).fit_batches(batches, classes=names[[1, 0, 2]])
    with pytest.raises(InputError, match="merge fits made with the same head"):
        first.merge(second)
    second.set_params(head=HEAD)
    with pytest.raises(InputError, match="logit 0 is that of class 'zebra' in one fit and of 'ant' in the other"):
        first.merge(second)
    with pytest.raises(InputError, match="pass the same classes, all names in the order of the logits, to both fits"):
        first.partial_fit(features, names[labels], classes=names[[1, 0, 2]])
    assert first.partial_fit(features, names[labels], classes=names).classes_.tolist() == names.tolist()


@pytest.mark.parametrize("kind", [NCI, FDBD])
def test_fits_whose_logits_have_other_names_are_not_merged(kind, blobs):
    features, labels, held_out, _ = blobs
    names = np.array(["zebra", "ant", "mole"])
    first = kind(head=HEAD).fit_batches([(features, None)], classes=names)
    with pytest.warns(LabelOrderWarning):
        second = kind(head=HEAD).fit(features, names[labels])  # sorted, for want of an order
    with pytest.raises(InputError, match="logit 0 is that of class 'zebra' in one fit and of 'ant' in the other"):
        first.merge(second)
    joined = first.merge(kind(head=HEAD).fit(features))  # which knows no names
    assert joined.classes_.tolist() == names.tolist()
    assert joined.partial_fit(held_out).classes_.tolist() == names.tolist()


def test_labels_that_find_no_logit_are_told_where_to_pass_the_names(blobs):
    features, labels, _, _ = blobs
    for wrong, message in (
        (np.append(labels[:-1], 9), "label 9 names none of the 3 logits"),
        (["a"] * 600, "1 names"),
    ):
        with pytest.raises(InputError, match=rf"{message}.*pass classes, all names in the order of the logits"):
            SHE(head=HEAD).fit(features, wrong)


# Edges and refusals


@pytest.mark.parametrize("kind", SUMMED)
def test_sums_that_overflow_between_batches_are_refused_without_a_warning(kind):
    head = Head(np.eye(2))
    rows, labels = np.array([[1e308, 0.0], [0.0, 1e308]]), [0, 1]
    with pytest.raises(InputError, match="sums overflow float64; rescale"):
        kind(head=head).fit_batches([(rows, labels), (rows, labels)])
    streamed = kind(head=head).partial_fit(rows, labels)
    with pytest.raises(InputError, match="sums overflow float64; rescale"):
        streamed.merge(streamed)
    with pytest.raises(InputError, match="sums overflow float64; rescale"):
        streamed.partial_fit(rows, labels).score_samples(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_needed(kind, blobs):
    with pytest.raises(InputError, match=f"{kind.__name__} scores features together .* has no head"):
        kind().fit(blobs[0], blobs[1])
    with pytest.raises(InputError, match="features has 4 columns but the head takes 5"):
        kind(head=HEAD).fit(blobs[0][:, :4], blobs[1])


@pytest.mark.parametrize("kind", SUMMED)
def test_what_learns_says_that_it_has_not(kind, blobs):
    with pytest.raises(NotFittedError, match="call fit"):
        kind(head=HEAD).score_samples(blobs[2])


@pytest.mark.parametrize("alpha", [-0.1, np.nan, np.inf, "0.1", None, True])
def test_a_weight_of_the_norm_that_is_none_is_refused(alpha, blobs):
    with pytest.raises(InputError, match=r"alpha is .*; pass a finite number of at least 0"):
        NCI(head=HEAD, alpha=alpha).fit(blobs[0])


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan])
def test_a_temperature_that_is_none_is_refused(temperature, blobs):
    with pytest.raises(InputError, match="positive number"):
        GradNorm(head=HEAD, temperature=temperature).fit(blobs[0])


def test_she_needs_labels(blobs):
    with pytest.raises(InputError, match="SHE learns from labelled rows; pass labels"):
        SHE(head=HEAD).fit(blobs[0])


def test_a_class_without_a_pattern_is_named(blobs):
    features, labels, held_out, _ = blobs
    few = labels < 2
    with pytest.raises(InputError, match=r"class 2 has no correctly classified row.*1 of 3 classes"):
        SHE(head=HEAD).fit(features[few], labels[few])
    begun = SHE(head=HEAD).partial_fit(features[few], labels[few])
    with pytest.raises(InputError, match="class 2 has no correctly classified row"):
        begun.score_samples(held_out)
    begun.partial_fit(features[~few], labels[~few])
    expected = SHE(head=HEAD).fit(features, labels).score_samples(held_out)
    np.testing.assert_allclose(begun.score_samples(held_out), expected, rtol=1e-10)


def test_shards_of_single_classes_merge_into_a_whole(blobs, tmp_path):
    features, labels, held_out, _ = blobs
    shards = [SHE(head=HEAD).partial_fit(features[labels == place], labels[labels == place]) for place in range(3)]
    shards[1].save(tmp_path / "shard.safetensors")
    joined = shards[0].merge(load(tmp_path / "shard.safetensors")).merge(shards[2])
    expected = SHE(head=HEAD).fit(features, labels).score_samples(held_out)
    np.testing.assert_allclose(joined.score_samples(held_out), expected, rtol=1e-10)


def test_fdbd_needs_two_unequal_weight_vectors(blobs):
    for head in (Head(np.ones((1, 5))), Head(np.ones((4, 5)), [0.0, 1.0, 2.0, 3.0])):
        with pytest.raises(InputError, match="no decision boundary"):
            FDBD(head=head).fit(blobs[0])


def test_duplicate_classes_and_rows_at_the_mean_have_defined_scores():
    head = Head([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    rows = np.array([[2.0, 0.0], [0.0, 4.0]])
    detector = FDBD(head=head).fit(rows)
    scores = detector.score_samples([[2.0, 0.0], [0.0, 4.0], [1.0, 2.0]])
    length = np.hypot(1.0, 2.0)
    np.testing.assert_allclose(scores[:2], [2.0 / np.sqrt(2.0) / length, 4.0 / np.sqrt(2.0) / length], rtol=1e-12)
    assert scores[2] == np.finfo(np.float64).max
    np.testing.assert_allclose(NCI(head=head, alpha=1.0).fit(rows).score_samples([[1.0, 2.0]]), 3.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0.0, -1.0, 1e-200, 1e150])
def test_extreme_rows_score_as_defined_numbers(kind, size, blobs):
    detector = kind(head=HEAD).fit(blobs[0], blobs[1])
    rows = np.full((2, 5), size)
    scores = detector.score_samples(rows)
    assert np.isfinite(scores).all()
    assert scores[0] == scores[1]


@pytest.mark.parametrize("kind", SUMMED)
def test_sums_that_overflow_are_refused(kind):
    with pytest.raises(InputError, match="rescale the features"):
        kind(head=Head(np.eye(2) * 1e-9)).fit([[1.7e308, 0.0], [1.7e308, 0.0], [0.0, 1.0]], [0, 0, 1])


@pytest.mark.parametrize("kind", SUMMED)
def test_huge_features_are_learned_from(kind, blobs):
    features, labels, held_out, _ = blobs
    scaled = Head(HEAD.weight, HEAD.bias * 1e150)
    scores = kind(head=scaled).fit(features * 1e150, labels).score_samples(held_out * 1e150)
    power = {SHE: 1e300, NCI: 1.0, FDBD: 1.0}[kind]
    alpha = {"alpha": 0.0} if kind is NCI else {}
    if alpha:
        scores = NCI(head=scaled, alpha=0.0).fit(features * 1e150).score_samples(held_out * 1e150)
    expected = kind(head=HEAD, **alpha).fit(features, labels).score_samples(held_out)
    np.testing.assert_allclose(scores, expected * power, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_one_class_and_two_rows_are_enough_or_refused(kind):
    detector = clone(kind(head=Head([[1.0, 2.0]], [0.5])))
    if kind is FDBD:
        with pytest.raises(InputError, match="no decision boundary"):
            detector.fit([[1.0, 0.0], [0.0, 1.0]], [0, 0])
    else:
        assert np.isfinite(detector.fit([[1.0, 0.0], [0.0, 1.0]], [0, 0]).score_samples([[1.0, 1.0]])).all()
