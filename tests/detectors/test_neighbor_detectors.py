"""KNN and NNGuide against textbook loops, and the bank of rows that they keep."""

import numpy as np
import pytest
from scipy.special import logsumexp

from gem_ood import Head, load
from gem_ood.detectors.neighbors import KNN, NNGuide
from gem_ood.errors import FileFormatError, InputError, NotFittedError

HEAD = Head(np.random.default_rng(0).normal(size=(3, 5)), [0.1, -0.2, 0.3])


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def naive_knn(bank, queries, k):
    return -np.array([np.sort(np.linalg.norm(bank - query, axis=1))[k - 1] for query in queries])


def naive_guidance(bank, queries, k):
    energies = logsumexp(bank @ HEAD.weight.T + HEAD.bias, axis=1)
    guidance = [np.sort(energies * (unit(bank) @ query))[-k:].mean() for query in unit(queries)]
    return np.array(guidance) * logsumexp(queries @ HEAD.weight.T + HEAD.bias, axis=1)


@pytest.mark.parametrize("k", [1, 50, 600])
def test_knn_is_the_kth_distance_of_rows_of_unit_length(blobs, k):
    features, _, held_out, far = blobs
    rows = np.vstack([held_out, far])
    expected = naive_knn(unit(features), unit(rows), k)
    np.testing.assert_allclose(KNN(k=k).fit(features).score_samples(rows), expected, rtol=1e-12, atol=1e-15)
    raw = KNN(k=k, normalize=False).fit(features).score_samples(rows)
    np.testing.assert_allclose(raw, naive_knn(features, rows, k), rtol=1e-12)


@pytest.mark.parametrize("k", [1, 10, 600])
def test_nnguide_is_the_guided_energy(blobs, k):
    features, _, held_out, far = blobs
    rows = np.vstack([held_out, far])
    detector = NNGuide(head=HEAD, k=k).fit(features)
    np.testing.assert_allclose(detector.score_samples(rows), naive_guidance(features, rows, k), rtol=1e-11)


def test_the_defaults_are_the_papers():
    assert (KNN().k, KNN().normalize, KNN().bank, KNN().index) == (50, True, None, "exact")
    assert (NNGuide().k, NNGuide().bank) == (10, 0.01)


def test_a_training_row_is_at_distance_zero_in_any_precision(blobs):
    for dtype in (np.float64, np.float32, np.float16):
        features = blobs[0].astype(dtype)
        scores = KNN(k=1).fit(features).score_samples(features)
        assert not scores.any()
        assert not np.signbit(scores).any()


def test_float32_rows_are_kept_as_such_and_score_as_their_float64_values(blobs):
    narrow = blobs[0].astype(np.float32)
    one, other = KNN(k=9).fit(narrow), KNN(k=9).fit(narrow.astype(np.float64))
    assert one._state()[0]["bank.rows"].dtype == np.float32
    assert other._state()[0]["bank.rows"].dtype == np.float64
    np.testing.assert_array_equal(one.score_samples(blobs[2]), other.score_samples(blobs[2]))


def test_the_callers_rows_and_labels_may_change_after_the_fit(blobs):
    features, labels = blobs[0].copy(), blobs[1].copy()
    detector = KNN(k=3).fit(features[:500], labels[:500])
    features[:500], labels[:500] = 0.0, 2
    detector.partial_fit(features[500:], labels[500:])
    expected = KNN(k=3).fit(blobs[0], blobs[1]).verdicts(blobs[2])
    np.testing.assert_array_equal(detector.verdicts(blobs[2]).score, expected.score)
    np.testing.assert_array_equal(detector.verdicts(blobs[2]).nearest_class, expected.nearest_class)


