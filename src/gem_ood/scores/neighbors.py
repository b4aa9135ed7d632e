"""Scores against a bank of training rows: distances to the nearest, and the guidance of NNGuide."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning

from gem_ood.errors import InputError
from gem_ood.features import as_features, chunks, refuse_non_finite, rows_per_chunk
from gem_ood.gaussians.parallel import run_in_parts
from gem_ood.scores.neighbor_index import (
    QUERIES_PER_CHUNK,
    ROWS_PER_TILE,
    Clusters,
    Gather,
    Keys,
    Listed,
    Prepare,
    Shortlist,
    gathered,
    listed_clusters,
    listed_rows,
    shortlists,
)

__all__ = ["Bank", "Clusters", "ProductBank", "cluster", "kth_distances", "mean_largest_products", "nearest_rows"]

#: Squares of differences below and above this are lost to float64; such distances are computed again, scaled.
SMALLEST_SQUARE, LARGEST_SQUARE = 1e-280, 1e280


#: With lists, queries are gathered in larger runs, since each run visits most lists with a few of them.
QUERIES_PER_VISIT = 2048

#: k-means sees this many rows for each list.
SAMPLE_PER_LIST = 64

#: A radius is raised by this, so that rounding leaves no row outside.
RADIUS_ROUNDING = 1e-9


def kth_distances(queries: ArrayLike, bank: ArrayLike, k: int) -> NDArray[np.float64]:
    """Return the Euclidean distance of each query to its k-th nearest row of the bank.

    >>> kth_distances([[0.0], [10.0]], [[1.0], [3.0], [8.0]], 2)
    array([3., 7.])
    """
    return Bank.of(_checked(bank, "bank")).kth_distances(_checked(queries, "queries"), k)


def nearest_rows(queries: ArrayLike, bank: ArrayLike, k: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return distances and places of the k nearest rows of the bank, n × k each, nearest first; a tie by its place.

    >>> distances, places = nearest_rows([[0.0]], [[3.0], [1.0], [8.0]], 2)
    >>> distances, places
    (array([[1., 3.]]), array([[1, 0]]))
    """
    return Bank.of(_checked(bank, "bank")).nearest_rows(_checked(queries, "queries"), k)


def mean_largest_products(queries: ArrayLike, bank: ArrayLike, k: int) -> NDArray[np.float64]:
    """Return the mean of the k largest inner products of each query with the rows of the bank.

    >>> mean_largest_products([[1.0, 0.0]], [[3.0, 9.0], [1.0, 0.0], [-5.0, 0.0]], 2)
    array([2.])
    """
    return ProductBank.of(_checked(bank, "bank")).mean_largest(_checked(queries, "queries"), k)


