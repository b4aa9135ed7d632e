"""Pairs of a query and a row of the bank: short listed with their keys, or sorted by their distances."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Listed", "Measured", "picked_pairs", "reaching", "starts"]


class Listed(NamedTuple):
    """Pairs of a query and a row of the bank that may be near it: by query, then by falling key."""

    query: NDArray[np.intp]
    place: NDArray[np.intp]
    key: NDArray[np.float32]

    def at(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> "Listed":
        """Return some of the pairs."""
        return Listed(self.query[which], self.place[which], self.key[which])


class Measured(NamedTuple):
    """Pairs of a query and a row of the bank whose distance is known: by query, then by distance, then by place."""

    query: NDArray[np.intp]
    place: NDArray[np.intp]
    distance: NDArray[np.float64]


def starts(query: NDArray[np.intp], n_queries: int) -> NDArray[np.intp]:
    """Return where each query's pairs begin, in pairs that are sorted by query.

    >>> starts(np.array([0, 0, 1, 1, 1]), 2)
    array([0, 2])
    """
    return np.searchsorted(query, np.arange(n_queries))


def reaching(
    query: NDArray[np.intp], weights: NDArray[np.intp] | None, n_queries: int, k: int | NDArray[np.intp]
) -> NDArray[np.intp]:
    """Return where the weights of each query's pairs (one each, if None), summed in their order, reach k.

    >>> reaching(np.array([0, 0, 1, 1, 1]), np.array([1, 5, 1, 1, 1]), 2, 3)
    array([1, 4])
    """
    first = starts(query, n_queries)
    if weights is None:
        return first + (k - 1)
    sums = np.cumsum(weights)
    return np.searchsorted(sums, sums[first] - weights[first] + k)


def picked_pairs(is_picked: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the query and the place of each that is picked: np.nonzero, faster."""
    query, place = np.divmod(np.flatnonzero(is_picked), is_picked.shape[1])
    return query, place