def test_the_nearest_class_is_that_of_the_nearest_row_and_shares_count_the_k_nearest(blobs):
    features, labels, held_out, _ = blobs
    names = np.array(["a", "b", "c"])[labels]
    detector = KNN(k=20, normalize=False).fit(features, names)
    distances = np.array([np.linalg.norm(features - row, axis=1) for row in held_out])
    explanation = detector.explain(held_out)
    np.testing.assert_array_equal(explanation.nearest_class, names[distances.argmin(axis=1)])
    nearest = names[np.argsort(distances, axis=1)[:, :20]]
    for place, name in enumerate("abc"):
        np.testing.assert_allclose(explanation.responsibilities[:, place], np.mean(nearest == name, axis=1))
        expected = distances[:, names == name].min(axis=1)
        np.testing.assert_allclose(explanation.distances[:, place], expected, rtol=1e-12)


def test_without_labels_there_is_one_class(blobs):
    explanation = KNN().fit(blobs[0]).explain(blobs[2])
    np.testing.assert_array_equal(explanation.classes, [0])
    np.testing.assert_array_equal(explanation.nearest_class, 0)
    np.testing.assert_array_equal(explanation.responsibilities, 1.0)
    np.testing.assert_allclose(
        explanation.distances[:, 0], -naive_knn(unit(blobs[0]), unit(blobs[2]), 1), rtol=1e-12, atol=1e-15
    )


def test_a_declared_class_without_rows_is_infinitely_far(blobs):
    detector = KNN(k=2).fit_batches([(blobs[0], blobs[1])], classes=[0, 1, 2, 7])
    explanation = detector.explain(blobs[2])
    assert explanation.classes.tolist() == [0, 1, 2, 7]
    assert np.isinf(explanation.distances[:, 3]).all()
    assert not explanation.responsibilities[:, 3].any()


@pytest.fixture(params=[None, 200, 0.4], ids=str)
def bank(request, monkeypatch):
    monkeypatch.setattr("gem_ood.detectors.sampling.FEWEST_ROWS", 20)
    return request.param


@pytest.mark.parametrize("kind", [KNN, NNGuide])
@pytest.mark.parametrize("size", [1, 37, 599])
def test_batches_keep_the_rows_that_one_fit_keeps(blobs, bank, kind, size):
    features, labels, held_out, _ = blobs
    options = {"k": 10, "bank": bank} | ({"head": HEAD} if kind is NNGuide else {})
    once = kind(**options).fit(features, labels)
    batches = [(features[start : start + size], labels[start : start + size]) for start in range(0, 600, size)]
    together, streamed = kind(**options).fit_batches(batches), kind(**options)
    for X, y in batches:
        streamed.partial_fit(X, y)
    for other in (together, streamed):
        np.testing.assert_array_equal(other._state()[0]["bank.rows"], once._state()[0]["bank.rows"])
        np.testing.assert_array_equal(other.verdicts(held_out).nearest_class, once.verdicts(held_out).nearest_class)
        np.testing.assert_allclose(other.score_samples(held_out), once.score_samples(held_out), rtol=1e-12, atol=1e-15)


def test_a_bank_keeps_as_many_rows_as_it_says(blobs, bank):
    rows = KNN(k=5, bank=bank).fit(blobs[0])._state()[0]["bank.rows"]
    assert {None: len(rows) == 600, 200: len(rows) == 200, 0.4: abs(len(rows) - 240) < 5 * np.sqrt(600 * 0.24)}[bank]
    assert {tuple(row) for row in rows} <= {tuple(row) for row in blobs[0]}
    np.testing.assert_array_equal(rows, KNN(k=5, bank=bank).fit(blobs[0])._state()[0]["bank.rows"])


def test_every_row_is_as_likely_to_be_kept():
    features = np.arange(200.0)[:, np.newaxis]
    counts = np.zeros(200)
    for seed in range(300):
        kept = KNN(k=1, bank=50, random_state=seed).fit(features)._state()[0]["bank.rows"]
        counts[kept[:, 0].astype(int)] += 1
    # 300 trials of probability 1/4: five standard deviations, passed by all 200 rows but with probability 1e-4.
    assert np.abs(counts - 75.0).max() < 5.0 * np.sqrt(300 * 0.25 * 0.75)


def test_a_small_share_keeps_a_thousand_rows_at_least():
    features = np.random.default_rng(0).normal(size=(3000, 5))
    assert len(NNGuide(head=HEAD).fit(features)._state()[0]["bank.rows"]) == 1000
    assert len(NNGuide(head=HEAD).fit(features[:500])._state()[0]["bank.rows"]) == 500


