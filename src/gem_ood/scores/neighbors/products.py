"""ProductBank: rows made ready to be searched by inner product."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gem_ood.features import chunks, rows_per_chunk
from gem_ood.scores.neighbors.comparing import compared
from gem_ood.scores.neighbors.keys import Keys
from gem_ood.scores.neighbors.layout import Gather, gathered
from gem_ood.scores.neighbors.pairs import Listed, starts
from gem_ood.scores.neighbors.queries import (
    QUERIES_PER_CHUNK,
    are_many,
    distinct_queries,
    given_up_runs,
    in_parts,
    shortlists,
)
from gem_ood.scores.neighbors.shortlist import listed_rows

__all__ = ["ProductBank"]


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
        gather, n_queries, inverse = distinct_queries(queries, None)
        means, gather_bank = np.empty(n_queries), gathered(self.rows, None)
        search = None if are_many(k, len(self.rows)) else partial(listed_rows, self.keys, k=k)

        def work(part: slice) -> None:
            given_up: list[NDArray[np.intp]] = []
            for where, rows, shortlist in shortlists(search, gather, part, QUERIES_PER_CHUNK, given_up):
                listed, _ = shortlist.listed()
                found = _products(rows, gather_bank, listed)
                order = np.lexsort((-found, listed.query))
                picked = order[starts(listed.query, len(rows))[:, np.newaxis] + np.arange(k)]
                means[where] = (found[picked] / k).sum(axis=1)
            for where, rows in given_up_runs(gather, given_up, len(self.rows)):
                found = compared(rows, gather_bank, len(self.rows), _all_products)
                largest = np.partition(found, found.shape[1] - k, axis=1)[:, -k:]
                means[where] = (-np.sort(-largest, axis=1) / k).sum(axis=1)

        in_parts(work, self.rows.shape, n_queries, k)
        return means[inverse]


def _products(rows: NDArray[np.float64], gather: Gather, pairs: Listed) -> NDArray[np.float64]:
    found = np.empty(len(pairs.query))
    for part in chunks(len(found), rows_per_chunk(rows.shape[1])):
        np.vecdot(rows[pairs.query[part]], gather(pairs.place[part]), out=found[part])
    return found


def _all_products(queries: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    # Not a matrix product, whose order of summation depends on how many queries there are.
    products: NDArray[np.float64] = np.vecdot(queries[:, np.newaxis], rows[np.newaxis])
    return products
