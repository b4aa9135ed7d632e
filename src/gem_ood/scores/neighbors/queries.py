"""How queries are gone through: each different one once, in parts on all cores, in runs with a short list each."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.features import chunks, refuse_non_finite, rows_per_chunk
from gem_ood.gaussians.parallel import run_in_parts
from gem_ood.scores.neighbors.layout import Gather, Prepare, first_of_equal_rows, gathered
from gem_ood.scores.neighbors.shortlist import ROWS_PER_TILE, Shortlist

__all__ = ["QUERIES_PER_CHUNK", "are_many", "distinct_queries", "given_up_runs", "in_parts", "shortlists"]

#: Keys of so many queries are computed at once: with a tile of the bank, few enough to stay in the outer caches.
QUERIES_PER_CHUNK = 128

#: More neighbours than this, and more than this share of the bank, are found by comparing with the whole bank.
MOST_NEIGHBORS, LARGEST_SHARE = 512, 1.0 / 32.0

#: So many float64 numbers are held where queries are compared with the whole bank.
NUMBERS_PER_COMPARISON = 1 << 21


def distinct_queries(queries: NDArray[Any], prepare: Prepare | None) -> tuple[Gather, int, NDArray[np.intp] | slice]:
    """Return what gathers each different query once, how many there are, and which of them every query is.

    Inputs that a network does not answer to all give the same row, often of zeros; it is searched for once.
    """
    for part in chunks(len(queries), rows_per_chunk(queries.shape[1])):
        refuse_non_finite(queries[part], first_row=part.start)
    gather = gathered(queries, prepare)
    first = first_of_equal_rows(gathered(queries, None), *queries.shape)
    if first is None:
        return gather, len(queries), slice(None)
    distinct, inverse = np.unique(first, return_inverse=True)
    return lambda part: gather(distinct[part]), len(distinct), inverse


def in_parts(work: Callable[[slice], None], shape: tuple[int, ...], n_queries: int, k: int) -> None:
    """Search for the k nearest rows of a bank of this shape, a part of the queries on each core."""
    n_rows, width = shape
    if not 1 <= k <= n_rows:
        raise InputError(f"k is {k} but the bank has {n_rows} rows; pass k from 1 to {n_rows}, or more rows")
    tile_bytes = 8 * min(QUERIES_PER_CHUNK, n_queries) * min(ROWS_PER_TILE, n_rows)
    run_in_parts(work, n_queries, operations=2.0 * n_queries * n_rows * width, bytes_per_part=tile_bytes)


def are_many(k: int, n_rows: int) -> bool:
    """Return whether the k nearest of so many rows are found sooner without a short list."""
    return k > max(MOST_NEIGHBORS, LARGEST_SHARE * n_rows)


def shortlists(
    search: Callable[[NDArray[np.float64]], Shortlist | None] | None,
    gather: Gather,
    part: slice,
    size: int,
    given_up: list[NDArray[np.intp]],
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float64], Shortlist]]:
    """Yield runs of this part of the queries, with their rows and short lists.

    A run whose list is too long is halved. Queries that are given up are noted; without a search, that is all of them.
    """
    if search is None:
        given_up.append(np.arange(part.start, part.stop))
        return
    for offset in chunks(part.stop - part.start, size):
        run = slice(part.start + offset.start, part.start + offset.stop)
        waiting = [(np.arange(run.start, run.stop), gather(run))]
        while waiting:
            where, rows = waiting.pop()
            shortlist = search(rows)
            if shortlist is None:
                half = len(rows) // 2
                waiting += [(where[half:], rows[half:]), (where[:half], rows[:half])]
                continue
            if shortlist.is_long.any():
                given_up.append(where[shortlist.is_long])
                where, rows = where[~shortlist.is_long], rows[~shortlist.is_long]
            if len(where):
                yield where, rows, shortlist


def given_up_runs(
    gather: Gather, given_up: list[NDArray[np.intp]], n_rows: int
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float64]]]:
    """Yield queries and their rows, as many at a time as may be compared with so many rows at once."""
    if not given_up:
        return
    queries = np.concatenate(given_up)
    for run in chunks(len(queries), max(1, NUMBERS_PER_COMPARISON // n_rows)):
        yield queries[run], gather(queries[run])