@pytest.mark.parametrize("make", [lambda: KNN(k=7), lambda: NNGuide(head=HEAD, k=7, bank=None)])
def test_merging_equals_fitting_the_joined_rows(blobs, make):
    features, labels, held_out, _ = blobs
    first, second = make().fit(features[:250], labels[:250]), make().fit(features[250:], labels[250:])
    before = first.score_samples(held_out)
    joined = first.merge(second)
    whole = make().fit(features, labels)
    np.testing.assert_array_equal(joined.score_samples(held_out), whole.score_samples(held_out))
    np.testing.assert_array_equal(joined.classes_, whole.classes_)
    np.testing.assert_array_equal(first.score_samples(held_out), before)
    joined.partial_fit(features[:100], labels[:100])
    again = make().fit(np.vstack([features, features[:100]]), np.append(labels, labels[:100]))
    np.testing.assert_array_equal(joined.score_samples(held_out), again.score_samples(held_out))


def test_merged_samples_stay_of_the_size_asked_for(blobs):
    joined = KNN(k=5, bank=100).fit(blobs[0][:300]).merge(KNN(k=5, bank=100).fit(blobs[0][300:]))
    assert joined._state()[0]["bank.rows"].shape == (100, 5)


def test_what_does_not_belong_together_is_not_merged(blobs):
    features, labels = blobs[:2]
    fitted = KNN(k=2).fit(features, labels)
    with pytest.raises(InputError, match="cannot merge a NNGuide into a KNN"):
        fitted.merge(NNGuide(head=HEAD).fit(features))
    with pytest.raises(InputError, match="normalize=True and the other False"):
        fitted.merge(KNN(k=2, normalize=False).fit(features, labels))
    with pytest.raises(InputError, match="one fit has labels and the other has none"):
        fitted.merge(KNN(k=2).fit(features))
    with pytest.raises(InputError, match="some rows have 5 features and others 4; merge fits"):
        fitted.merge(KNN(k=2).fit(features[:, :4], labels))
    with pytest.raises(NotFittedError):
        fitted.merge(KNN(k=2))


def test_a_batch_that_fails_leaves_the_bank_as_it_was(blobs):
    features, labels, held_out, _ = blobs
    detector = KNN(k=2).fit(features, labels)
    expected = detector.score_samples(held_out)
    wrong = features.copy()
    wrong[5, 1] = np.nan
    for X, y, message in (
        (wrong, labels, "row 5, column 1 is NaN"),
        (features, None, "labels for all rows or for none"),
        (features, labels.astype(str), "labels of one kind"),
        (features[:, :4], labels, "X has 4 features"),
    ):
        with pytest.raises(InputError, match=message):
            detector.partial_fit(X, y)
        np.testing.assert_array_equal(detector.score_samples(held_out), expected)


INDEXED = {"exact": None, "two lists": 2}


@pytest.mark.parametrize("probes", INDEXED.values(), ids=INDEXED)
def test_lists_are_stored_and_score_the_same_to_the_bit(blobs, tmp_path, probes):
    features, labels, held_out, far = blobs
    detector = KNN(k=8, index="clusters", probes=probes).fit(features, labels).calibrate(held_out)
    detector.save(tmp_path / "knn.safetensors")
    loaded = load(tmp_path / "knn.safetensors")
    rows = np.vstack([held_out, far])
    np.testing.assert_array_equal(loaded.score_samples(rows), detector.score_samples(rows))
    np.testing.assert_array_equal(loaded._clusters.centres, detector._clusters.centres)
    one_by_one = np.concatenate([detector.score_samples(row[np.newaxis]) for row in rows[:100]])
    np.testing.assert_allclose(one_by_one, detector.score_samples(rows)[:100], rtol=1e-9)
    exact = KNN(k=8).fit(features, labels)
    if probes is None:
        np.testing.assert_allclose(detector.score_samples(rows), exact.score_samples(rows), rtol=1e-12)
        np.testing.assert_array_equal(detector.verdicts(rows).nearest_class, exact.verdicts(rows).nearest_class)
    else:
        assert (detector.score_samples(rows) <= exact.score_samples(rows) + 1e-12).all()
    detector.partial_fit(features[:60] + 0.5, labels[:60])
    more = KNN(k=8).fit(np.vstack([features, features[:60] + 0.5]))
    if probes is None:
        np.testing.assert_allclose(detector.score_samples(rows), more.score_samples(rows), rtol=1e-12)


