"""The sample of rows that KNN, NNGuide and Combine keep: one for all batchings, of the size asked for."""

import numpy as np
import pytest

from gem_ood.detectors import sampling
from gem_ood.detectors.sampling import Sample, check_seed, check_size
from gem_ood.errors import InputError

ROWS = np.arange(300.0)[:, np.newaxis] * [1.0, -1.0]
SIZES = {"all": None, "number": 40, "share": 0.3, "everything as a share": 1.0}


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(sampling, "FEWEST_ROWS", 20)


def sampled(rows, size, *, step=None, seed=0):
    sample = Sample()
    for start in range(0, len(rows), step or len(rows)):
        batch = rows[start : start + (step or len(rows))]
        sample = sample.add(batch, batch[:, 0].astype(int), size=size, seed=seed)
    return sample.settled(size)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("step", [1, 7, 299])
def test_the_rows_are_those_with_the_smallest_numbers_whatever_the_batches(size, step):
    draws = np.random.default_rng(0).random(300)
    n_kept = {None: 300, 40: 40}.get(size, np.sum(draws < (size or 0.0)))
    expected = ROWS[np.sort(np.argsort(draws)[:n_kept])]
    sample = sampled(ROWS, size, step=step)
    np.testing.assert_array_equal(sample.rows, expected)
    np.testing.assert_array_equal(sample.parts[0].labels, expected[:, 0])
    assert sample.n_seen == 300


def test_a_share_has_a_floor():
    assert sampled(ROWS, 0.01).n_kept == 20
    assert sampled(ROWS[:9], 0.01).n_kept == 9


def test_few_more_rows_are_held_than_will_stay():
    sample = Sample()
    for start in range(0, 300, 10):
        sample = sample.add(ROWS[start : start + 10], size=15, seed=0)
        assert sample.n_kept <= 2 * 15 + 20 + 10


def test_adding_leaves_the_sample_and_the_rows_as_they_were():
    rows = ROWS[:100].copy()
    sample = sampled(rows, 40)
    before = sample.rows.copy()
    more = sample.add(ROWS[100:], ROWS[100:, 0], size=40, seed=0)
    rows[:] = -7.0
    np.testing.assert_array_equal(sample.rows, before)
    assert sample.n_seen == 100
    # The numbers of the later rows are drawn by place, so adding twice to one sample keeps the same rows.
    again = sample.add(ROWS[100:], ROWS[100:, 0], size=40, seed=0)
    np.testing.assert_array_equal(again.settled(40).rows, more.settled(40).rows)


def test_a_live_generator_goes_on_by_itself():
    for make in (np.random.default_rng, np.random.RandomState):
        once, batched = sampled(ROWS, 40, seed=make(3)), sampled(ROWS, 40, step=7, seed=make(3))
        np.testing.assert_array_equal(once.rows, batched.rows)


def test_merged_samples_do_not_keep_rows_at_the_same_places():
    halves = [sampled(rows, 40) for rows in np.split(ROWS, 2)]
    np.testing.assert_array_equal(halves[0].rows[:, 0] + 150, halves[1].rows[:, 0])  # as one seed has it
    joined = halves[0].merge(halves[1], size=40)
    kept = joined.rows[:, 0]
    assert joined.n_kept == len(set(kept)) == 40
    assert joined.n_seen == 300
    assert set(kept[kept >= 150] - 150) != set(kept[kept < 150])
    assert set(kept) <= set(np.concatenate([half.rows[:, 0] for half in halves]))


def test_every_row_of_both_is_as_likely_to_stay_after_a_merge():
    counts = np.zeros(90)
    for seed in range(400):
        one, other = (sampled(rows, 30, seed=seed) for rows in np.split(ROWS[:90], [30]))
        counts[one.merge(other, size=30).rows[:, 0].astype(int)] += 1
    # 400 trials of probability 1/3: five standard deviations, passed by all 90 rows but with probability 6e-5.
    assert np.abs(counts - 400 / 3).max() < 5.0 * np.sqrt(400 * 2 / 9)


def test_what_was_kept_whole_merges_to_all_rows():
    joined = sampled(ROWS[:120], None).merge(sampled(ROWS[120:], None, step=7), size=None)
    np.testing.assert_array_equal(joined.rows, ROWS)
    some = sampled(ROWS[:120], None).merge(sampled(ROWS[120:], 40), size=None)
    assert (some.n_kept, some.n_seen, some.parts[0].draws) == (160, 300, None)


def test_rows_that_do_not_belong_together_are_refused():
    sample = Sample().add(ROWS, size=40, seed=0)
    with pytest.raises(InputError, match="some rows have 2 features and others 1; pass rows of one width"):
        sample.add(ROWS[:, :1], size=40, seed=0)
    with pytest.raises(InputError, match="some rows have 2 features and others 1"):
        sample.merge(Sample().add(ROWS[:, :1], size=40, seed=0), size=40)
    with pytest.raises(InputError, match="keep the same size throughout"):
        sample.add(ROWS, size=None, seed=0)
    with pytest.raises(InputError, match="labels for all rows or for none"):
        sample.add(ROWS, ROWS[:, 0], size=40, seed=0)
    with pytest.raises(InputError, match="one fit has labels and the other has none"):
        sample.merge(sampled(ROWS, 40), size=40)


@pytest.mark.parametrize("size", [0, -1, 0.0, 1.5, np.nan, True, "all"])
def test_a_size_that_says_nothing_is_refused(size):
    with pytest.raises(InputError, match=r"bank is .*; pass None to keep all rows, a share of them"):
        check_size(size, name="bank")


@pytest.mark.parametrize("size", [None, 1, np.int64(7), 0.01, 1.0])
def test_a_size_is_none_a_number_or_a_share(size):
    check_size(size, name="bank")


@pytest.mark.parametrize("seed", [-1, 0.5, True, "0"])
def test_a_seed_that_cannot_be_drawn_from_again_is_refused(seed):
    with pytest.raises(InputError, match=r"random_state is .*; pass a whole number of at least 0, or None"):
        check_seed(seed)
