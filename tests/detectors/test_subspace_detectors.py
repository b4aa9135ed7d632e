"""ViM and Residual: against the published procedure written out, the paper's defaults, streams, edges and refusals."""

import numpy as np
import pytest
import scipy.linalg
from scipy.special import logsumexp
from sklearn.base import clone

from gem_ood import Head, load
from gem_ood.detectors.subspaces import Residual, ViM
from gem_ood.errors import FileFormatError, InputError, NotFittedError

GENERATOR = np.random.default_rng(0)
HEAD = Head(GENERATOR.normal(size=(3, 5)), [0.1, -0.2, 0.3])


def leftover(rows, origin, dimension):
    """Return the directions that the published code keeps, by a singular value decomposition instead."""
    return np.linalg.svd(rows - origin)[2][dimension:].T


@pytest.mark.parametrize("dimension", [1, 2, 4])
def test_vim_is_the_published_procedure(blobs, dimension):
    features, labels, held_out, _ = blobs
    origin = -np.linalg.pinv(HEAD.weight) @ HEAD.bias
    space = leftover(features, origin, dimension)
    alpha = HEAD.logits(features).max(axis=1).mean() / np.linalg.norm((features - origin) @ space, axis=1).mean()
    expected = logsumexp(HEAD.logits(held_out), axis=1) - alpha * np.linalg.norm((held_out - origin) @ space, axis=1)
    detector = ViM(head=HEAD, dimension=dimension).fit(features, labels)
    assert detector.alpha_ == pytest.approx(alpha, rel=1e-9)
    np.testing.assert_allclose(detector.score_samples(held_out), expected, rtol=1e-8, atol=1e-9)


def test_the_origin_is_where_the_head_gives_logits_of_zero(blobs):
    detector = ViM(head=HEAD).fit(blobs[0])
    np.testing.assert_allclose(HEAD.logits(detector.space_.origin[np.newaxis]), 0.0, atol=1e-13)


def test_a_head_of_equal_classes_has_an_origin_too(blobs):
    head = Head(np.vstack([HEAD.weight, HEAD.weight[1]]), [0.1, -0.2, 0.3, 5.0])
    expected = -scipy.linalg.pinv(head.weight, rtol=1e-10) @ head.bias
    np.testing.assert_allclose(ViM(head=head).fit(blobs[0]).space_.origin, expected, rtol=1e-9)


@pytest.mark.parametrize("head", [None, HEAD])
def test_residual_is_the_length_of_what_is_left_about_its_origin(blobs, head):
    features, _, held_out, _ = blobs
    origin = features.mean(axis=0) if head is None else -np.linalg.pinv(head.weight) @ head.bias
    expected = -np.linalg.norm((held_out - origin) @ leftover(features, origin, 3), axis=1)
    detector = Residual(head=head, dimension=3).fit(features)
    np.testing.assert_allclose(detector.score_samples(held_out), expected, rtol=1e-8)


@pytest.mark.parametrize(
    ("width", "expected"), [(1, 0), (2, 1), (5, 2), (767, 383), (768, 512), (1499, 512), (1500, 1000), (2048, 1000)]
)
def test_the_default_dimension_is_the_papers_or_half_the_features(width, expected):
    assert Residual()._principal_dimension(width) == expected


def test_the_further_a_row_leaves_the_subspace_the_lower_it_scores(blobs):
    features, labels, held_out, _ = blobs
    for detector in (ViM(head=HEAD), Residual()):
        detector.fit(features, labels).calibrate(held_out)
        unseen = np.linalg.svd(HEAD.weight)[2][-1]  # a direction in which the logits stay as they are
        steps = np.array([20.0, 200.0, 2000.0])[:, np.newaxis] * unseen + held_out[0]
        scores = detector.score_samples(steps)
        assert (np.diff(scores) < 0.0).all()
        assert detector.is_ood(steps)[-1]


def test_x_is_features_with_a_head_or_without(blobs):
    assert not ViM(head=HEAD).reads_logits
    assert not Residual().reads_logits
    assert not Residual(head=HEAD).reads_logits
    explanation = Residual().fit(blobs[0], blobs[1]).explain(blobs[2])
    np.testing.assert_array_equal(explanation.responsibilities, np.ones((len(blobs[2]), 1)))
    assert set(Residual(head=HEAD).fit(blobs[0], blobs[1]).verdicts(blobs[2]).nearest_class) <= {0, 1, 2}