@pytest.mark.parametrize(
    "make",
    [lambda: KNN(k=4), lambda: KNN(k=4, bank=100), lambda: NNGuide(head=HEAD, bank=0.5), lambda: NNGuide(head=HEAD)],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("is_labelled", [True, False])
def test_a_loaded_bank_goes_on_where_the_saved_one_stopped(blobs, tmp_path, make, dtype, is_labelled):
    features, labels, held_out, _ = blobs
    features, labels = features.astype(dtype), labels if is_labelled else None
    first, rest = (slice(0, 400), slice(400, 600))
    detector = make().partial_fit(features[first], None if labels is None else labels[first])
    detector.save(tmp_path / "part.safetensors")
    loaded = load(tmp_path / "part.safetensors")
    for part in (detector, loaded):
        part.partial_fit(features[rest], None if labels is None else labels[rest])
    expected = make().fit(features, labels).score_samples(held_out)
    np.testing.assert_array_equal(detector.score_samples(held_out), expected)
    np.testing.assert_array_equal(loaded.score_samples(held_out), expected)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("bank.rows", np.zeros((600, 5, 1), dtype=np.float32), "'bank.rows' has shape"),
        (
            "bank.rows",
            np.zeros((600, 5), dtype=np.float16),
            "float16 where .* of 32-bit or 64-bit numbers was expected",
        ),
        ("bank.rows", np.full((600, 5), np.nan, dtype=np.float32), "NaN or infinity"),
        ("bank.places", np.full(600, 9), "classes that are not there"),
        ("clusters.bounds", np.zeros(26, dtype=np.int64), "does not cut the bank"),
    ],
)
def test_a_damaged_bank_is_refused(blobs, name, value, message):
    detector = KNN(k=2, index="clusters").fit(blobs[0].astype(np.float32), blobs[1])
    tensors, values = detector._state()
    assert tensors[name].shape[0] == value.shape[0]
    with pytest.raises(FileFormatError, match=message):
        KNN(k=2, index="clusters")._restore(tensors | {name: value}, values)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k is 0; pass a whole number"),
        ({"k": 2.0}, "k is 2.0; pass a whole number"),
        ({"k": True}, "k is True"),
        ({"bank": 0.0}, "bank is 0.0; pass None to keep all rows"),
        ({"bank": 1.5}, "bank is 1.5"),
        ({"bank": "all"}, "bank is 'all'"),
        ({"bank": 10}, "bank=10 keeps fewer rows than k=50 neighbours; pass a larger bank or a smaller k"),
        ({"bank": 0.5, "random_state": -1}, "random_state is -1; pass a whole number of at least 0"),
        ({"index": "clusters", "random_state": 0.5}, "random_state is 0.5; pass a whole number of at least 0"),
        ({"index": "tree"}, "index is 'tree'; pass 'exact' or 'clusters'"),
        ({"probes": 4}, "probes=4 needs index='clusters'"),
        ({"probes": 0, "index": "clusters"}, "probes is 0; pass a whole number of at least 1"),
    ],
)
def test_bad_options_are_refused_by_name(blobs, options, message):
    with pytest.raises(InputError, match=message):
        KNN(**options).fit(blobs[0])


def test_too_few_rows_are_refused_with_the_remedy(blobs):
    with pytest.raises(InputError, match=r"k=50 neighbours .* n_samples=49 rows; pass at least 50 rows or a smaller k"):
        KNN().fit(blobs[0][:49])
    with pytest.raises(InputError, match=r"n_samples=9 rows in the bank \(bank=0.01\)"):
        NNGuide(head=HEAD).fit(blobs[0][:9])
    streamed = KNN().partial_fit(blobs[0][:30])
    with pytest.raises(InputError, match="n_samples=30 rows"):
        streamed.score_samples(blobs[2])
    assert streamed.partial_fit(blobs[0][30:60]).score_samples(blobs[2]).shape == (400,)


