"""Banks and queries that leave float32 keys undecided: answers stay exact, and few pairs are computed one by one."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from gem_ood.features import unit_length
from gem_ood.scores.neighbors import (
    Bank,
    ProductBank,
    cluster,
    comparing,
    mean_largest_products,
    nearest_rows,
    products,
)
from gem_ood.scores.neighbors import bank as bank_module
from gem_ood.scores.neighbors.layout import first_of_equal_rows, gathered

GENERATOR = np.random.default_rng(0)
BANK = GENERATOR.normal(size=(3000, 8))
QUERIES = GENERATOR.normal(size=(150, 8))


def with_outliers(sizes):
    bank = BANK.copy()
    bank[: len(sizes)] *= np.reshape(sizes, (-1, 1))
    return bank


def half_equal():
    bank = BANK.copy()
    bank[::2] = bank[0]
    return bank


def two_far_clusters():
    bank = 1e-3 * BANK
    bank[::2] += 1e3
    return bank


SIZES = 10.0 ** np.linspace(1.0, 8.0, 30)

WORST = {
    "zero queries": (unit_length(BANK), np.vstack([np.zeros((140, 8)), -np.zeros((3, 8)), QUERIES[:7]])),
    "queries next to zero": (unit_length(BANK), 1e-9 * QUERIES),
    "one outlier": (with_outliers([1e3]), QUERIES),
    "one vast outlier": (with_outliers([1e30]), QUERIES),
    "outliers of many sizes": (with_outliers(SIZES), QUERIES),
    "queries as far out as outliers": (with_outliers(SIZES), 1e3 * QUERIES),
    "half equal, queries equal": (half_equal(), np.repeat(half_equal()[:1], 150, axis=0)),
    "half equal, queries near": (half_equal(), half_equal()[0] + 1e-3 * QUERIES),
    "all rows equal": (np.ones((3000, 8)), QUERIES),
    "two sets of equal rows": (np.repeat(BANK[:2], 1500, axis=0), QUERIES),
    "two far clusters": (two_far_clusters(), 1e-3 * QUERIES),
    "vast queries among others": (BANK, QUERIES * np.where(np.arange(150) % 3, 1.0, 1e30)[:, np.newaxis]),
    "binary": ((BANK > 0.0) * 1.0, (QUERIES > 0.0) * 1.0),
    "whole numbers": (np.round(3.0 * BANK), np.round(3.0 * QUERIES)),
    "queries of the bank": (BANK, BANK[:150]),
}


@pytest.mark.parametrize("name", WORST)
@pytest.mark.parametrize("k", [1, 50, 3000])
def test_worst_cases_have_the_distances_of_all_pairs(name, k):
    bank, queries = WORST[name]
    expected = cdist(queries, bank)
    nearest = np.empty(len(queries), dtype=np.intp)
    found = Bank.of(bank).kth_distances(queries, k, nearest)
    np.testing.assert_allclose(found, np.sort(expected, axis=1)[:, k - 1], rtol=1e-12, atol=0.0)
    of_nearest = np.take_along_axis(expected, nearest[:, np.newaxis], axis=1)[:, 0]
    np.testing.assert_allclose(of_nearest, expected.min(axis=1), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("name", WORST)
def test_worst_cases_do_not_depend_on_the_batch(name):
    bank, queries = Bank.of(WORST[name][0]), WORST[name][1]
    alone = np.concatenate([bank.kth_distances(queries[row : row + 1], 20) for row in range(0, 150, 10)])
    np.testing.assert_allclose(bank.kth_distances(queries, 20)[::10], alone, rtol=1e-13, atol=0.0)


@pytest.mark.parametrize("name", WORST)
@pytest.mark.parametrize("k", [3, 3000])
def test_worst_cases_have_the_nearest_rows_of_all_pairs_and_ties_by_place(name, k):
    bank, queries = WORST[name][0], WORST[name][1][::10]
    all_pairs = cdist(queries, bank)
    distances, places = nearest_rows(queries, bank, k)
    np.testing.assert_allclose(distances, np.sort(all_pairs, axis=1)[:, :k], rtol=1e-12, atol=0.0)
    np.testing.assert_allclose(distances, np.take_along_axis(all_pairs, places, axis=1), rtol=1e-12, atol=0.0)
    assert all(len(set(row)) == k for row in places.tolist())
    is_tie = np.diff(distances, axis=1) == 0.0
    assert (np.diff(places, axis=1)[is_tie] > 0).all()


@pytest.mark.parametrize("name", WORST)
@pytest.mark.parametrize("k", [1, 50])
def test_worst_cases_of_a_clustered_bank_are_exact(name, k):
    bank, queries = WORST[name]
    order, clusters = cluster(bank, prepare=None, random_state=0)
    found = Bank.of(bank[order], clusters=clusters).kth_distances(queries, k)
    np.testing.assert_allclose(found, np.sort(cdist(queries, bank), axis=1)[:, k - 1], rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("scale", [1e-200, 1e150])
def test_worst_cases_at_any_scale_are_exact(scale):
    bank, queries = scale * unit_length(BANK), scale * 1e-9 * QUERIES
    expected = scale * np.sort(cdist(queries / scale, bank / scale), axis=1)
    for k in (1, 50, 3000):
        np.testing.assert_allclose(Bank.of(bank).kth_distances(queries, k), expected[:, k - 1], rtol=1e-12)


@pytest.mark.parametrize("name", WORST)
@pytest.mark.parametrize("k", [50, 3000])
def test_worst_cases_compute_few_pairs_one_by_one(name, k, monkeypatch):
    n_pairs = []
    lengths = comparing.lengths
    monkeypatch.setattr(comparing, "lengths", lambda rows: (n_pairs.append(len(rows)), lengths(rows))[1])
    bank, queries = WORST[name]
    Bank.of(bank).kth_distances(queries, k)
    assert sum(n_pairs) <= 500 * len(queries)


@pytest.mark.parametrize("queries", [np.zeros((40, 8)), 1e-9 * QUERIES[:40], np.eye(8)])
@pytest.mark.parametrize("k", [1, 30, 3000])
def test_products_that_tie_have_the_mean_of_all_pairs(queries, k):
    bank = with_outliers([1e6])
    bank[2000:] = bank[2000]
    expected = np.sort(queries @ bank.T, axis=1)[:, -k:].mean(axis=1)
    np.testing.assert_allclose(mean_largest_products(queries, bank, k), expected, rtol=1e-9, atol=1e-12)


def test_products_that_tie_are_not_computed_one_by_one(monkeypatch):
    n_pairs = []
    pair_products = products._products
    monkeypatch.setattr(
        products,
        "_products",
        lambda rows, gather, pairs: (n_pairs.append(len(pairs.query)), pair_products(rows, gather, pairs))[1],
    )
    queries = np.vstack([np.zeros((100, 8)), np.eye(8)])
    ProductBank.of(np.repeat(BANK[:3], 1000, axis=0)).mean_largest(queries, 5)
    assert sum(n_pairs) <= 500 * 9


def test_rows_whose_fingerprints_collide_are_not_taken_for_equal(monkeypatch):
    monkeypatch.setattr(np, "unique", lambda prints, **_: (None, np.array([0]), np.zeros(len(prints), dtype=np.intp)))
    rows = np.array([[1.0], [2.0], [1.0], [3.0]])
    first = first_of_equal_rows(gathered(rows, None), 4, 1)
    np.testing.assert_array_equal(first, [0, 1, 0, 3])


def test_each_query_is_searched_for_once(monkeypatch):
    n_searched = []
    listed = bank_module.listed_rows
    monkeypatch.setattr(
        bank_module, "listed_rows", lambda keys, rows, k: (n_searched.append(len(rows)), listed(keys, rows, k))[1]
    )
    queries = np.vstack([np.zeros((500, 8)), QUERIES[:5], -np.zeros((500, 8)), QUERIES[:5]])
    Bank.of(BANK).kth_distances(queries, 3)
    assert sum(n_searched) == 6
