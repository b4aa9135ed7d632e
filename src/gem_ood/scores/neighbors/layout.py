"""How a bank is laid out for searching: equal rows are listed once and counted, and outliers are set apart."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.features import chunks, rows_per_chunk

__all__ = ["Gather", "Layout", "Prepare", "first_of_equal_rows", "gathered"]

#: A row is outlying if it lies this many times as far out as half of the rows do, and few others do.
OUTLYING = 8.0
OUTLYING_SHARE = 0.02

#: The middle of the bank is the median of about this many rows.
ROWS_FOR_MEDIAN = 4096

Prepare = Callable[[NDArray[Any]], NDArray[np.float64]]
Gather = Callable[[NDArray[np.intp] | slice], NDArray[np.float64]]


def gathered(bank: NDArray[Any], prepare: Prepare | None) -> Gather:
    """Return a function that gives the prepared float64 rows at these places of the bank."""
    return partial(_gather, bank, prepare)


def _gather(bank: NDArray[Any], prepare: Prepare | None, places: NDArray[np.intp] | slice) -> NDArray[np.float64]:
    rows = bank[places]
    return rows.astype(np.float64, copy=False) if prepare is None else prepare(rows)


def first_of_equal_rows(gather: Gather, n_rows: int, n_features: int) -> NDArray[np.intp] | None:
    """Return for each row the place of the first that equals it, or None where no two are equal.

    Rows are compared only where their fingerprints agree. (If those of unequal rows ever do, some that are equal may
    not be recognised as such, which costs time only.)
    """
    prints = np.empty(n_rows, dtype=np.uint64)
    factors = np.random.default_rng(0).integers(1 << 63, size=n_features, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    for part in chunks(n_rows, rows_per_chunk(n_features)):
        words = np.ascontiguousarray(gather(part) + 0.0).view(np.uint64)  # −0 becomes 0
        np.sum((words ^ (words >> np.uint64(32))) * factors, axis=1, out=prints[part])
    _, first, inverse = np.unique(prints, return_index=True, return_inverse=True)
    if len(first) == n_rows:
        return None
    places: NDArray[np.intp] = first[inverse]
    repeated = np.flatnonzero(places != np.arange(n_rows))
    for part in chunks(len(repeated), rows_per_chunk(n_features)):
        rows = repeated[part]
        is_equal = (gather(rows) == gather(places[rows])).all(axis=1)
        places[rows[~is_equal]] = rows[~is_equal]
    return places


@dataclass(frozen=True, eq=False)
class Layout:
    """Which rows of a bank are searched, and how; a row is known by its rank among the distinct rows.

    Attributes:
        gather: What gives the prepared rows at places of the bank.
        distinct: Places of the first of each set of equal rows, rising.
        counts: How many rows each stands for; None where no two rows are equal.
        members: Places of all rows, by the distinct row they equal, then by place.
        core: Ranks of the distinct rows that have keys, rising.
        outliers: Ranks of the others.
    """

    gather: Gather
    distinct: NDArray[np.intp]
    counts: NDArray[np.intp] | None
    members: NDArray[np.intp]
    core: NDArray[np.intp]
    outliers: NDArray[np.intp]

    @classmethod
    def of(cls, gather: Gather, n_rows: int, n_features: int) -> Self:
        """Return the layout of these rows."""
        places = first_of_equal_rows(gather, n_rows, n_features)
        distinct, counts = np.arange(n_rows), None
        members = distinct
        if places is not None:
            distinct, counts = np.unique(places, return_counts=True)
            members = np.argsort(places, kind="stable")
        is_outlier = _are_outlying(lambda part: gather(distinct[part]), len(distinct), n_features)
        return cls(gather, distinct, counts, members, np.flatnonzero(~is_outlier), np.flatnonzero(is_outlier))

    def at(self, ranks: NDArray[np.intp] | slice) -> NDArray[np.float64]:
        """Return the distinct rows of these ranks."""
        return self.gather(ranks if self.counts is None else self.distinct[ranks])

    def weights(self, ranks: NDArray[np.intp]) -> NDArray[np.intp] | None:
        """Return how many rows each of these distinct rows stands for; None where each stands for itself."""
        return None if self.counts is None else self.counts[ranks]

    @property
    def n_core(self) -> int:
        """How many rows of the bank those with keys stand for."""
        return len(self.core) if self.counts is None else int(self.counts[self.core].sum())

    def nearest_members(
        self, ranks: NDArray[np.intp], distances: NDArray[np.float64], k: int
    ) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return distances and places of the k nearest rows that these distinct rows, nearest first, stand for."""
        if self.counts is None:
            return distances[:k], ranks[:k]
        last = np.searchsorted(np.cumsum(self.counts[ranks]), k)
        is_close = distances <= distances[last]  # those that tie with the last: the place decides
        ranks, distances = ranks[is_close], distances[is_close]
        starts = np.cumsum(self.counts)[ranks] - self.counts[ranks]
        n_members = np.minimum(self.counts[ranks], k)
        offsets = np.arange(n_members.sum()) - np.repeat(np.cumsum(n_members) - n_members, n_members)
        places, distances = self.members[np.repeat(starts, n_members) + offsets], np.repeat(distances, n_members)
        order = np.lexsort((places, distances))[:k]
        return distances[order], places[order]


def _are_outlying(gather: Gather, n_rows: int, n_features: int) -> NDArray[np.bool_]:
    sample = gather(np.arange(0, n_rows, max(1, n_rows // ROWS_FOR_MEDIAN)))
    middle = np.partition(sample, len(sample) // 2, axis=0)[len(sample) // 2]  # a mean of two could overflow
    sizes = np.empty(n_rows)
    with np.errstate(over="ignore"):
        for part in chunks(n_rows, rows_per_chunk(n_features)):
            sizes[part] = np.abs(gather(part) - middle).max(axis=1)
    if not np.isfinite(sizes).all():
        raise InputError("the rows of the bank lie further apart than float64 can say; scale the features down")
    n_inside = n_rows - int(OUTLYING_SHARE * n_rows)
    ordered = np.partition(sizes, [n_rows // 2, n_inside - 1])
    with np.errstate(over="ignore"):
        is_outlying: NDArray[np.bool_] = sizes > max(OUTLYING * ordered[n_rows // 2], ordered[n_inside - 1])
    return is_outlying