@pytest.mark.parametrize("make", [lambda: KNN(k=10), lambda: NNGuide(head=HEAD)])
def test_a_bank_with_too_few_rows_is_not_saved(blobs, tmp_path, make):
    with pytest.raises(InputError, match="n_samples=9 rows"):
        make().partial_fit(blobs[0][:9]).save(tmp_path / "never.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_nnguide_needs_a_head(blobs):
    with pytest.raises(InputError, match="NNGuide scores features together with their logits but has no head"):
        NNGuide().fit(blobs[0])


def test_degenerate_rows_have_finite_scores():
    features = np.random.default_rng(0).normal(size=(40, 5))
    features[:3] = 0.0
    features[3:6] = 1e150
    rows = np.vstack([features[:7], -np.abs(features[7:9]), np.full((1, 5), 1e-300), np.full((1, 5), -1e150)])
    for kind in (KNN(k=3), KNN(k=3, normalize=False), NNGuide(head=HEAD, k=3)):
        scores = kind.fit(features).score_samples(rows)
        assert np.isfinite(scores).all()
        np.testing.assert_allclose([kind.score_samples(row[np.newaxis])[0] for row in rows], scores, rtol=1e-9)
    assert KNN(k=3).fit(features).score_samples(np.zeros((1, 5)))[0] == 0.0
    assert KNN(k=4).fit(features).score_samples(np.zeros((1, 5)))[0] == pytest.approx(-1.0, rel=1e-15)
    assert NNGuide(head=HEAD, k=3).fit(features).score_samples(np.zeros((1, 5)))[0] == 0.0


def test_a_guided_energy_beyond_float64_is_the_largest_number():
    detector = NNGuide(head=HEAD, k=1).fit(1e160 * np.ones((2, 5)))
    assert detector.score_samples(1e160 * np.ones((1, 5)))[0] == np.finfo(np.float64).max


def test_two_rows_and_constant_columns_are_enough():
    detector = KNN(k=2, normalize=False).fit(np.ones((2, 3)))
    np.testing.assert_allclose(detector.score_samples([[1.0, 1.0, 1.0], [1.0, 1.0, 4.0]]), [0.0, -3.0])


def test_real_features_separate_the_unfamiliar_from_the_familiar(cifar10):
    detector = KNN().fit(cifar10["train"]["features"][::10], cifar10["train"]["labels"][::10])
    familiar = detector.score_samples(cifar10["test"]["features"][:1000])
    unfamiliar = detector.score_samples(cifar10["ood_svhn"]["features"][:1000])
    assert np.mean(familiar[:, np.newaxis] > unfamiliar) > 0.85


def test_banks_of_different_sizes_are_not_merged(blobs):
    some = KNN(k=2, bank=0.5).fit(blobs[0])
    for other, message in ((None, "bank=0.5 and the other None"), (0.2, "bank=0.5 and the other 0.2")):
        with pytest.raises(InputError, match=message):
            some.merge(KNN(k=2, bank=other).fit(blobs[0]))


def test_options_of_a_bank_changed_after_the_fit_count_at_once(blobs):
    features, labels, held_out, _ = blobs
    detector = KNN(k=3).fit(features, labels)
    detector.score_samples(held_out)
    for options in ({"normalize": False}, {"index": "clusters"}, {"probes": 1}, {"probes": None}, {"normalize": True}):
        expected = KNN(**(detector.get_params() | options)).fit(features, labels).score_samples(held_out)
        np.testing.assert_allclose(detector.set_params(**options).score_samples(held_out), expected, rtol=1e-12)
    with pytest.raises(InputError, match="all rows were kept, so no sample of size 50 can be drawn; fit again"):
        detector.set_params(bank=50).score_samples(held_out)
