"""ReAct, ASH, SCALE and DICE: what they learn, stream, merge and save, and their scores against SciPy."""

import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.base import clone

from gem_ood import Energy, Head, load
from gem_ood.detectors import available, make
from gem_ood.detectors.shaping import ASH, DICE, SCALE, ReAct
from gem_ood.errors import FileFormatError, InputError, NotFittedError
from gem_ood.metrics import evaluate
from gem_ood.quantiles import RELATIVE_ERROR

GENERATOR = np.random.default_rng(0)
HEAD = Head(GENERATOR.normal(size=(3, 5)), [0.1, -0.2, 0.3])
ALL = {
    "react": ReAct(head=HEAD),
    "ash-s": ASH(head=HEAD, share=0.5),
    "ash-b": ASH(head=HEAD, variant="b", share=0.5),
    "ash-p": ASH(head=HEAD, variant="p", share=0.5),
    "scale": SCALE(head=HEAD),
    "dice": DICE(head=HEAD, share=0.5),
}


@pytest.fixture(params=ALL, name="detector")
def fresh_detector(request):
    return clone(ALL[request.param])


def energy_by_hand(rows, weight=HEAD.weight):
    return logsumexp(rows @ weight.T + HEAD.bias, axis=1)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.99])
def test_react_clips_at_the_quantile_of_all_training_activations(blobs, share):
    features, labels, held_out, _ = blobs
    detector = ReAct(head=HEAD, share=share).fit(features, labels)
    assert detector.clip_ == np.quantile(features, share)
    expected = energy_by_hand(np.minimum(held_out, np.quantile(features, share)))
    np.testing.assert_allclose(detector.score_samples(held_out), expected, rtol=1e-12)


def test_react_finds_the_same_clip_in_batches(blobs):
    features = blobs[0].astype(np.float32)
    batches = [(features[:7], None), (features[7:300], None), (features[300:], None)]
    assert ReAct(head=HEAD).fit_batches(batches).clip_ == np.quantile(features.astype(np.float64), 0.9)


def test_react_streams_and_merges_within_its_stated_error(blobs, tmp_path):
    features, labels, held_out, _ = blobs
    whole = ReAct(head=HEAD).fit(features, labels)
    streamed = ReAct(head=HEAD)
    for start in range(0, 600, 100):
        streamed.partial_fit(features[start : start + 100], labels[start : start + 100])
    merged = ReAct(head=HEAD).fit(features[:200]).merge(ReAct(head=HEAD).fit(features[200:]))
    assert streamed.clip_ == merged.clip_
    assert streamed.clip_ == pytest.approx(whole.clip_, rel=RELATIVE_ERROR)
    np.testing.assert_array_equal(streamed.score_samples(held_out), merged.score_samples(held_out))
    streamed.save(tmp_path / "streamed.safetensors")
    resumed = load(tmp_path / "streamed.safetensors").partial_fit(held_out)
    assert resumed.clip_ == pytest.approx(np.quantile(np.vstack([features, held_out]), 0.9), rel=RELATIVE_ERROR)


def test_react_with_exact_clip_loads_the_same_and_goes_on_streaming(blobs, tmp_path):
    features, labels, held_out, _ = blobs
    detector = ReAct(head=HEAD).fit(features, labels)
    detector.save(tmp_path / "react.safetensors")
    loaded = load(tmp_path / "react.safetensors")
    assert loaded.clip_ == detector.clip_
    assert loaded.partial_fit(held_out).clip_ == detector.partial_fit(held_out).clip_
    assert loaded.merge(detector).clip_ == detector.merge(loaded).clip_


def test_a_saved_react_is_small(tmp_path):
    activations = np.maximum(GENERATOR.normal(size=(20_000, 100)), 0.0)
    detector = ReAct(head=Head(np.ones((2, 100)))).fit(activations)
    detector.save(tmp_path / "react.safetensors")
    assert (tmp_path / "react.safetensors").stat().st_size < 500_000


def test_a_react_file_with_damaged_counts_or_clip_is_refused(blobs, tmp_path):
    from gem_ood import storage

    ReAct(head=HEAD).fit(blobs[0]).save(tmp_path / "react.safetensors")
    tensors, header = storage.read(tmp_path / "react.safetensors")
    storage.write(tmp_path / "a", tensors=tensors | {"activations": tensors["activations"][::-1]}, header=header)
    with pytest.raises(FileFormatError, match="counts of activations are damaged"):
        load(tmp_path / "a")
    broken = header | {"state": header["state"] | {"clip": float("inf")}}
    storage.write(tmp_path / "b", tensors=tensors, header=broken)
    with pytest.raises(FileFormatError, match="clip is inf"):
        load(tmp_path / "b")


