"""Searches of a bank against naive float64 loops and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

from gem_ood.errors import InputError
from gem_ood.features import unit_length
from gem_ood.scores.neighbors import Bank, cluster, kth_distances, mean_largest_products, nearest_rows, shortlist
from gem_ood.scores.neighbors import bank as bank_module
from gem_ood.scores.neighbors.keys import Keys
from gem_ood.scores.neighbors.layout import gathered
from gem_ood.scores.neighbors.shortlist import Shortlist


def all_distances(queries, bank):
    queries, bank = np.asarray(queries, dtype=np.float64), np.asarray(bank, dtype=np.float64)
    return np.array([[np.linalg.norm(query - row) for row in bank] for query in queries])


def rows(n, d=7, seed=0, scale=1.0, offset=0.0):
    return offset + scale * np.random.default_rng(seed).normal(size=(n, d))


def duplicates(n):
    return np.repeat(rows(n // 8, seed=3), 8, axis=0)


BANKS = {
    "ordinary": (rows(300), rows(40, seed=1)),
    "duplicates": (duplicates(304), np.vstack([duplicates(304)[::20], rows(20, seed=1)])),
    "one row over and over": (np.ones((300, 7)), rows(20, seed=1)),
    "far from the origin": (rows(300, offset=1e4), rows(40, seed=1, offset=1e4)),
    "nearly identical": (rows(300, scale=1e-9, offset=1.0), rows(40, seed=1, scale=1e-9, offset=1.0)),
    "nearly identical but one": (
        np.vstack([rows(299, scale=1e-6, offset=1.0), np.full((1, 7), -50.0)]),
        rows(40, seed=1, scale=1e-6, offset=1.0),
    ),
    "float32": (rows(300).astype(np.float32), rows(40, seed=1).astype(np.float32)),
    "float16 queries": (rows(300), rows(40, seed=1).astype(np.float16)),
    "whole numbers": (np.arange(300).reshape(-1, 1), np.arange(-20, 20).reshape(-1, 1)),
    "one column": (rows(300, d=1), rows(40, d=1, seed=1)),
    "a far query": (rows(300), np.vstack([rows(5, seed=1), np.full((1, 7), 1e6)])),
}


@pytest.mark.parametrize("name", BANKS)
@pytest.mark.parametrize("k", [1, 5, 300])
def test_the_kth_distance_is_that_of_a_naive_loop(name, k):
    bank, queries = BANKS[name]
    expected = np.sort(all_distances(queries, bank), axis=1)[:, k - 1]
    np.testing.assert_allclose(kth_distances(queries, bank, k), expected, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("name", ["ordinary", "far from the origin", "float32", "one column"])
def test_the_nearest_rows_are_scikit_learns(name):
    bank, queries = BANKS[name]
    exact = NearestNeighbors(n_neighbors=9, algorithm="brute").fit(bank.astype(np.float64))
    expected = exact.kneighbors(queries.astype(np.float64), return_distance=False)
    distances, places = nearest_rows(queries, bank, 9)
    np.testing.assert_array_equal(places, expected)
    by_place = np.take_along_axis(all_distances(queries, bank), places, axis=1)
    np.testing.assert_allclose(distances, by_place, rtol=1e-12)


def test_of_rows_that_tie_the_first_comes_first():
    distances, places = nearest_rows([[0.0]], [[1.0], [-1.0], [1.0], [3.0]], 3)
    np.testing.assert_array_equal(places, [[0, 1, 2]])
    np.testing.assert_array_equal(distances, [[1.0, 1.0, 1.0]])


def test_the_nearest_row_comes_along_with_the_kth_distance():
    bank, queries = BANKS["ordinary"]
    nearest = np.empty(len(queries), dtype=np.intp)
    Bank.of(bank).kth_distances(queries, 20, nearest)
    np.testing.assert_array_equal(nearest, all_distances(queries, bank).argmin(axis=1))


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(shortlist, "ROWS_PER_TILE", 130)
    monkeypatch.setattr(bank_module, "QUERIES_PER_CHUNK", 8)
    monkeypatch.setattr(shortlist, "LONGEST_LIST", 400)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("name", BANKS)
@pytest.mark.parametrize("k", [1, 5, 150])
def test_tiles_of_the_bank_and_halved_runs_change_nothing(name, k):
    bank, queries = BANKS[name]
    expected = np.sort(all_distances(queries, bank), axis=1)[:, :k]
    np.testing.assert_allclose(nearest_rows(queries, bank, k)[0], expected, rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(kth_distances(queries, bank, k), expected[:, -1], rtol=1e-12, atol=1e-300)


def test_blocks_of_a_large_bank_hide_no_neighbour():
    bank, queries = rows(20_000, d=16).astype(np.float32), rows(150, d=16, seed=1)
    for k in (1, 50, 700):
        expected = [np.sort(np.sqrt(((bank - query) ** 2).sum(axis=1)))[k - 1] for query in queries]
        np.testing.assert_allclose(kth_distances(queries, bank, k), expected, rtol=1e-12)


@given(st.integers(1, 60), st.integers(1, 6), st.integers(0, 10**6), st.sampled_from([1e-200, 1e-30, 1.0, 1e30, 1e150]))
def test_any_scale_gives_the_distances_of_that_scale(n, d, seed, scale):
    generator = np.random.default_rng(seed)
    bank, queries = generator.integers(-3, 4, size=(n, d)) * 1.0, generator.integers(-3, 4, size=(5, d)) * 1.0
    k = int(generator.integers(1, n + 1))
    expected = np.sort(all_distances(queries, bank), axis=1)[:, k - 1]
    np.testing.assert_allclose(kth_distances(scale * queries, scale * bank, k), scale * expected, rtol=1e-12)


def test_queries_beyond_every_scale_have_a_distance_and_no_nan():
    bank = rows(20, d=2, scale=1e-30)
    found = kth_distances([[1e300, 0.0], [1e160, 1e160], [-1e308, 1e308]], bank, 3)
    np.testing.assert_allclose(found, [1e300, np.sqrt(2.0) * 1e160, np.sqrt(2.0) * 1e308], rtol=1e-12)
    assert kth_distances([[1.7e308]], [[-1.7e308], [-1.6e308]], 1)[0] == np.inf


def test_a_bank_wider_than_float64_is_refused():
    with pytest.raises(InputError, match="scale the features down"):
        kth_distances([[0.0]], [[-1.7e308], [1.7e308], [1.7e308]], 1)


def test_the_bound_on_keys_holds_where_float32_is_at_its_worst():
    generator = np.random.default_rng(0)
    bank = np.abs(generator.normal(size=(500, 300))) + 1.0
    keys = Keys.of_distances(gathered(bank, None), *bank.shape)
    queries = np.vstack([bank[:20], 3.0 * bank[:20], -1e5 * bank[:20]])
    scaled, _ = keys.scaled_queries(queries)
    exact_queries, exact_columns = (queries - keys.centre) / keys.largest, (bank - keys.centre) / keys.largest
    exact = exact_queries @ exact_columns.T - 0.5 * (exact_columns**2).sum(axis=1)
    shrunk = np.minimum(1.0, keys.reach / np.linalg.norm(exact_queries, axis=1))[:, np.newaxis]
    assert np.abs(scaled @ keys.columns.T - shrunk * exact).max() <= keys.margin / 2.0


def test_rows_are_prepared_on_both_sides():
    bank, queries = rows(200), rows(30, seed=1)
    expected = np.sort(all_distances(unit_length(queries), unit_length(bank)), axis=1)[:, 4]
    np.testing.assert_allclose(Bank.of(bank, unit_length).kth_distances(queries, 5), expected, rtol=1e-12)


@pytest.mark.parametrize("k", [1, 3, 200])
@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
def test_the_mean_of_the_largest_products_is_that_of_a_naive_loop(k, scale):
    bank, queries = scale * rows(200), rows(30, seed=1)
    expected = np.sort(queries @ bank.T, axis=1)[:, -k:].mean(axis=1)
    np.testing.assert_allclose(mean_largest_products(queries, bank, k), expected, rtol=1e-9, atol=1e-13 * scale)


def test_all_products_may_be_negative_or_zero():
    np.testing.assert_allclose(mean_largest_products([[1.0, 0.0]], [[-1.0, 5.0], [-3.0, 0.0], [-2.0, 1.0]], 2), [-1.5])
    np.testing.assert_array_equal(mean_largest_products([[0.0, 0.0]], [[-1.0, 5.0], [0.0, 0.0]], 2), [0.0])


CLUSTERED = {
    "clusters": np.repeat(rows(12, scale=8.0), 100, axis=0) + rows(1200, seed=2, scale=0.3),
    "no clusters": rows(900),
    "few distinct rows": np.repeat(rows(3), 200, axis=0),
    "far from the origin": rows(600, offset=1e4),
}


@pytest.mark.parametrize("name", CLUSTERED)
@pytest.mark.parametrize("k", [1, 7, 130])
@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e160])
def test_lists_left_out_by_the_triangle_inequality_change_nothing(name, k, scale):
    bank = CLUSTERED[name]
    queries = np.vstack([bank[::60] + 0.1, bank[:3], np.full((1, 7), 1e5)])
    distances = scale * all_distances(queries, bank)
    bank, queries = scale * bank, scale * queries
    order, clusters = cluster(bank, prepare=None, random_state=0)
    np.testing.assert_array_equal(np.sort(order), np.arange(len(bank)))
    found = Bank.of(bank[order], clusters=clusters).kth_distances(queries, k)
    # Scaling by a number that is no power of two rounds the rows themselves.
    largest = np.abs(bank).max()
    np.testing.assert_allclose(found, np.sort(distances, axis=1)[:, k - 1], rtol=1e-11, atol=1e-14 * largest)


def test_the_triangle_inequality_leaves_out_most_lists_of_a_clustered_bank(monkeypatch):
    bank = CLUSTERED["clusters"]
    order, clusters = cluster(bank, prepare=None, random_state=0)
    visited = []
    add = Shortlist.add
    monkeypatch.setattr(
        Shortlist,
        "add",
        lambda self, keys, *rest: (visited.append(keys.shape[1]), add(self, keys, *rest)),
    )
    Bank.of(bank[order], clusters=clusters).kth_distances(bank[:1], 5)
    assert sum(visited) < len(bank) / 3


def test_few_probes_never_understate_a_distance_and_all_probes_are_exact():
    bank, queries = CLUSTERED["no clusters"], rows(100, seed=5)
    order, clusters = cluster(bank, prepare=None, random_state=0)
    exact = kth_distances(queries, bank, 20)
    shares = []
    for probes in (1, 5, len(clusters.centres)):
        found = Bank.of(bank[order], clusters=clusters, probes=probes).kth_distances(queries, 20)
        assert (found >= exact * (1.0 - 1e-12)).all()
        shares.append(np.mean(found <= exact * (1.0 + 1e-12)))
    assert shares[0] < shares[1] < shares[2] == 1.0


@pytest.mark.parametrize("k", [0, -1, 4])
def test_more_neighbours_than_rows_are_refused(k):
    with pytest.raises(InputError, match=f"k is {k} but the bank has 3 rows; pass k from 1 to 3"):
        kth_distances([[0.0]], [[1.0], [2.0], [3.0]], k)


def test_rows_that_are_not_finite_are_refused_by_name():
    with pytest.raises(InputError, match="bank row 1, column 0 is NaN"):
        kth_distances([[0.0]], [[1.0], [np.nan]], 1)
    with pytest.raises(InputError, match="queries row 0, column 0 is infinity"):
        mean_largest_products([[np.inf]], [[1.0]], 1)
