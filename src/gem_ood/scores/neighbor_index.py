"""Finding the nearest rows of a bank exactly: float32 products draw up a short list, float64 differences decide.

Every row of the bank gets a key, the larger the nearer. Keys are computed in float32 by matrix products, tile by tile
of the bank, and no key is further from its exact value than a bound that holds for any order of summation. Rows whose
key lies within that bound of the k-th largest are compared again in float64, so the answer is that of a float64 loop.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.features import chunks, refuse_non_finite, rows_per_chunk

__all__ = [
    "Clusters",
    "Keys",
    "Listed",
    "Prepare",
    "Shortlist",
    "gathered",
    "listed_clusters",
    "listed_rows",
    "shortlists",
]

#: Half the distance from 1 to the next float32.
FLOAT32_UNIT = 2.0**-24

#: Keys of this many queries and rows of the bank are computed at once: few enough to stay in the outer caches.
QUERIES_PER_CHUNK = 128
ROWS_PER_TILE = 16384

#: A far query's scale is kept in float32, which shows where squares that nearly cancel are subtracted.
CANCELLATION = 1e-6

#: The largest block of keys of which only the maximum is looked at first.
LARGEST_BLOCK = 32

#: A short list longer than this (nearly all rows tie) is drawn up again for half of the queries at a time.
LONGEST_LIST = 1 << 21

Prepare = Callable[[NDArray[Any]], NDArray[np.float64]]
Gather = Callable[[NDArray[np.intp] | slice], NDArray[np.float64]]


class Listed(NamedTuple):
    """Pairs of a query and a row of the bank that may be near it: by query, then by falling key."""

    query: NDArray[np.intp]
    place: NDArray[np.intp]
    key: NDArray[np.float32]

    def where(self, is_picked: NDArray[np.bool_]) -> "Listed":
        """Return some of the pairs."""
        return Listed(self.query[is_picked], self.place[is_picked], self.key[is_picked])


def gathered(bank: NDArray[Any], prepare: Prepare | None) -> Gather:
    """Return a function that gives the prepared float64 rows at these places of the bank."""

    def gather(places: NDArray[np.intp] | slice) -> NDArray[np.float64]:
        rows = bank[places]
        return rows.astype(np.float64, copy=False) if prepare is None else prepare(rows)

    return gather


@dataclass(frozen=True, eq=False)
class Keys:
    """A float32 copy of the bank, centred and scaled, whose products with a query rank the rows.

    Attributes:
        columns: n × (d + 1): the scaled rows and what is added to their products.
        centre: What is subtracted from rows and queries first, so that an offset common to all costs no precision.
        largest: What they are divided by next: the largest absolute value.
        reach: The greatest length of a scaled row.
    """

    columns: NDArray[np.float32]
    centre: NDArray[np.float64]
    largest: float
    reach: float

    @classmethod
    def of_distances(cls, gather: Gather, n_rows: int, n_features: int) -> Self:
        """Return keys ⟨q, b⟩ − ½‖b‖², which fall as the distance ‖q − b‖ grows."""
        return cls._of(gather, n_rows, n_features, centred=True)

    @classmethod
    def of_products(cls, gather: Gather, n_rows: int, n_features: int) -> Self:
        """Return keys ⟨q, b⟩."""
        return cls._of(gather, n_rows, n_features, centred=False)

    @classmethod
    def _of(cls, gather: Gather, n_rows: int, n_features: int, *, centred: bool) -> Self:
        centre, least, most = np.zeros(n_features), np.full(n_features, np.inf), np.full(n_features, -np.inf)
        for part in chunks(n_rows, rows_per_chunk(n_features)):
            rows = gather(part)
            np.minimum(least, rows.min(axis=0), out=least)
            np.maximum(most, rows.max(axis=0), out=most)
            if centred:
                centre += (rows / n_rows).sum(axis=0)  # divided first: the sum of huge rows would overflow
        with np.errstate(over="ignore"):
            largest = float(max((most - centre).max(), (centre - least).max()))
        if not np.isfinite(largest):
            raise InputError("the rows of the bank lie further apart than float64 can say; scale the features down")
        largest = largest or 1.0
        columns = np.zeros((n_rows, n_features + 1), dtype=np.float32)
        squared_reach = 0.0
        for part in chunks(n_rows, rows_per_chunk(n_features)):
            rows = (gather(part) - centre) / largest
            squares = np.vecdot(rows, rows)
            squared_reach = max(squared_reach, float(squares.max()))
            columns[part, :-1] = rows
            if centred:
                columns[part, -1] = -0.5 * squares
        return cls(columns, centre, largest, float(np.sqrt(squared_reach)))

    @property
    def margin(self) -> float:
        """Twice what float32 can change in a key.

        A sum of s products is off by at most s units of rounding times the sum of their sizes, in whatever order it
        is taken, and rounding its factors adds three; queries are scaled so that sizes sum to at most 1.5·reach².
        """
        return float(2.0 * (self.columns.shape[1] + 4) * FLOAT32_UNIT * 1.5 * self.reach**2 * 1.01)

    def scaled_queries(self, queries: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Return queries to multiply with the columns, and each one's size before it was scaled.

        A query far away is brought to the bank's reach, which changes no order.
        """
        with np.errstate(over="ignore"):
            centred = queries - self.centre
        centred[~np.isfinite(centred).all(axis=1)] = 0.0  # beyond float64: infinitely far from every row
        sizes = np.abs(centred).max(axis=1, keepdims=True)
        centred /= np.where(sizes > 0.0, sizes, 1.0)
        lengths = np.sqrt(np.vecdot(centred, centred))[:, np.newaxis]
        scaled = np.empty((len(queries), queries.shape[1] + 1), dtype=np.float32)
        with np.errstate(over="ignore", under="ignore"):
            original = sizes / self.largest
            scale = np.minimum(original, self.reach / np.maximum(lengths, 1.0))
            scaled[:, :-1] = centred * scale
            scaled[:, -1:] = np.divide(scale, original, out=np.ones_like(scale), where=original > scale)
        return scaled, (original * lengths)[:, 0]

    def distance_bound(
        self, scaled: NDArray[np.float32], sizes: NDArray[np.float64], floor: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """Return a distance that rows with at least this key cannot exceed."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            key = (floor.astype(np.float64) - self.margin) / scaled[:, -1]
            squares = sizes**2 * (1.0 + CANCELLATION) - 2.0 * key
            bound = self.largest * np.sqrt(np.maximum(squares, 0.0))
        return np.where(np.isfinite(bound), bound, np.inf)


class Shortlist:
    """The rows of the bank that may be among the k nearest of each query, as tiles of keys come in."""

    def __init__(self, n_queries: int, k: int, margin: float) -> None:
        self.k, self.margin = k, np.float32(margin)
        self.length = 0
        #: k keys of rows seen, the least of them first: the k-th largest key of all is at least that.
        self.best = np.full((n_queries, k), -np.inf, dtype=np.float32)
        self._found: list[Listed] = []

    def add(self, keys: NDArray[np.float32], first_place: int, queries: NDArray[np.intp] | None = None) -> None:
        """Take the keys of consecutive rows of the bank, for all queries or for these.

        The keys are split into interleaved blocks. The k-th largest of the blocks' maxima is at most the k-th largest
        key, so only blocks whose maximum reaches it are looked into.
        """
        width = keys.shape[1]
        size = max(1, min(LARGEST_BLOCK, width // (4 * self.k)))
        n_blocks = width // size
        if n_blocks * size < width:
            self.add(keys[:, n_blocks * size :], first_place + n_blocks * size, queries)
        blocks = keys[:, : n_blocks * size].reshape(len(keys), size, n_blocks)
        maxima = blocks.max(axis=1) if size > 1 else blocks[:, 0]
        floor = self._raise_floor(maxima, queries) - self.margin
        row, block = np.nonzero(maxima >= floor[:, np.newaxis])
        picked = blocks[row, :, block]
        entry, member = np.nonzero(picked >= floor[row, np.newaxis])
        row, key = row[entry], picked[entry, member]
        place = member * n_blocks + block[entry] + first_place
        self._found.append(Listed(row if queries is None else queries[row], place, key))
        self.length += len(place)

    def _raise_floor(self, maxima: NDArray[np.float32], queries: NDArray[np.intp] | None) -> NDArray[np.float32]:
        best = self.best if queries is None else self.best[queries]
        joined = np.concatenate([best, maxima], axis=1)
        joined.partition(joined.shape[1] - self.k, axis=1)
        best = joined[:, -self.k :]
        if queries is None:
            self.best = best.copy()
        else:
            self.best[queries] = best
        floor: NDArray[np.float32] = best[:, 0]
        return floor

    def listed(self) -> tuple[Listed, NDArray[np.float32]]:
        """Return the pairs that can still be among the k nearest, and each query's k-th largest key."""
        query, place, key = (np.concatenate(parts) for parts in zip(*self._found, strict=True))
        pairs = Listed(query, place, key).where(key >= self.best[query, 0] - self.margin)
        order = np.lexsort((-pairs.key, pairs.query))
        pairs = Listed(*(column[order] for column in pairs))  # type: ignore[arg-type]
        starts = np.searchsorted(pairs.query, np.arange(len(self.best)))
        kth: NDArray[np.float32] = pairs.key[starts + self.k - 1]
        return pairs.where(pairs.key >= kth[pairs.query] - self.margin), kth


@dataclass(frozen=True, eq=False)
class Clusters:
    """A bank sorted into lists of rows near a common centre.

    Attributes:
        centres: One per list.
        radii: The distance from each centre to the furthest row of its list.
        bounds: Where each list begins among the rows, and where the last one ends.
    """

    centres: NDArray[np.float64]
    radii: NDArray[np.float64]
    bounds: NDArray[np.int64]


def listed_rows(keys: Keys, rows: NDArray[np.float64], k: int) -> Shortlist | None:
    """Return the short list of these queries against the whole bank, or None where it would be too long."""
    scaled, _ = keys.scaled_queries(rows)
    shortlist = Shortlist(len(rows), k, keys.margin)
    n_rows = len(keys.columns)
    buffer = np.empty((len(rows), min(n_rows, ROWS_PER_TILE)), dtype=np.float32)
    for tile in chunks(n_rows, ROWS_PER_TILE):
        products = buffer[:, : tile.stop - tile.start]
        np.matmul(scaled, keys.columns[tile].T, out=products)
        shortlist.add(products, tile.start)
        if shortlist.length > LONGEST_LIST and len(rows) > 1:
            return None
    return shortlist


def listed_clusters(
    keys: Keys, clusters: Clusters, probes: int | None, rows: NDArray[np.float64], k: int
) -> Shortlist | None:
    """Return the short list of these queries against the lists that each of them visits.

    With `probes`, these are as many of the nearest lists, and more where they hold fewer than k rows. Without, they
    are all lists that can matter: by the triangle inequality no row of a list is nearer to a query than the centre is,
    less the radius, and lists where that is more than the k-th smallest distance so far are left out.
    """
    from scipy.spatial.distance import cdist

    scaled, sizes = keys.scaled_queries(rows)
    shortlist = Shortlist(len(rows), k, keys.margin)
    with np.errstate(over="ignore"):  # scaled as the keys are, so that squares neither overflow nor vanish
        distances = keys.largest * cdist(rows / keys.largest, clusters.centres / keys.largest)
    distances[np.isnan(distances)] = np.inf
    ranks = np.empty(distances.shape, dtype=np.intp)
    order = np.argsort(distances, axis=1, kind="stable")
    np.put_along_axis(ranks, order, np.arange(distances.shape[1])[np.newaxis], axis=1)
    n_rows_by_rank = np.cumsum(np.diff(clusters.bounds)[order], axis=1)
    first = 1 + np.sum(n_rows_by_rank < k, axis=1, keepdims=True)
    reached = np.maximum(first, probes or 0)
    wanted = ranks < reached
    while True:
        for place in np.flatnonzero(wanted.any(axis=0)):
            queries, part = np.flatnonzero(wanted[:, place]), slice(*clusters.bounds[place : place + 2])
            products = scaled[queries] @ keys.columns[part].T
            reaches = products.max(axis=1, initial=-np.inf) >= shortlist.best[queries, 0] - shortlist.margin
            if reaches.any():
                shortlist.add(products[reaches], part.start, queries[reaches])
        if shortlist.length > LONGEST_LIST and len(rows) > 1:
            return None
        if probes is not None or (reached >= distances.shape[1]).all():
            return shortlist
        furthest = keys.distance_bound(scaled, sizes, shortlist.best[:, 0])[:, np.newaxis]
        is_new = (ranks >= reached) & (distances - clusters.radii <= furthest)
        reached = 2 * reached + 2
        wanted = is_new & (ranks < reached)


def shortlists(
    search: Callable[[NDArray[np.float64]], Shortlist | None],
    queries: NDArray[Any],
    part: slice,
    *,
    prepare: Prepare | None,
    size: int,
) -> Iterator[tuple[slice, NDArray[np.float64], Shortlist]]:
    """Yield runs of this part of the queries, checked and prepared, with their short lists.

    A run whose list is too long is halved.
    """
    for offset in chunks(part.stop - part.start, size):
        run = slice(part.start + offset.start, part.start + offset.stop)
        refuse_non_finite(queries[run], first_row=run.start)
        waiting = [(run, gathered(queries, prepare)(run))]
        while waiting:
            run, rows = waiting.pop()
            shortlist = search(rows)
            if shortlist is not None:
                yield run, rows, shortlist
                continue
            half = len(rows) // 2
            middle = run.start + half
            waiting += [(slice(middle, run.stop), rows[half:]), (slice(run.start, middle), rows[:half])]