@pytest.mark.parametrize("variant", ["p", "b", "s"])
def test_ash_is_the_energy_of_the_shaped_row(blobs, variant):
    rows = np.abs(blobs[2])
    expected = []
    for row in rows:
        kept = np.argsort(-row)[:3]  # 5 − round(5 · 0.4)
        shaped = np.zeros(5)
        factor = np.exp(row.sum() / row[kept].sum()) if variant == "s" else 1.0
        shaped[kept] = row.sum() / 3 if variant == "b" else factor * row[kept]
        expected.append(shaped)
    found = ASH(head=HEAD, variant=variant, share=0.4).fit(blobs[0]).score_samples(rows)
    np.testing.assert_allclose(found, energy_by_hand(np.array(expected)), rtol=1e-10)


def test_scale_is_the_energy_of_the_scaled_row(blobs):
    rows = np.abs(blobs[2])
    factors = np.exp(rows.sum(axis=1) / np.sort(rows, axis=1)[:, 3:].sum(axis=1))
    found = SCALE(head=HEAD, share=0.6).fit(blobs[0]).score_samples(rows)
    np.testing.assert_allclose(found, energy_by_hand(factors[:, np.newaxis] * rows), rtol=1e-10)


def test_dice_keeps_the_weights_of_the_largest_contributions(blobs):
    features, labels, held_out, _ = blobs
    detector = DICE(head=HEAD, share=0.6).fit(features, labels)
    contributions = HEAD.weight * features.mean(axis=0)
    mask = contributions > np.percentile(contributions, 60)
    np.testing.assert_allclose(detector.mean_, features.mean(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(detector.mask_, mask)
    assert mask.sum() == 6
    np.testing.assert_allclose(
        detector.score_samples(held_out), energy_by_hand(held_out, HEAD.weight * mask), rtol=1e-10
    )


def test_dice_streams_and_merges_to_the_same_mask(blobs):
    features, labels, held_out, _ = blobs
    expected = DICE(head=HEAD).fit(features, labels)
    streamed = DICE(head=HEAD)
    for start in range(0, 600, 100):
        streamed.partial_fit(features[start : start + 100], labels[start : start + 100])
    merged = DICE(head=HEAD).fit(features[:200]).merge(DICE(head=HEAD).fit(features[200:]))
    for other in (streamed, merged):
        np.testing.assert_array_equal(other.mask_, expected.mask_)
        np.testing.assert_allclose(other.score_samples(held_out), expected.score_samples(held_out), rtol=1e-9)


def test_without_any_shaping_the_score_is_the_energy(blobs):
    features, labels, held_out, _ = blobs
    expected = Energy(head=HEAD).fit(features, labels).score_samples(held_out)
    found = ASH(head=HEAD, variant="p", share=0.0).fit(features, labels).score_samples(held_out)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    below = features[(features <= ReAct(head=HEAD).fit(features).clip_).all(axis=1)]
    assert len(below) > 10
    np.testing.assert_allclose(
        ReAct(head=HEAD).fit(features).score_samples(below), Energy(head=HEAD).fit(features).score_samples(below)
    )


def test_verdicts_name_the_class_of_the_unshaped_logits(detector, blobs):
    features, labels, held_out, _ = blobs
    verdicts = detector.fit(features, labels).verdicts(held_out)
    np.testing.assert_array_equal(verdicts.nearest_class, HEAD.logits(held_out).argmax(axis=1))


def test_extreme_rows_have_finite_scores(detector, blobs):
    detector.fit(blobs[0])
    rows = np.vstack([np.zeros(5), -np.ones(5), 1e150 * np.ones(5), -1e150 * np.ones(5), 1e-300 * np.eye(5)[0]])
    scores = detector.score_samples(rows)
    assert np.isfinite(scores).all()
    assert scores[0] == pytest.approx(logsumexp(HEAD.bias))
    if getattr(detector, "variant", "s") == "s" and isinstance(detector, ASH | SCALE):
        assert scores[1] == scores[3] == scores[0]  # nothing of these rows is active
    np.testing.assert_allclose(detector.score_samples(rows[3:4]), scores[3:4], rtol=1e-9)


@pytest.mark.parametrize(
    "rows", [np.zeros((4, 5)), -np.ones((4, 5)), 1e150 * np.ones((2, 5)), np.eye(5)], ids=["0", "-1", "1e150", "eye"]
)
def test_degenerate_training_rows_give_finite_scores(detector, blobs, rows):
    scores = detector.fit(rows).score_samples(blobs[2])
    assert np.isfinite(scores).all()


def test_dice_refuses_activations_whose_sum_overflows():
    with pytest.raises(InputError, match="the contributions"):
        DICE(head=Head(np.full((3, 5), 1e-3))).fit(np.full((4, 5), 1e308))


def test_a_head_is_needed(detector, blobs):
    headless = clone(detector).set_params(head=None)
    with pytest.raises(InputError, match="has no head; pass head=Head"):
        headless.fit(blobs[0])
    with pytest.raises(InputError, match="has no head; pass head=Head"):
        headless.score_samples(blobs[0]) if isinstance(detector, ASH | SCALE) else headless.partial_fit(blobs[0])


@pytest.mark.parametrize("share", [1.0, -0.1, 90, "0.9"])
def test_bad_shares_are_refused_before_any_row_is_read(detector, share):
    with pytest.raises(InputError, match=r"share is .*; pass a number from 0 to below 1"):
        detector.set_params(share=share).fit("no rows")


def test_bad_variants_are_refused(blobs):
    with pytest.raises(InputError, match="variant is 'ash-s'; pass 'p'"):
        ASH(head=HEAD, variant="ash-s").fit(blobs[0])


def test_the_learned_values_need_a_fit():
    with pytest.raises(NotFittedError, match=r"call fit\(features, labels\) first"):
        _ = ReAct(head=HEAD).clip_
    with pytest.raises(NotFittedError, match=r"call fit\(features, labels\) first"):
        _ = DICE(head=HEAD).mask_


def test_a_failed_fit_changes_nothing(blobs):
    detector = ReAct(head=HEAD).fit(blobs[0])
    before = detector.clip_
    with pytest.raises(InputError, match="is NaN"):
        detector.fit(np.vstack([blobs[2], np.full((1, 5), np.nan)]))
    assert detector.clip_ == before


def test_the_registry_knows_them_with_the_papers_defaults():
    assert {"react", "ash", "scale", "dice"} <= set(available())
    assert (make("react").share, make("scale").share, make("dice").share) == (0.9, 0.85, 0.9)
    assert make("ash").variant == "s"


@pytest.mark.parametrize(("variant", "share"), [("s", 0.9), ("b", 0.65), ("p", 0.6)])
def test_each_variant_of_ash_has_the_papers_share(variant, share):
    rows, head = (
        np.random.default_rng(0).exponential(size=(20, 40)),
        Head(np.random.default_rng(1).normal(size=(3, 40))),
    )
    given = ASH(head=head, variant=variant, share=share).score_samples(rows)
    np.testing.assert_array_equal(ASH(head=head, variant=variant).score_samples(rows), given)
    assert (ASH(head=head, variant=variant, share=0.3).score_samples(rows) != given).all()


def test_real_activations_are_told_from_svhn(cifar10):
    """The figures only guard against a wrong sign or formula: each is far from chance and from a perfect score."""
    head = Head(cifar10["head"]["weight"], cifar10["head"]["bias"])
    train, test, svhn = (cifar10[name]["features"] for name in ("train", "test", "ood_svhn"))
    for detector in (ReAct(head=head), SCALE(head=head), DICE(head=head, share=0.7)):
        detector.fit(train)
        found = evaluate(detector.score_samples(test), detector.score_samples(svhn))
        assert 0.75 < found.auroc < 0.99


@pytest.mark.parametrize("kind", [ReAct, DICE])
def test_a_share_changed_after_the_fit_counts_at_once(kind, blobs):
    features, labels, held_out, _ = blobs
    changed = kind(head=HEAD).fit(features, labels).set_params(share=0.5)
    streamed = kind(head=HEAD, share=0.5).partial_fit(features, labels)
    np.testing.assert_array_equal(changed.score_samples(held_out), streamed.score_samples(held_out))
    with pytest.raises(InputError, match="share"):
        changed.set_params(share=2.0).score_samples(held_out)


def test_dice_refuses_sums_that_overflow_between_batches_without_a_warning():
    rows = np.array([[1e308, 1.0], [1.0, 1.0]])
    with pytest.raises(InputError, match=r"overflow|finite|large"):
        DICE(head=Head(np.eye(2))).fit_batches([(rows, None), (rows, None)])
