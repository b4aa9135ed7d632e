"""Sorting the rows of a bank into clusters by k-means."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from gem_ood.features import chunks, rows_per_chunk
from gem_ood.scores.neighbors.bank import Bank
from gem_ood.scores.neighbors.clusters import Clusters
from gem_ood.scores.neighbors.comparing import DISTANCE_ROUNDING
from gem_ood.scores.neighbors.layout import Prepare, gathered

__all__ = ["cluster"]

#: k-means sees this many rows for each list.
SAMPLE_PER_LIST = 64


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
    clusters = Clusters(centres.rows, radii * (1.0 + DISTANCE_ROUNDING), bounds)
    return np.argsort(lists, kind="stable"), clusters