# Streams


@pytest.mark.parametrize("head", [None, HEAD])
def test_residual_streams_and_merges_as_if_fitted_once(blobs, head):
    features, labels, held_out, _ = blobs
    expected = Residual(head=head).fit(features, labels).score_samples(held_out)
    streamed = Residual(head=head)
    for start in range(0, 600, 150):
        streamed.partial_fit(features[start : start + 150], labels[start : start + 150])
    np.testing.assert_allclose(streamed.score_samples(held_out), expected, rtol=1e-9)
    first, second = (Residual(head=head).fit(features[rows], labels[rows]) for rows in (slice(200), slice(200, None)))
    before = first.score_samples(held_out)
    np.testing.assert_allclose(first.merge(second).score_samples(held_out), expected, rtol=1e-9)
    np.testing.assert_array_equal(first.score_samples(held_out), before)


def test_a_fit_goes_on_where_it_or_its_file_stopped(blobs, tmp_path):
    features, _, held_out, _ = blobs
    expected = Residual().fit(features).score_samples(held_out)
    begun = Residual().fit(features[:100]).calibrate(held_out)
    begun.save(tmp_path / "begun.safetensors")
    for detector in (begun, load(tmp_path / "begun.safetensors")):
        detector.partial_fit(features[100:])
        assert not detector.is_calibrated
        np.testing.assert_allclose(detector.score_samples(held_out), expected, rtol=1e-9)


def test_a_stream_of_labels_names_the_logits(blobs):
    features, labels, _, _ = blobs
    names = np.array(["a", "b", "c"])[labels]
    streamed = Residual(head=HEAD).partial_fit(features[:1], names[:1])
    np.testing.assert_array_equal(streamed.classes_, [0, 1, 2])
    np.testing.assert_array_equal(streamed.partial_fit(features, names).classes_, ["a", "b", "c"])
    given = Residual(head=HEAD).partial_fit(features, classes=["c", "a", "b"]).partial_fit(features, names)
    np.testing.assert_array_equal(given.classes_, ["c", "a", "b"])


def test_a_refused_batch_leaves_no_trace(blobs):
    features, _, held_out, _ = blobs
    detector = Residual().partial_fit(features).calibrate(held_out)
    before = detector.score_samples(held_out)
    bad = features.copy()
    bad[7, 3] = np.nan
    for batch in (bad, features[:, :4]):
        with pytest.raises(InputError):
            detector.partial_fit(batch)
    assert detector.is_calibrated
    np.testing.assert_array_equal(detector.score_samples(held_out), before)


def test_vim_reads_its_rows_twice_and_so_cannot_stream(blobs):
    assert not hasattr(ViM, "partial_fit")
    assert not hasattr(ViM, "merge")
    with pytest.raises(InputError, match="re-iterable"):
        ViM(head=HEAD).fit_batches(iter([(blobs[0], None)]))


# Files


@pytest.mark.parametrize("detector", [ViM(head=HEAD, dimension=3), Residual(), Residual(head=HEAD)], ids=str)
def test_saved_scores_are_the_same_to_the_bit(detector, blobs, tmp_path):
    features, labels, held_out, far = blobs
    fitted = clone(detector).fit(features, labels).calibrate(held_out)
    fitted.save(tmp_path / "detector.safetensors")
    loaded = load(tmp_path / "detector.safetensors")
    for rows in (held_out, far.astype(np.float32), held_out[:1]):
        np.testing.assert_array_equal(loaded.score_samples(rows), fitted.score_samples(rows))
    assert loaded.threshold_ == fitted.threshold_
    assert loaded.calibrate(held_out).threshold_ == fitted.threshold_


def test_a_file_whose_arrays_disagree_is_refused(blobs):
    from gem_ood.detectors.saving import pack, unpack

    tensors, header = pack(Residual(head=HEAD).fit(blobs[0]))
    for name, array in (("space.origin", np.zeros(4)), ("statistics.means", np.zeros((1, 4)))):
        with pytest.raises(FileFormatError):
            unpack(tensors | {name: array}, header, name="file")


# Edges and refusals


@pytest.mark.parametrize("dimension", [0, -1, 2.0, True, "2"])
def test_a_dimension_that_is_none_is_refused(dimension, blobs):
    for kind in (ViM(head=HEAD, dimension=dimension), Residual(dimension=dimension)):
        with pytest.raises(InputError, match="pass a whole number of at least 1"):
            kind.fit(blobs[0])


