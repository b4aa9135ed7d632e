"""Clusters: a bank sorted into lists of near rows, of which a query visits only those that can matter to it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gem_ood.scores.neighbors.keys import Keys
from gem_ood.scores.neighbors.shortlist import Shortlist

__all__ = ["Clusters", "listed_clusters"]


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


def listed_clusters(
    keys: Keys, clusters: Clusters, probes: int | None, rows: NDArray[np.float64], k: int
) -> Shortlist | None:
    """Return the short list of these queries against the lists that each of them visits.

    With `probes`, these are as many of the nearest lists, and more where they hold fewer than k rows. Without, they
    are all lists that can matter: by the triangle inequality no row of a list is nearer to a query than the centre is,
    less the radius, and lists where that is more than the k-th smallest distance so far are left out.
    """
    scaled, sizes = keys.scaled_queries(rows)
    # With probes no query is given up: compared with the whole bank, its answer would be another.
    shortlist = Shortlist(keys, len(rows), k, gives_up=probes is None)
    distances = _distances_to_centres(keys, clusters, rows)
    ranks = np.empty(distances.shape, dtype=np.intp)
    order = np.argsort(distances, axis=1, kind="stable")
    np.put_along_axis(ranks, order, np.arange(distances.shape[1])[np.newaxis], axis=1)
    n_rows_by_rank = np.cumsum(np.diff(clusters.bounds)[order], axis=1)
    first = 1 + np.sum(n_rows_by_rank < k, axis=1, keepdims=True)
    reached = np.maximum(first, probes or 0)
    wanted = ranks < reached
    while True:
        for place in np.flatnonzero(wanted.any(axis=0)):
            queries = np.flatnonzero(wanted[:, place] & ~shortlist.is_long)
            part = slice(*clusters.bounds[place : place + 2])
            products = scaled[queries] @ keys.columns[part].T
            reaches = products.max(axis=1, initial=-np.inf) >= shortlist.best[queries, 0] - shortlist.margin
            if reaches.any():
                shortlist.add(products[reaches], part.start, queries[reaches])
        if shortlist.is_too_long:
            return None
        if probes is not None or (reached >= distances.shape[1]).all():
            return shortlist
        furthest = keys.distance_bound(scaled, sizes, shortlist.best[:, 0])[:, np.newaxis]
        is_new = (ranks >= reached) & (~shortlist.is_long)[:, np.newaxis] & (distances - clusters.radii <= furthest)
        reached = 2 * reached + 2
        wanted = is_new & (ranks < reached)


def _distances_to_centres(keys: Keys, clusters: Clusters, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.spatial.distance import cdist

    with np.errstate(over="ignore"):  # scaled as the keys are, so that squares neither overflow nor vanish
        distances: NDArray[np.float64] = keys.largest * cdist(rows / keys.largest, clusters.centres / keys.largest)
    distances[np.isnan(distances)] = np.inf
    return distances
