"""Comparing queries with rows in float64: the distances of pairs, and of every query to every row.

Lengths below and above what squares can hold are computed of scaled differences, so that they are right at any scale.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gem_ood.features import chunks, rows_per_chunk
from gem_ood.scores.neighbors.layout import Layout
from gem_ood.scores.neighbors.pairs import Measured

__all__ = ["DISTANCE_ROUNDING", "all_distances", "compared", "lengths", "measured", "pairwise"]

#: Squares of differences below and above this are lost to float64; such distances are computed again, scaled.
SMALLEST_SQUARE, LARGEST_SQUARE = 1e-280, 1e280

#: A distance that rows must not exceed is raised by this, so that rounding leaves none of them outside.
DISTANCE_ROUNDING = 1e-9


def lengths(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the length of each row; squares that float64 cannot hold are taken of scaled rows.

    >>> lengths(np.array([[3.0, 4.0], [3e-200, 4e-200]]))
    array([5.e+000, 5.e-200])
    """
    squares = np.vecdot(differences, differences)
    is_lost = (squares < SMALLEST_SQUARE) | ~(squares < LARGEST_SQUARE)
    found: NDArray[np.float64] = np.sqrt(squares)
    if is_lost.any():
        sizes = np.abs(differences[is_lost]).max(axis=1)
        divisors = np.where((sizes > 0.0) & np.isfinite(sizes), sizes, 1.0)[:, np.newaxis]
        scaled = differences[is_lost] / divisors
        found[is_lost] = np.where(np.isfinite(sizes), divisors[:, 0] * np.sqrt(np.vecdot(scaled, scaled)), np.inf)
    return found


def measured(layout: Layout, rows: NDArray[np.float64], query: NDArray[np.intp], place: NDArray[np.intp]) -> Measured:
    """Return these pairs of a query among the rows and a distinct row's rank with their distances, sorted."""
    found = np.empty(len(query))
    for part in chunks(len(found), rows_per_chunk(rows.shape[1])):
        with np.errstate(over="ignore"):
            found[part] = lengths(rows[query[part]] - layout.at(place[part]))
    order = np.lexsort((place, found, query))
    return Measured(query[order], place[order], found[order])


def pairwise(queries: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distance of each query to each row."""
    from scipy.spatial.distance import cdist

    found: NDArray[np.float64] = cdist(queries, rows)
    is_lost = (found < np.sqrt(SMALLEST_SQUARE)) | ~(found < np.sqrt(LARGEST_SQUARE))
    query, row = np.nonzero(is_lost)
    for part in chunks(len(query), rows_per_chunk(rows.shape[1])):
        with np.errstate(over="ignore"):
            found[query[part], row[part]] = lengths(queries[query[part]] - rows[row[part]])
    return found


def compared(
    queries: NDArray[np.float64],
    rows_at: Callable[[slice], NDArray[np.float64]],
    n_rows: int,
    compare: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Return what each query compared with each of so many rows gives."""
    found = np.empty((len(queries), n_rows))
    for part in chunks(n_rows, rows_per_chunk(queries.shape[1])):
        found[:, part] = compare(queries, rows_at(part))
    return found


def all_distances(layout: Layout, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distance of each of these queries to each distinct row of the bank."""
    return compared(rows, layout.at, len(layout.distinct), pairwise)