@dataclass(frozen=True, eq=False)
class Bank:
    """Rows made ready to be searched by distance.

    Attributes:
        rows: The rows as they were given.
        keys: The float32 copy that draws up short lists.
        prepare: What is done to rows of the bank and to queries before distances are taken.
        clusters: Where each list of near rows lies, for a bank sorted by them.
        probes: How many lists a query visits; None visits all that matter.
    """

    rows: NDArray[Any]
    keys: Keys
    prepare: Prepare | None = None
    clusters: Clusters | None = None
    probes: int | None = None

    @classmethod
    def of(
        cls,
        rows: NDArray[Any],
        prepare: Prepare | None = None,
        *,
        clusters: Clusters | None = None,
        probes: int | None = None,
    ) -> Self:
        """Return a bank of these rows."""
        keys = Keys.of_distances(gathered(rows, prepare), *rows.shape)
        return cls(rows, keys, prepare, clusters, probes)

    def kth_distances(
        self, queries: NDArray[Any], k: int, nearest: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Return each query's distance to its k-th nearest row; fill `nearest` with the place of its nearest.

        Only pairs whose keys leave open on which side of the k-th they lie are computed in float64.
        """
        distances = np.empty(len(queries))

        def work(part: slice) -> None:
            for run, rows, shortlist in self._shortlists(queries, part, k):
                listed, kth_key = shortlist.listed()
                distances[run] = self._kth(rows, listed, kth_key, k)
                if nearest is not None:
                    nearest[run] = self._nearest(rows, listed)

        _in_parts(work, self.keys, len(queries), k)
        return distances

    def nearest_rows(self, queries: NDArray[Any], k: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return distances and places of the k nearest rows, n × k each, nearest first."""
        distances, places = np.empty((len(queries), k)), np.empty((len(queries), k), dtype=np.intp)

        def work(part: slice) -> None:
            for run, rows, shortlist in self._shortlists(queries, part, k):
                listed, _ = shortlist.listed()
                found = self._distances(rows, listed)
                order = np.lexsort((listed.place, found, listed.query))
                picked = order[_starts(listed.query, len(rows))[:, np.newaxis] + np.arange(k)]
                distances[run], places[run] = found[picked], listed.place[picked]

        _in_parts(work, self.keys, len(queries), k)
        return distances, places

    def _shortlists(
        self, queries: NDArray[Any], part: slice, k: int
    ) -> Iterator[tuple[slice, NDArray[np.float64], Shortlist]]:
        def search(rows: NDArray[np.float64]) -> Shortlist | None:
            if self.clusters is None:
                return listed_rows(self.keys, rows, k)
            return listed_clusters(self.keys, self.clusters, self.probes, rows, k)

        size = QUERIES_PER_CHUNK if self.clusters is None else QUERIES_PER_VISIT
        return shortlists(search, queries, part, prepare=self.prepare, size=size)

    def _kth(
        self, rows: NDArray[np.float64], listed: Listed, kth_key: NDArray[np.float32], k: int
    ) -> NDArray[np.float64]:
        is_nearer = listed.key > kth_key[listed.query] + np.float32(self.keys.margin)
        n_nearer = np.bincount(listed.query[is_nearer], minlength=len(rows))
        undecided = listed.where(~is_nearer)
        found = self._distances(rows, undecided)
        order = np.lexsort((found, undecided.query))
        kth: NDArray[np.float64] = found[order[_starts(undecided.query, len(rows)) + k - 1 - n_nearer]]
        return kth

    def _nearest(self, rows: NDArray[np.float64], listed: Listed) -> NDArray[np.intp]:
        largest = listed.key[_starts(listed.query, len(rows))]
        is_near = listed.key >= largest[listed.query] - np.float32(self.keys.margin)
        close = listed.where(is_near)
        order = np.lexsort((close.place, self._distances(rows, close), close.query))
        nearest: NDArray[np.intp] = close.place[order[_starts(close.query, len(rows))]]
        return nearest

    def _distances(self, rows: NDArray[np.float64], pairs: Listed) -> NDArray[np.float64]:
        gather = gathered(self.rows, self.prepare)
        found = np.empty(len(pairs.query))
        for part in chunks(len(found), rows_per_chunk(rows.shape[1])):
            with np.errstate(over="ignore"):
                found[part] = _lengths(rows[pairs.query[part]] - gather(pairs.place[part]))
        return found


@dataclass(frozen=True, eq=False)
class ProductBank:
    """Rows made ready to be searched by inner product."""

    rows: NDArray[Any]
    keys: Keys

    @classmethod
    def of(cls, rows: NDArray[Any]) -> Self:
        """Return a bank of these rows."""
        return cls(rows, Keys.of_products(gathered(rows, None), *rows.shape))

    def mean_largest(self, queries: NDArray[Any], k: int) -> NDArray[np.float64]:
        """Return the mean of each query's k largest inner products."""
        means, gather = np.empty(len(queries)), gathered(self.rows, None)

        def work(part: slice) -> None:
            found_lists = shortlists(
                lambda rows: listed_rows(self.keys, rows, k), queries, part, prepare=None, size=QUERIES_PER_CHUNK
            )
            for run, rows, shortlist in found_lists:
                listed, _ = shortlist.listed()
                found = _products(rows, gather, listed)
                order = np.lexsort((-found, listed.query))
                picked = order[_starts(listed.query, len(rows))[:, np.newaxis] + np.arange(k)]
                means[run] = (found[picked] / k).sum(axis=1)

        _in_parts(work, self.keys, len(queries), k)
        return means


def cluster(
    rows: NDArray[Any], *, prepare: Prepare | None, random_state: int | None
) -> tuple[NDArray[np.intp], Clusters]:
    """Return an order of the rows that brings near ones together, and the lists they then lie in.

    About √n centres are found by k-means on a sample of the rows; every row joins the list of its nearest centre.
    """
    from sklearn.cluster import MiniBatchKMeans

    gather, n_lists = gathered(rows, prepare), int(np.ceil(np.sqrt(len(rows))))
    n_sample = min(len(rows), SAMPLE_PER_LIST * n_lists)
    sample = np.sort(np.random.default_rng(random_state).permutation(len(rows))[:n_sample])
    seed = None if random_state is None else int(random_state) % 2**32
    examples = gather(sample)
    largest = float(np.abs(examples).max()) or 1.0  # k-means squares distances
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than lists: some stay empty
        means = MiniBatchKMeans(n_lists, batch_size=4096, n_init=1, random_state=seed).fit(examples / largest)
    centres = Bank.of(largest * np.asarray(means.cluster_centers_, dtype=np.float64))
    lists = np.empty(len(rows), dtype=np.intp)
    distances = np.empty(len(rows))
    for part in chunks(len(rows), rows_per_chunk(rows.shape[1])):
        distances[part] = centres.kth_distances(gather(part), 1, lists[part])
    radii = np.zeros(n_lists)
    np.maximum.at(radii, lists, distances)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(lists, minlength=n_lists))])
    clusters = Clusters(centres.rows, radii * (1.0 + RADIUS_ROUNDING), bounds)
    return np.argsort(lists, kind="stable"), clusters


