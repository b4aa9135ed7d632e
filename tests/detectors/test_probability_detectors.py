"""JointEnergy, Entropy, GEN, MOS and KLMatching as detectors: options, heads, storage, and what KLMatching learns."""

import numpy as np
import pytest
from scipy.special import rel_entr, softmax
from sklearn.base import clone

from gem_ood import Head, load
from gem_ood.detectors import make
from gem_ood.detectors.probabilities import GEN, MOS, Entropy, JointEnergy, KLMatching
from gem_ood.errors import FileFormatError, InputError, NotFittedError
from gem_ood.scores.probabilities import gen, joint_energy, mos, negative_entropy

HEAD = Head(np.random.default_rng(0).normal(size=(4, 5)), [0.1, -0.2, 0.3, 0.0])
GROUPS = [0, 0, 7, 7]


@pytest.mark.parametrize(
    ("detector", "score"),
    [
        (JointEnergy(head=HEAD), joint_energy),
        (Entropy(head=HEAD, temperature=3.0), lambda logits: negative_entropy(logits, temperature=3.0)),
        (GEN(head=HEAD, gamma=0.5, top=2), lambda logits: gen(logits, gamma=0.5, top=2)),
        (MOS(head=HEAD, groups=GROUPS), lambda logits: mos(logits, groups=GROUPS)),
    ],
)
def test_features_are_scored_through_the_head_without_a_fit(detector, score, blobs):
    expected = score(HEAD.logits(blobs[2]))
    np.testing.assert_allclose(detector.score_samples(blobs[2]), expected, rtol=1e-12)
    assert detector.calibrate(blobs[2]).is_calibrated


def test_the_defaults_are_those_of_the_papers():
    assert (GEN().gamma, GEN().top) == (0.1, 100)
    assert Entropy().temperature == 1.0
    rows = np.random.default_rng(0).normal(size=(3, 150))
    np.testing.assert_array_equal(GEN().score_samples(rows), gen(rows, gamma=0.1, top=100))


@pytest.mark.parametrize(
    ("detector", "message"),
    [
        (Entropy(temperature=0.0), "temperature is 0.0"),
        (GEN(gamma=-1.0), "gamma is -1.0"),
        (GEN(top=0), "top is 0"),
        (GEN(top="all"), "top is 'all'"),
        (MOS(), "groups is None; pass groups, one whole number per logit"),
        (MOS(groups=[0, 0, 1]), "group 1 has one logit"),
        (MOS(groups=["a"] * 5), "one whole number per logit"),
        (MOS(groups=[0, 0, 0, 0]), "groups has 4 numbers but there are 5 logits"),
        (KLMatching(head="head"), "head is a str"),
    ],
)
def test_bad_options_are_refused_before_any_row_is_read(detector, message, blobs):
    with pytest.raises(InputError, match=message):
        detector.fit(blobs[0])
    assert not hasattr(detector, "n_features_in_")


def test_groups_of_another_width_are_refused_without_a_fit_too(blobs):
    with pytest.raises(InputError, match="groups has 4 numbers but there are 5 logits"):
        MOS(groups=[0, 0, 0, 0]).score_samples(blobs[2])
    with pytest.raises(InputError, match="groups is None"):
        MOS().score_samples(blobs[2])


def test_mos_is_made_and_cloned_without_its_groups():
    assert clone(make("mos")).groups is None
    groups = np.array([0, 0, 1, 1])
    assert make("mos", groups=groups).groups is groups


def test_the_nearest_class_of_mos_is_never_others_and_is_judged_within_its_group():
    rows = np.array([[9.0, 1.0, 0.0, 2.0, 1.0], [0.0, 1.0, 20.0, 19.0, 3.0]])
    detector = MOS(groups=[4, 4, 2, 2, 2]).fit(rows)
    np.testing.assert_array_equal(detector.verdicts(rows).nearest_class, [3, 1])
    explanation = detector.explain(rows)
    np.testing.assert_array_equal(explanation.responsibilities[:, [0, 2]], 0.0)
    own = np.array([softmax(rows[:, :2], axis=1)[:, 1], *softmax(rows[:, 2:], axis=1)[:, 1:].T]).T
    np.testing.assert_allclose(
        explanation.responsibilities[:, [1, 3, 4]], own / own.sum(axis=1, keepdims=True), rtol=1e-12
    )


@pytest.mark.parametrize("groups", [[0, 0, 7, 7], np.array([3, 1, 3, 1]), (0.0, 0.0, 2.0, 2.0)])
def test_saved_groups_come_back_as_whole_numbers(groups, blobs, tmp_path):
    detector = MOS(head=HEAD, groups=groups).fit(blobs[0], blobs[1])
    detector.save(tmp_path / "mos.safetensors")
    loaded = load(tmp_path / "mos.safetensors")
    assert loaded.groups.dtype == np.int64
    np.testing.assert_array_equal(loaded.groups, groups)
    np.testing.assert_array_equal(loaded.score_samples(blobs[2]), detector.score_samples(blobs[2]))
    np.testing.assert_array_equal(loaded.verdicts(blobs[2]).nearest_class, detector.verdicts(blobs[2]).nearest_class)


def naive_templates(logits):
    probabilities, predicted = softmax(logits, axis=1), logits.argmax(axis=1)
    return [probabilities[predicted == place].mean(axis=0) for place in np.unique(predicted)]


