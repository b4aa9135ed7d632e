"""Comparing queries with the whole bank, where a short list would be too long to be of use.

Squares from float64 products decide all but the rows that tie; if even these are many, differences decide.
"""

import numpy as np
from numpy.typing import NDArray

from gem_ood.features import chunks, rows_per_chunk
from gem_ood.scores.neighbors.comparing import all_distances, compared, measured, pairwise
from gem_ood.scores.neighbors.keys import Keys
from gem_ood.scores.neighbors.layout import Layout
from gem_ood.scores.neighbors.pairs import picked_pairs, reaching, starts

__all__ = ["kth_and_nearest"]

#: Of so many rows that tie by float64 products, each pair is computed by differences; of more, all pairs at once.
MOST_TIED = 512

#: So few queries are compared with the whole bank by differences at once.
FEW_QUERIES = 4

#: Half the distance from 1 to the next float64.
FLOAT64_UNIT = 2.0**-53

#: Queries further out than this many times the bank's size are compared by differences only.
LARGEST_LENGTH = 1e100


def kth_and_nearest(
    layout: Layout, keys: Keys, rows: NDArray[np.float64], k: int, *, wants_nearest: bool
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return the k-th distance of each query and, where it is wanted, the rank of its nearest distinct row."""
    if len(rows) <= FEW_QUERIES:  # most of the time goes into preparing the bank, which is done once here
        return _by_differences(layout, rows, k)
    squares, slack = _all_squares(layout, keys, rows)
    kth = _kth_of_all(layout, squares, k)
    slack = 2.0 * (slack + (rows.shape[1] + 8) * FLOAT64_UNIT * np.abs(kth))
    is_open = squares <= (kth + slack)[:, np.newaxis]
    is_nearer = squares < (kth - slack)[:, np.newaxis]
    n_nearer = _n_rows(layout, is_nearer)
    is_open ^= is_nearer
    is_tied = ~np.isfinite(slack) | (np.count_nonzero(is_open, axis=1) > MOST_TIED)
    is_first = squares <= (squares.min(axis=1) + slack)[:, np.newaxis] if wants_nearest else None
    if is_first is not None:
        is_tied |= np.count_nonzero(is_first, axis=1) > MOST_TIED
    distances, ranks = np.empty(len(rows)), np.zeros(len(rows), dtype=np.intp)
    if is_tied.any():
        distances[is_tied], ranks[is_tied] = _by_differences(layout, rows[is_tied], k)
    if not is_tied.all():
        decided = rows[~is_tied]
        pairs = measured(layout, decided, *picked_pairs(is_open[~is_tied]))
        weights = layout.weights(pairs.place)
        distances[~is_tied] = pairs.distance[reaching(pairs.query, weights, len(decided), k - n_nearer[~is_tied])]
        if is_first is not None:
            pairs = measured(layout, decided, *picked_pairs(is_first[~is_tied]))
            ranks[~is_tied] = pairs.place[starts(pairs.query, len(decided))]
    return distances, ranks


def _by_differences(layout: Layout, rows: NDArray[np.float64], k: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    found = all_distances(layout, rows)
    return _kth_of_all(layout, found, k), found.argmin(axis=1)


def _n_rows(layout: Layout, is_picked: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return how many rows of the bank the distinct rows picked for each query stand for."""
    if layout.counts is None:
        return np.asarray(np.count_nonzero(is_picked, axis=1))
    query, place = picked_pairs(is_picked)
    return np.bincount(query, layout.counts[place], minlength=len(is_picked)).astype(np.intp)


def _all_squares(
    layout: Layout, keys: Keys, rows: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return squared distances to all distinct rows, less the query's own square, and how far off they may be.

    Those of outliers come from their distances, so that their size does not count.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        queries = (rows - keys.centre) / keys.largest
        lengths = np.sqrt(np.vecdot(queries, queries))
    is_beyond = ~(lengths < LARGEST_LENGTH)
    queries[is_beyond] = lengths[is_beyond] = 0.0
    doubled = -2.0 * queries
    squares = np.empty((len(rows), len(layout.distinct)))
    for part in chunks(squares.shape[1], rows_per_chunk(rows.shape[1])):
        with np.errstate(over="ignore", invalid="ignore"):  # of outliers, replaced below
            others = layout.at(part) - keys.centre
            others /= keys.largest
            np.matmul(doubled, others.T, out=squares[:, part])
            squares[:, part] += np.vecdot(others, others)
    outliers = layout.outliers
    with np.errstate(over="ignore"):
        found = compared(rows, lambda part: layout.at(outliers[part]), len(outliers), pairwise) / keys.largest
        squares[:, outliers] = found**2 - lengths[:, np.newaxis] ** 2
    slack = 2.0 * (rows.shape[1] + 8) * FLOAT64_UNIT * (lengths + keys.reach) ** 2
    slack[is_beyond] = np.inf
    return squares, slack


def _kth_of_all(layout: Layout, found: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """Return the k-th smallest of each row, where each distinct row counts for those it stands for."""
    last = min(k, found.shape[1]) - 1
    kth: NDArray[np.float64] = np.partition(found, last, axis=1)[:, last]
    if layout.counts is None:
        return kth
    for row, distances in enumerate(found):
        nearer = np.flatnonzero(distances < kth[row])  # fewer than k
        nearer = nearer[np.argsort(distances[nearer])]
        place = np.searchsorted(np.cumsum(layout.counts[nearer]), k)
        if place < len(nearer):
            kth[row] = distances[nearer[place]]
    return kth
