"""Samples drawn by content: the same rows stay however they are parted, and each is as likely to as any other."""

import numpy as np
import pytest
from sklearn.base import clone
from spread_parts import N_ROWS, WORDS, SpreadParts, check_equal, partitionings
from test_contract import HEAD

from gem_ood import GEM, KNN, Combine, Energy, NNGuide, load
from gem_ood.detectors import sampling
from gem_ood.detectors.sampling import ContentSampler, Sample
from gem_ood.errors import InputError


@pytest.fixture(name="rows")
def few_rows(blobs):
    features, labels, held_out, _ = blobs
    return features[:N_ROWS], labels[:N_ROWS], held_out[:60]


def sample_of(detector):
    (part,) = detector._sample.parts
    return part


BANKS = {
    "knn": KNN(k=2, bank=40, normalize=False),
    "knn, a share": KNN(k=2, bank=0.3),
    "knn, clusters": KNN(k=2, bank=60, index="clusters"),
    "knn, any seed": KNN(k=2, bank=40, random_state=8),
    "nn-guide": NNGuide(head=HEAD, bank=30, k=3),
    "nn-guide, a share": NNGuide(head=HEAD),
}


@pytest.fixture
def small_floor(monkeypatch):
    monkeypatch.setattr(sampling, "FEWEST_ROWS", 20)