def test_kl_matching_is_the_loop_of_the_paper(blobs):
    features, _, held_out, _ = blobs
    detector = KLMatching(head=HEAD).fit(0.05 * features)
    templates = naive_templates(HEAD.logits(0.05 * features))
    assert len(templates) > 1
    expected = [
        -min(rel_entr(p, template).sum() for template in templates)
        for p in softmax(HEAD.logits(0.05 * held_out), axis=1)
    ]
    np.testing.assert_allclose(detector.score_samples(0.05 * held_out), expected, rtol=1e-9, atol=1e-13)


def test_kl_matching_does_not_look_at_labels(blobs):
    features, labels, held_out, _ = blobs
    with_labels = KLMatching().fit(features, labels).score_samples(held_out)
    np.testing.assert_array_equal(KLMatching().fit(features).score_samples(held_out), with_labels)


def test_a_class_never_predicted_has_no_template():
    detector = KLMatching().fit([[3.0, 0.0, -1.0], [2.0, 0.0, 1.0]])
    template = softmax([[3.0, 0.0, -1.0], [2.0, 0.0, 1.0]], axis=1).mean(axis=0)
    p = softmax([0.0, 0.0, 9.0])
    np.testing.assert_allclose(detector.score_samples([[0.0, 0.0, 9.0]]), [-rel_entr(p, template).sum()], rtol=1e-10)


def test_probabilities_that_vanish_give_finite_scores():
    detector = KLMatching().fit([[2000.0, 0.0], [1500.0, 0.0]])
    scores = detector.score_samples([[1700.0, 0.0], [0.0, 0.0], [0.0, 2000.0], [1e150, -1e150]])
    tiny = np.log(np.finfo(np.float64).tiny)
    np.testing.assert_allclose(scores, [0.0, tiny / 2 + np.log(2), tiny, 0.0], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("size", [1, 130])
def test_streaming_kl_matching_equals_fitting_once(blobs, size):
    features, labels, held_out, _ = blobs
    whole = KLMatching(head=HEAD).fit(features, labels)
    streamed = KLMatching(head=HEAD)
    for start in range(0, len(features), size):
        streamed.partial_fit(features[start : start + size], labels[start : start + size])
    np.testing.assert_allclose(streamed.score_samples(held_out), whole.score_samples(held_out), rtol=1e-9, atol=1e-12)


def test_merging_kl_matching_equals_fitting_the_joined_rows(blobs):
    features, labels, held_out, _ = blobs
    parts = [KLMatching(head=HEAD).fit(features[rows], labels[rows]) for rows in (slice(200), slice(200, None))]
    expected = KLMatching(head=HEAD).fit(features, labels).score_samples(held_out)
    np.testing.assert_allclose(parts[0].merge(parts[1]).score_samples(held_out), expected, rtol=1e-9, atol=1e-12)


def test_kl_matching_before_its_fit_says_so(blobs):
    with pytest.raises(NotFittedError, match=r"call fit\(features, labels\)"):
        KLMatching(head=HEAD).score_samples(blobs[2])


def test_a_stored_kl_matching_scores_the_same_and_goes_on_streaming(blobs, tmp_path):
    features, labels, held_out, _ = blobs
    detector = KLMatching(head=HEAD).fit(features[:300], labels[:300]).calibrate(held_out)
    detector.save(tmp_path / "kl.safetensors")
    loaded = load(tmp_path / "kl.safetensors")
    np.testing.assert_array_equal(loaded.score_samples(held_out), detector.score_samples(held_out))
    np.testing.assert_array_equal(loaded.p_values(held_out), detector.p_values(held_out))
    loaded.partial_fit(features[300:], labels[300:])
    expected = KLMatching(head=HEAD).fit(features, labels).score_samples(held_out)
    np.testing.assert_allclose(loaded.score_samples(held_out), expected, rtol=1e-9, atol=1e-12)


def test_identical_rows_stay_tied_whatever_the_batch():
    rows = np.tile(np.random.default_rng(3).normal(size=(1, 300)), (500, 1))
    detector = KLMatching().fit(rows).calibrate(rows)
    for size in (1, 3, 500):
        assert not detector.is_ood(rows[:size]).any()


def test_a_file_with_groups_of_another_width_is_refused(blobs, tmp_path):
    from gem_ood import storage

    MOS(groups=[0, 0, 1, 1, 1]).fit(blobs[0]).save(tmp_path / "mos.safetensors")
    tensors, header = storage.read(tmp_path / "mos.safetensors")
    tensors["option.groups"] = np.zeros(4)
    storage.write(tmp_path / "damaged.safetensors", tensors=tensors, header=header)
    with pytest.raises(FileFormatError, match="groups has 4 numbers but there are 5 logits"):
        load(tmp_path / "damaged.safetensors")


def test_templates_of_logits_with_other_names_are_not_merged(blobs):
    logits = blobs[0][:, :3]
    named = KLMatching().fit_batches([(logits, None)], classes=["zebra", "ant", "mole"])
    with pytest.raises(InputError, match="logit 0 is that of class 'zebra' in one fit and of 'ant' in the other"):
        named.merge(KLMatching().fit_batches([(logits, None)], classes=["ant", "zebra", "mole"]))
    for other in (named, KLMatching().fit(logits)):  # a fit that knows no names contradicts none
        assert named.merge(other).classes_.tolist() == ["zebra", "ant", "mole"]
