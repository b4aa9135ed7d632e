"""Quantiles of counts and of batches against NumPy's own."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gem_ood.batches import SpreadBatches
from gem_ood.errors import FileFormatError, InputError
from gem_ood.quantiles import (
    ALL_FLOATS,
    N_BINS,
    RELATIVE_ERROR,
    count_values,
    exact_quantile,
    floats_of,
    pack_counts,
    quantile,
    split_cells,
    unpack_counts,
)

GENERATOR = np.random.default_rng(0)
SAMPLES = {
    "normal": GENERATOR.normal(size=(500, 7)),
    "rectified": np.maximum(GENERATOR.normal(size=(500, 7)), 0.0),
    "negative": -GENERATOR.exponential(size=(500, 7)),
    "of all sizes": GENERATOR.choice([-1.0, 1.0], size=(500, 7)) * 10.0 ** GENERATOR.uniform(-15, 15, size=(500, 7)),
    "constant": np.full((30, 2), 0.1),
    "zeros": np.zeros((3, 2)),
    "few distinct": GENERATOR.integers(-2, 3, size=(500, 7)).astype(np.float64),
    "one number": np.array([[3.7]]),
    "two numbers": np.array([[-1.0, 2.0]]),
}
BEYOND = {
    "huge": 1e150 * GENERATOR.normal(size=(50, 3)),
    "tiny": 1e-150 * GENERATOR.normal(size=(50, 3)),
    "subnormal": 5e-324 * GENERATOR.integers(-9, 10, size=(50, 3)),
    "minus zero": np.array([[-0.0, 0.0, -0.0], [1e-300, -1e-300, 0.0]]),
}
SHARES = [0.0, 0.1, 0.5, 0.77, 0.9, 0.999, 1.0]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("values", [*SAMPLES.values(), *BEYOND.values()], ids=[*SAMPLES, *BEYOND])
def test_the_exact_quantile_is_numpys_to_the_bit(values, share):
    parts = [values[: len(values) // 3 + 1], *([rest] if len(rest := values[len(values) // 3 + 1 :]) else [])]
    assert exact_quantile([(part, None) for part in parts], count_values(values), share) == np.quantile(values, share)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("values", SAMPLES.values(), ids=SAMPLES)
def test_the_quantile_of_counts_is_within_the_stated_error(values, share):
    """Both neighbours in order are that near, and so is what lies between them by the same weights."""
    position = share * (values.size - 1)
    ordered = np.sort(values.ravel())
    neighbours = np.abs(ordered[[int(np.floor(position)), int(np.ceil(position))]])
    error = abs(quantile(count_values(values), share) - np.quantile(values, share))
    assert error <= RELATIVE_ERROR * neighbours.max()


def test_narrow_floats_are_counted_as_the_numbers_they_are():
    narrow = SAMPLES["normal"].astype(np.float32)
    np.testing.assert_array_equal(count_values(narrow), count_values(narrow.astype(np.float64)))
    assert exact_quantile([(narrow, None)], count_values(narrow), 0.9) == np.quantile(narrow.astype(np.float64), 0.9)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=30), st.integers(1, 29))
def test_counts_of_parts_add_up_to_those_of_all(values, cut):
    array = np.array(values)
    total = count_values(array[:cut]) + count_values(array[cut:])
    np.testing.assert_array_equal(total, count_values(array))
    assert total.sum() == len(values)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=30), st.floats(0.0, 1.0))
def test_no_finite_numbers_defeat_the_exact_quantile(values, share):
    rows = np.array(values)[:, np.newaxis]
    assert exact_quantile([(rows, None)], count_values(rows), share) == np.quantile(rows, share)


def test_bins_are_in_the_order_of_the_values():
    values = np.sort(np.concatenate([SAMPLES["of all sizes"].ravel(), BEYOND["huge"].ravel(), [0.0]]))
    places = [int(np.flatnonzero(count_values(value))[0]) for value in values[::40]]
    assert places == sorted(places)
    assert len(set(places)) > 50


def test_numbers_too_small_to_count_apart_are_zero():
    assert quantile(count_values(np.array([1e-30, -1e-25, 0.0])), 0.9) == 0.0


def test_counts_do_not_reach_the_largest_numbers_and_say_so():
    for sign in (1.0, -1.0):
        with pytest.raises(InputError, match="use fit or fit_batches"):
            quantile(count_values(sign * np.array([1e150, 2e150])), 0.5)
    assert quantile(count_values(np.array([-1e150, 1.0, 1.0, 1.0, 1e150])), 0.5) == pytest.approx(1.0, RELATIVE_ERROR)


def test_no_values_have_no_quantile():
    with pytest.raises(InputError, match="no values were counted"):
        quantile(np.zeros(N_BINS), 0.5)


def test_batches_that_change_between_passes_are_refused():
    values = SAMPLES["normal"]
    with pytest.raises(InputError, match="the same rows each time"):
        exact_quantile([(values[:100], None)], count_values(values), 0.9)


def test_packed_counts_come_back():
    counts = count_values(SAMPLES["of all sizes"]) + 2.0**40 * count_values(np.array([1.0, -1e150, 1e150]))
    packed = pack_counts(counts)
    assert packed.dtype == np.int64
    assert len(packed) == np.count_nonzero(counts)
    np.testing.assert_array_equal(unpack_counts(packed), counts)


@pytest.mark.parametrize(
    "packed", [[], [-1], [5], [(1 << 20) | N_BINS], [(1 << 20) | 7, (1 << 20) | 7], [(1 << 20) | 8, (1 << 20) | 7]]
)
def test_damaged_counts_are_refused(packed):
    with pytest.raises(FileFormatError, match="damaged"):
        unpack_counts(np.array(packed, dtype=np.int64))


def test_the_exact_quantile_holds_no_more_than_a_few_chunks():
    """The values all fall in one bin, the worst case for an algorithm that collects that bin."""
    batches = _Repeated(np.random.default_rng(1).uniform(1.0, 1.0 + 1e-5, size=(10_000, 100)), times=20)
    counts = 20.0 * count_values(batches.rows)
    expected = np.quantile(np.repeat(batches.rows.ravel(), 20), 0.9)
    tracemalloc.start()
    found = exact_quantile(batches, counts, 0.9)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == expected
    assert peak < 100e6  # all values are 160 MB


class _Repeated:
    def __init__(self, rows, times):
        self.rows, self.times = rows, times

    def __iter__(self):
        return ((self.rows, None) for _ in range(self.times))


class _Parts(SpreadBatches):
    """Each row is a part of its own, and parts are merged from the last to the first."""

    def __init__(self, rows):
        self.rows = rows

    def head(self):
        return [(self.rows[:1], None)]

    def reduce(self, work, merge):
        summaries = [work([(row[np.newaxis], None)]) for row in self.rows]
        while len(summaries) > 1:
            summaries.append(merge(summaries.pop(), summaries.pop()))
        return summaries[0]


@pytest.mark.parametrize("values", [SAMPLES["few distinct"], SAMPLES["of all sizes"]], ids=["ties", "no ties"])
def test_the_exact_quantile_of_spread_rows_is_that_of_all(values):
    some = values[:20]
    for share in SHARES:
        assert exact_quantile(_Parts(some), count_values(some), share) == np.quantile(some, share)


def test_cells_tell_the_numbers_in_them():
    rows = np.array([[3.0, -1.0, -np.inf], [3.0, 2.0, 5e-324], [0.0, -0.0, 1e308]])
    cells = split_cells([(rows[:1], None), (rows[1:], None)], ALL_FLOATS)
    np.testing.assert_array_equal(floats_of(cells.first), [-np.inf, -1.0, 0.0, 2.0, 3.0, 1e308])
    np.testing.assert_array_equal(floats_of(cells.last), [-np.inf, -1.0, 5e-324, 2.0, 3.0, 1e308])
    assert cells.counts.tolist() == [1, 1, 3, 1, 2, 1]
    finer = split_cells(_Parts(rows), cells.take(np.array([2, 4])), bits=1)
    np.testing.assert_array_equal(floats_of(finer.first), [0.0, 5e-324, 3.0])
    assert finer.counts.tolist() == [2, 1, 2]


@given(
    st.lists(st.floats(allow_nan=False), min_size=1, max_size=40),
    st.integers(1, 21),
    st.lists(st.integers(0, 40), max_size=4),
)
def test_cells_hold_all_numbers_once_whatever_their_size(values, bits, cuts):
    rows = np.array(values)[:, np.newaxis]
    batches = [(part, None) for part in np.split(rows, sorted(cuts)) if len(part)]
    cells = split_cells(batches, ALL_FLOATS, bits=bits)
    assert len(cells.first) <= 2 ** (bits + 1)  # pairs are told apart
    ordered = np.sort(rows.ravel())
    up_to = np.cumsum(cells.counts)
    np.testing.assert_array_equal(floats_of(cells.first), ordered[up_to - cells.counts])
    np.testing.assert_array_equal(floats_of(cells.last), ordered[up_to - 1])