def _checked(X: ArrayLike, name: str) -> NDArray[Any]:
    rows = as_features(X, name=name)
    for part in chunks(len(rows), rows_per_chunk(rows.shape[1])):
        refuse_non_finite(rows[part], first_row=part.start, name=name)
    return rows


def _in_parts(work: Callable[[slice], None], keys: Keys, n_queries: int, k: int) -> None:
    n_rows, width = keys.columns.shape
    if not 1 <= k <= n_rows:
        raise InputError(f"k is {k} but the bank has {n_rows} rows; pass k from 1 to {n_rows}, or more rows")
    tile_bytes = 8 * min(QUERIES_PER_CHUNK, n_queries) * min(ROWS_PER_TILE, n_rows)
    run_in_parts(work, n_queries, operations=2.0 * n_queries * n_rows * width, bytes_per_part=tile_bytes)


def _starts(query: NDArray[np.intp], n_queries: int) -> NDArray[np.intp]:
    """Return where each query's pairs begin, in pairs that are sorted by query."""
    return np.searchsorted(query, np.arange(n_queries))


def _products(rows: NDArray[np.float64], gather: Gather, pairs: Listed) -> NDArray[np.float64]:
    found = np.empty(len(pairs.query))
    for part in chunks(len(found), rows_per_chunk(rows.shape[1])):
        np.vecdot(rows[pairs.query[part]], gather(pairs.place[part]), out=found[part])
    return found


def _lengths(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the length of each row; squares that float64 cannot hold are taken of scaled rows."""
    squares = np.vecdot(differences, differences)
    is_lost = (squares < SMALLEST_SQUARE) | ~(squares < LARGEST_SQUARE)
    lengths: NDArray[np.float64] = np.sqrt(squares)
    if is_lost.any():
        sizes = np.abs(differences[is_lost]).max(axis=1)
        divisors = np.where((sizes > 0.0) & np.isfinite(sizes), sizes, 1.0)[:, np.newaxis]
        scaled = differences[is_lost] / divisors
        lengths[is_lost] = np.where(np.isfinite(sizes), divisors[:, 0] * np.sqrt(np.vecdot(scaled, scaled)), np.inf)
    return lengths
