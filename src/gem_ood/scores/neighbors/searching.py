"""Searching a bank once: functions of queries and rows that check both and make the bank themselves."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.features import as_features, chunks, refuse_non_finite, rows_per_chunk
from gem_ood.scores.neighbors.bank import Bank
from gem_ood.scores.neighbors.products import ProductBank

__all__ = ["kth_distances", "mean_largest_products", "nearest_rows"]


def kth_distances(queries: ArrayLike, bank: ArrayLike, k: int) -> NDArray[np.float64]:
    """Return the Euclidean distance of each query to its k-th nearest row of the bank.

    >>> kth_distances([[0.0], [10.0]], [[1.0], [3.0], [8.0]], 2)
    array([3., 7.])
    """
    return Bank.of(_checked(bank, "bank")).kth_distances(_checked(queries, "queries"), k)


def nearest_rows(queries: ArrayLike, bank: ArrayLike, k: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return distances and places of the k nearest rows of the bank, n × k each, nearest first; a tie by its place.

    >>> distances, places = nearest_rows([[0.0]], [[3.0], [1.0], [8.0]], 2)
    >>> distances, places
    (array([[1., 3.]]), array([[1, 0]]))
    """
    return Bank.of(_checked(bank, "bank")).nearest_rows(_checked(queries, "queries"), k)


def mean_largest_products(queries: ArrayLike, bank: ArrayLike, k: int) -> NDArray[np.float64]:
    """Return the mean of the k largest inner products of each query with the rows of the bank.

    >>> mean_largest_products([[1.0, 0.0]], [[3.0, 9.0], [1.0, 0.0], [-5.0, 0.0]], 2)
    array([2.])
    """
    return ProductBank.of(_checked(bank, "bank")).mean_largest(_checked(queries, "queries"), k)


def _checked(X: ArrayLike, name: str) -> NDArray[Any]:
    rows = as_features(X, name=name)
    for part in chunks(len(rows), rows_per_chunk(rows.shape[1])):
        refuse_non_finite(rows[part], first_row=part.start, name=name)
    return rows