@pytest.mark.usefixtures("small_floor")
@pytest.mark.parametrize("name", BANKS)
def test_a_bank_is_the_same_however_the_rows_are_parted(name, rows):
    features, labels, held_out = rows
    spreads = [SpreadParts(features, WORDS[labels], **parting) for parting in partitionings(labels).values()]
    banks = [clone(BANKS[name]).fit_batches(spread, classes=WORDS) for spread in spreads]
    first = sample_of(banks[0])
    for bank in banks[1:]:
        for one, other in zip(sample_of(bank), first, strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(bank.score_samples(held_out), banks[0].score_samples(held_out))
        assert bank._sample.n_seen == N_ROWS
    whole = clone(BANKS[name]).set_params(bank=None).fit(features, WORDS[labels], classes=WORDS)
    np.testing.assert_array_equal(banks[0].classes_, whole.classes_)
    assert {row.tobytes() for row in first.rows} <= {row.tobytes() for row in features}


def test_a_share_of_very_many_rows_is_refused_before_they_come_together(rows, monkeypatch):
    monkeypatch.setattr(sampling, "MOST_ROWS", 60)
    features, labels, _ = rows
    spread = SpreadParts(features, labels, cuts=[9, 77])
    with pytest.raises(InputError, match=r"a share of 0.9 of \d+ rows and more is over 60 rows.*; pass a whole number"):
        KNN(k=2, bank=0.9).fit_batches(spread)
    assert KNN(k=2, bank=100).fit_batches(spread).score_samples(features).shape == (N_ROWS,)


@pytest.mark.parametrize("detector", [KNN(k=3, bank=1000), NNGuide(head=HEAD, bank=1000)], ids=str)
def test_a_bank_of_all_rows_scores_as_one_fitted_to_them(detector, rows):
    features, labels, held_out = rows
    spread = SpreadParts(features, labels, cuts=[2, 90])
    check_equal(clone(detector).fit_batches(spread), detector.fit(features, labels), held_out)


def test_the_rows_with_the_smallest_hashes_stay_in_their_order(rows):
    features, labels, _ = rows
    detector = KNN(k=2, bank=40).fit_batches(SpreadParts(features, labels, cuts=[9, 77]))
    draws = ContentSampler.of(size=40, n_features=5, seed=[0, 1]).draws(features)
    expected = np.argsort(draws)[:40]
    np.testing.assert_array_equal(sample_of(detector).rows, features[expected])
    np.testing.assert_array_equal(sample_of(detector).labels, labels[expected])
    np.testing.assert_array_equal(sample_of(detector).draws, draws[expected])


def naive_draw(row, sampler):
    """The number of one row, in Python's whole numbers."""
    total = int(sampler.offset)
    for value, multiplier in zip(row, sampler.multipliers, strict=True):
        bits = int(np.float64(value + 0.0).view(np.uint64))
        total += (bits ^ (bits >> 32) ^ (bits >> 52)) * int(multiplier)
    total %= 1 << 64
    total = (total ^ (total >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
    total = (total ^ (total >> 27)) * 0x94D049BB133111EB % (1 << 64)
    return ((total ^ (total >> 31)) >> 11) / 2.0**53


def test_the_number_of_a_row_is_its_hash_whatever_its_type():
    rows = np.array([[0.0, 1.0, -2.5], [1e-3, 4.0, 7.0], [-0.0, 1.0, -2.5]], dtype=np.float32)
    sampler = ContentSampler.of(size=2, n_features=3, seed=4)
    draws = sampler.draws(rows)
    np.testing.assert_array_equal(draws, [naive_draw(row, sampler) for row in rows.astype(np.float64)])
    np.testing.assert_array_equal(sampler.draws(rows.astype(np.float64)), draws)
    np.testing.assert_array_equal(sampler.draws(np.asfortranarray(rows)), draws)
    assert draws[0] == draws[2]  # minus zero is zero
    assert (sampler.draws(rows[::-1]) == draws[::-1]).all()
    assert not np.array_equal(ContentSampler.of(size=2, n_features=3, seed=5).draws(rows), draws)


@pytest.mark.parametrize(
    "rows",
    [
        np.arange(4096)[:, np.newaxis] >> np.arange(12) & 1,
        np.arange(4096.0)[:, np.newaxis],
        1.0 + np.arange(4096.0)[:, np.newaxis] * 2.0**-52,
        np.arange(4096, dtype=np.float16)[:, np.newaxis] % [64, 61, 59],
        np.eye(600, dtype=np.float32),
    ],
    ids=["bits", "whole numbers", "last places", "halves", "unit vectors"],
)
def test_numbers_are_spread_evenly_also_for_rows_that_hardly_differ(rows):
    draws = ContentSampler.of(size=1, n_features=rows.shape[1], seed=0).draws(rows)
    assert len(np.unique(draws)) == len(np.unique(rows, axis=0))
    counts = np.histogram(draws, bins=16, range=(0.0, 1.0))[0]
    # Chi-square of 15 degrees of freedom: above 50 with probability 1e-5.
    assert ((counts - len(rows) / 16) ** 2 / (len(rows) / 16)).sum() < 50.0


def test_every_row_is_as_likely_to_stay_as_any_other():
    rows = np.vstack([np.zeros((1, 3)), np.ones((1, 3)), np.eye(3), 2.0 * np.eye(3), np.full((1, 3), 1e300)])
    stays = np.zeros(len(rows))
    for seed in range(600):
        sampler = ContentSampler.of(size=3, n_features=3, seed=seed)
        kept = sampler.settled(sampler.add(Sample(), rows)).rows
        stays += (rows[:, np.newaxis] == kept).all(axis=2).any(axis=1)
    # 600 trials of probability 1/3: five standard deviations, passed by all nine rows but with probability 5e-6.
    assert np.abs(stays - 200.0).max() < 5.0 * np.sqrt(600 * 2 / 9)


def test_of_equal_rows_some_stay_and_the_rest_of_the_sample_is_of_others(monkeypatch, rows):
    monkeypatch.setattr(sampling, "MOST_COPIES", 7)
    features, labels, _ = rows
    many = np.vstack([features, np.zeros((500, 5)), features[:3]])
    names = np.concatenate([labels, np.arange(500) % 2, labels[:3] + 5])
    found = []
    for cuts, seed in (((), 0), (range(1, len(many), 3), 1), ([300, 301], 2)):
        order = np.random.default_rng(seed).permutation(len(many))
        spread = SpreadParts(many, names, cuts=cuts, order=order, seed=seed, rows_per_batch=11)
        found.append(sample_of(KNN(k=1, bank=len(many)).fit_batches(spread)))
    for part in found:
        assert len(part.rows) == N_ROWS + 3 + 7
        np.testing.assert_array_equal(part.rows, found[0].rows)
        np.testing.assert_array_equal(part.labels, found[0].labels)
    assert set(found[0].labels[(found[0].rows == 0.0).all(axis=1)].tolist()) == {0}  # the first by name


def test_no_more_is_held_than_a_few_times_the_sample(monkeypatch):
    monkeypatch.setattr(sampling, "FEWEST_ROWS", 10)
    monkeypatch.setattr(sampling, "MOST_COPIES", 10)
    generator = np.random.default_rng(2)
    features = np.vstack([generator.normal(size=(2000, 3)), np.ones((2000, 3))])[generator.permutation(4000)]
    for size, wanted in ((25, 25), (0.01, 40)):
        sampler, sample = ContentSampler.of(size=size, n_features=3, seed=0), Sample()
        for start in range(0, 4000, 100):
            sample = sampler.add(sample, features[start : start + 100])
            assert sample.n_kept <= 2 * wanted + 10 + 100
        assert sampler.settled(sample).n_kept <= 2 * wanted
        spread = SpreadParts(features, cuts=range(400, 4000, 400))
        KNN(k=1, bank=size).fit_batches(spread)
        assert spread.largest_summary < 2 * wanted * 4 * 8 + 1500


def test_without_a_seed_all_parts_draw_alike(rows):
    features, labels, _ = rows
    twice = SpreadParts(np.vstack([features, features]), np.tile(labels, 2), cuts=[N_ROWS])
    fits = [KNN(k=2, bank=40, random_state=None).fit_batches(twice) for _ in range(2)]
    for fit in fits:  # had each part a seed of its own, the two copies of a row would have different numbers
        part = sample_of(fit)
        np.testing.assert_array_equal(part.rows[::2], part.rows[1::2])
        assert len(np.unique(part.draws)) == 20
    assert not np.array_equal(sample_of(fits[0]).rows, sample_of(fits[1]).rows)


@pytest.mark.parametrize("detector", [KNN(k=2, bank=100, normalize=False), NNGuide(head=HEAD)], ids=str)
def test_such_a_bank_is_saved_and_learns_on(detector, rows, tmp_path):
    features, labels, held_out = rows
    detector = clone(detector).fit_batches(SpreadParts(features[:120], labels[:120], cuts=[50]))
    detector.save(tmp_path / "bank.safetensors")
    loaded = load(tmp_path / "bank.safetensors")
    np.testing.assert_array_equal(loaded.score_samples(held_out), detector.score_samples(held_out))
    streamed = loaded.partial_fit(features[120:], labels[120:])
    assert streamed._sample.n_seen == N_ROWS
    assert len(streamed._sample.settled(streamed.bank).rows) == (100 if isinstance(detector, KNN) else N_ROWS)
    merged = detector.merge(clone(detector).fit(features[120:], labels[120:]))
    assert merged._sample.n_seen == N_ROWS
    assert np.isfinite(merged.score_samples(held_out)).all()


def test_the_reference_of_a_combination_is_drawn_by_content(rows, tmp_path):
    features, labels, held_out = rows
    fits = []
    for parting in partitionings(labels).values():
        spread = SpreadParts(features, labels, **parting)
        fits.append(Combine([GEM(), Energy(head=HEAD), KNN(k=3, bank=70)]).fit_batches(spread))
    for fit in fits:
        np.testing.assert_array_equal(fit._kept_sample.rows, fits[0]._kept_sample.rows)
        np.testing.assert_allclose(fit.score_samples(held_out), fits[0].score_samples(held_out), rtol=1e-9)
    # All 150 rows are in the sample, so the ranking is that of the fit to all of them.
    alone, parts = Combine([GEM(), Energy(head=HEAD)]), SpreadParts(features, labels, cuts=[33])
    expected = clone(alone).fit(features, labels).score_samples(held_out)
    np.testing.assert_allclose(clone(alone).fit_batches(parts).score_samples(held_out), expected, rtol=1e-8)
    fits[0].save(tmp_path / "combined.safetensors")
    loaded = load(tmp_path / "combined.safetensors").partial_fit(features, labels)
    assert loaded._kept_sample.n_seen == 2 * N_ROWS


def test_rows_of_another_width_have_no_number():
    with pytest.raises(InputError, match="some rows have 3 features and others 2; pass rows of one width"):
        ContentSampler.of(size=5, n_features=3, seed=0).draws(np.ones((4, 2)))
