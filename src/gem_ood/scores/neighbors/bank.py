"""Bank: rows made ready to be searched by distance."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gem_ood.features import chunks, rows_per_chunk
from gem_ood.scores.neighbors.clusters import Clusters, listed_clusters
from gem_ood.scores.neighbors.comparing import DISTANCE_ROUNDING, all_distances, measured, pairwise
from gem_ood.scores.neighbors.keys import Keys
from gem_ood.scores.neighbors.layout import Gather, Layout, Prepare, gathered
from gem_ood.scores.neighbors.pairs import Listed, Measured, reaching, starts
from gem_ood.scores.neighbors.queries import (
    QUERIES_PER_CHUNK,
    are_many,
    distinct_queries,
    given_up_runs,
    in_parts,
    shortlists,
)
from gem_ood.scores.neighbors.shortlist import Shortlist, listed_rows
from gem_ood.scores.neighbors.whole_bank import kth_and_nearest

__all__ = ["Bank"]

#: With lists, queries are gathered in larger runs, since each run visits most lists with a few of them.
QUERIES_PER_VISIT = 2048


@dataclass(frozen=True, eq=False)
class Bank:
    """Rows made ready to be searched by distance.

    Attributes:
        rows: The rows as they were given.
        layout: Which of them are searched, and how.
        keys: The float32 copy that draws up short lists.
        prepare: What is done to rows of the bank and to queries before distances are taken.
        clusters: Where each list of near rows lies among the keys, for a bank sorted by them.
        probes: How many lists a query visits; None visits all that matter.
    """

    rows: NDArray[Any]
    layout: Layout
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
        layout = Layout.of(gathered(rows, prepare), *rows.shape)
        keys = Keys.of_distances(lambda part: layout.at(layout.core[part]), len(layout.core), rows.shape[1])
        if clusters is not None:
            places = layout.distinct[layout.core]
            clusters = replace(clusters, bounds=np.searchsorted(places, clusters.bounds))
        return cls(rows, layout, keys, prepare, clusters, probes)

    def kth_distances(
        self, queries: NDArray[Any], k: int, nearest: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Return each query's distance to its k-th nearest row; fill `nearest` with the place of its nearest.

        Only pairs whose keys leave open on which side of the k-th they lie are computed in float64.
        """
        gather, n_queries, inverse = distinct_queries(queries, self.prepare)
        distances, ranks = np.empty(n_queries), np.empty(n_queries, dtype=np.intp)
        wants_nearest = nearest is not None

        def work(part: slice) -> None:
            given_up: list[NDArray[np.intp]] = []
            for where, rows, shortlist in self._shortlists(gather, part, k, given_up):
                listed, short = self._listed(shortlist)
                outliers = self._near_outliers(rows, shortlist.best[short, 0], k)
                if len(outliers[0]):
                    pairs = self._measured(rows, listed, outliers)
                    weights = self.layout.weights(pairs.place)
                    distances[where] = pairs.distance[reaching(pairs.query, weights, len(rows), k)]
                    ranks[where] = pairs.place[starts(pairs.query, len(rows))]
                    continue
                distances[where] = self._kth(rows, listed, k)
                if wants_nearest:
                    ranks[where] = self._nearest(rows, listed)
            for where, rows in given_up_runs(gather, given_up, len(self.layout.distinct)):
                found = kth_and_nearest(self.layout, self.keys, rows, k, wants_nearest=wants_nearest)
                distances[where], ranks[where] = found

        in_parts(work, self.rows.shape, n_queries, k)
        if nearest is not None:
            nearest[:] = self.layout.distinct[ranks[inverse]]
        return distances[inverse]

    def nearest_rows(self, queries: NDArray[Any], k: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return distances and places of the k nearest rows, n × k each, nearest first."""
        gather, n_queries, inverse = distinct_queries(queries, self.prepare)
        distances, places = np.empty((n_queries, k)), np.empty((n_queries, k), dtype=np.intp)
        nearest_members = self.layout.nearest_members

        def work(part: slice) -> None:
            given_up: list[NDArray[np.intp]] = []
            for where, rows, shortlist in self._shortlists(gather, part, k, given_up):
                listed, short = self._listed(shortlist)
                pairs = self._measured(rows, listed, self._near_outliers(rows, shortlist.best[short, 0], k))
                bounds = starts(pairs.query, len(rows) + 1)
                for row, start, stop in zip(where, bounds[:-1], bounds[1:], strict=True):
                    own = slice(start, stop)
                    distances[row], places[row] = nearest_members(pairs.place[own], pairs.distance[own], k)
            for where, rows in given_up_runs(gather, given_up, len(self.layout.distinct)):
                for row, found in zip(where, all_distances(self.layout, rows), strict=True):
                    order = np.argsort(found, kind="stable")
                    distances[row], places[row] = nearest_members(order, found[order], k)

        in_parts(work, self.rows.shape, n_queries, k)
        return distances[inverse], places[inverse]

    def _shortlists(
        self, gather: Gather, part: slice, k: int, given_up: list[NDArray[np.intp]]
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float64], Shortlist]]:
        """Yield queries, their rows and their short lists; note those that are given up."""
        k_listed = min(k, len(self.keys.columns))
        if self.probes is None and are_many(k, len(self.rows)):
            return shortlists(None, gather, part, QUERIES_PER_CHUNK, given_up)
        if self.clusters is None:
            search = partial(listed_rows, self.keys, k=k_listed)
            return shortlists(search, gather, part, QUERIES_PER_CHUNK, given_up)
        search = partial(listed_clusters, self.keys, self.clusters, self.probes, k=k_listed)
        return shortlists(search, gather, part, QUERIES_PER_VISIT, given_up)

    def _listed(self, shortlist: Shortlist) -> tuple[Listed, NDArray[np.intp]]:
        """Return what the short list holds, with ranks among all distinct rows and not only those that have keys."""
        listed, short = shortlist.listed()
        if len(self.layout.outliers):
            listed = listed._replace(place=self.layout.core[listed.place])
        return listed, short

    def _near_outliers(
        self, rows: NDArray[np.float64], floor: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the pairs of these queries with outliers that may be as near as a row whose key is this floor."""
        outliers, query, place = self.layout.outliers, [np.arange(0)], [np.arange(0)]
        bounds = np.full(len(rows), np.inf)
        if len(outliers) and self.layout.n_core >= k:
            bounds = self.keys.distance_bound(*self.keys.scaled_queries(rows), floor)
        for part in chunks(len(outliers), rows_per_chunk(rows.shape[1])):
            distances = pairwise(rows, self.layout.at(outliers[part]))
            near_query, near_place = np.nonzero(distances <= bounds[:, np.newaxis] * (1.0 + DISTANCE_ROUNDING))
            query.append(near_query)
            place.append(outliers[part][near_place])
        return np.concatenate(query), np.concatenate(place)

    def _measured(
        self, rows: NDArray[np.float64], listed: Listed, outliers: tuple[NDArray[np.intp], NDArray[np.intp]]
    ) -> Measured:
        query, place = np.concatenate([listed.query, outliers[0]]), np.concatenate([listed.place, outliers[1]])
        return measured(self.layout, rows, query, place)

    def _kth(self, rows: NDArray[np.float64], listed: Listed, k: int) -> NDArray[np.float64]:
        weights, margin = self.layout.weights(listed.place), np.float32(self.keys.margin)
        kth_key = listed.key[reaching(listed.query, weights, len(rows), k)][listed.query]
        is_nearer = listed.key > kth_key + margin
        nearer_weights = None if weights is None else weights[is_nearer]
        n_nearer = np.bincount(listed.query[is_nearer], nearer_weights, minlength=len(rows)).astype(np.intp)
        undecided = listed.at(~is_nearer & (listed.key >= kth_key - margin))
        pairs = measured(self.layout, rows, undecided.query, undecided.place)
        weights = self.layout.weights(pairs.place)
        kth: NDArray[np.float64] = pairs.distance[reaching(pairs.query, weights, len(rows), k - n_nearer)]
        return kth

    def _nearest(self, rows: NDArray[np.float64], listed: Listed) -> NDArray[np.intp]:
        largest = listed.key[starts(listed.query, len(rows))]
        close = listed.at(listed.key >= largest[listed.query] - np.float32(self.keys.margin))
        pairs = measured(self.layout, rows, close.query, close.place)
        nearest: NDArray[np.intp] = pairs.place[starts(pairs.query, len(rows))]
        return nearest