def test_a_dimension_that_leaves_no_residual_is_refused(blobs):
    for kind in (ViM(head=HEAD, dimension=5), Residual(dimension=np.int64(6))):
        with pytest.raises(InputError, match="pass a dimension below 5"):
            kind.fit(blobs[0])


def test_vim_needs_a_head_that_takes_the_features(blobs):
    with pytest.raises(InputError, match="has no head"):
        ViM().fit(blobs[0])
    for kind in (ViM, Residual):
        with pytest.raises(InputError, match="features has 4 columns but the head takes 5"):
            kind(head=HEAD).fit(blobs[0][:, :4])
        with pytest.raises(NotFittedError):
            kind(head=HEAD).score_samples(blobs[0])


def test_vim_refuses_rows_that_leave_no_residual(blobs):
    flat = blobs[0][:, :2] @ GENERATOR.normal(size=(2, 5)) - HEAD.weight.T @ np.linalg.solve(
        HEAD.weight @ HEAD.weight.T, HEAD.bias
    )
    with pytest.raises(InputError, match=r"600 rows lie within 2 principal dimensions.*smaller dimension"):
        ViM(head=HEAD).fit(flat)
    np.testing.assert_allclose(Residual(head=HEAD).fit(flat).score_samples(flat), 0.0, atol=1e-6)
    assert ViM(head=HEAD, dimension=1).fit(flat).alpha_ > 0.0


def test_vim_refuses_logits_that_would_turn_the_residual_round(blobs):
    with pytest.raises(InputError, match="on average, and a positive one is needed"):
        ViM(head=Head(HEAD.weight, HEAD.bias - 1000.0)).fit(blobs[0])


def test_fewer_rows_than_dimensions_span_the_subspace():
    rows = GENERATOR.normal(size=(3, 20))
    detector = Residual().fit(rows)
    np.testing.assert_allclose(detector.score_samples(rows), 0.0, atol=1e-12)
    new = GENERATOR.normal(size=(5, 20))
    within = np.linalg.svd(rows - rows.mean(axis=0))[2][:2]
    offsets = new - rows.mean(axis=0)
    np.testing.assert_allclose(
        detector.score_samples(new), -np.linalg.norm(offsets - offsets @ within.T @ within, axis=1), rtol=1e-10
    )


def test_one_feature_constant_columns_and_equal_rows_are_scored():
    np.testing.assert_allclose(Residual().fit([[0.0], [2.0]]).score_samples([[4.0]]), -3.0)
    np.testing.assert_allclose(Residual().fit(np.ones((4, 3))).score_samples([[1.0, 1.0, 3.0]]), -2.0)
    constant = np.column_stack([GENERATOR.normal(size=50), np.full(50, 7.0)])
    np.testing.assert_allclose(Residual().fit(constant).score_samples([[0.0, 9.0]]), -2.0, rtol=1e-9)


def test_huge_features_are_scored_or_refused(blobs):
    features, _, held_out, _ = blobs
    expected = Residual().fit(features).score_samples(held_out)
    np.testing.assert_allclose(Residual().fit(features * 1e150).score_samples(held_out * 1e150), expected * 1e150)
    with pytest.raises(InputError, match="overflow"):
        Residual().fit(features * 1e200)
    for detector in (Residual().fit(features), ViM(head=HEAD).fit(features)):
        assert not np.isnan(detector.score_samples(held_out * 1e300)).any()


def test_rows_that_tie_count_as_tied_whatever_batch_they_come_in(blobs):
    features, _, held_out, _ = blobs
    for detector in (Residual(), ViM(head=HEAD)):
        detector.fit(features).calibrate(held_out, tpr=0.5)
        alone = np.array([detector.is_ood(row[np.newaxis])[0] for row in held_out])
        assert np.count_nonzero(~alone) >= 200


def test_real_features_are_told_apart(cifar10):
    head = Head(cifar10["head"]["weight"], cifar10["head"]["bias"])
    train, test = cifar10["train"]["features"][:5000], cifar10["test"]["features"][:1000]
    out = cifar10["ood_svhn"]["features"][:1000]
    scores = ViM(head=head).fit(train)
    wins = np.mean(scores.score_samples(test)[:, np.newaxis] > scores.score_samples(out))
    assert wins > 0.8
