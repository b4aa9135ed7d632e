"""Log-sum-exp over the classes of each row.

SciPy's own costs 100 µs a call and several temporaries the size of its input; scoring one row has 40 µs in all.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.gaussians.blas import row_sums

__all__ = ["log_sum_above", "log_sum_above_place", "log_sum_exp"]

#: What lies this far below the largest adds nothing to a float64 sum of up to some thousand terms. Much smaller numbers
#: would be slow in float32 too: the smallest are not handled at full speed.
NEGLIGIBLE = -44.0

#: Of fewer values all exponentials are taken: looking for those that count would take longer.
FEW_VALUES = 4096

#: Where a larger share of the values counts, gathering them costs more than it saves.
MOST_THAT_COUNT = 1 / 8


def log_sum_exp(values: NDArray[Any], *, overwrite: bool = False) -> NDArray[np.float64]:
    """Return log Σ_i exp(values[:, i]) for each row; `overwrite` lets it use the input as its working space.

    >>> log_sum_exp(np.array([[0.0, 0.0], [-5000.0, -np.inf]]))
    array([ 6.93147181e-01, -5.00000000e+03])
    """
    largest = values.max(axis=1)
    if np.isneginf(largest.min()):  # a row of nothing but log 0: its sum is log 0, not 0/0
        largest = np.where(np.isneginf(largest), 0.0, largest)
    work = np.subtract(values, largest[:, np.newaxis], out=values if overwrite else None)
    with np.errstate(divide="ignore", under="ignore"):
        total: NDArray[np.float64] = np.log(np.exp(work, out=work).sum(axis=1), dtype=np.float64)
    total += largest
    return total


def log_sum_above(
    values: NDArray[Any], reference: NDArray[Any], log_weights: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return log Σ_i w_i exp(values[:, i] − reference) for each row; overwrites values.

    Without weights the reference must be the largest of each row, so that the sum is at least one.

    >>> log_sum_above(np.array([[3.0, 3.0], [0.0, -5000.0]]), np.array([3.0, 0.0]))
    array([0.69314718, 0.        ])
    """
    values -= reference[:, np.newaxis]
    if log_weights is not None:
        values += log_weights.astype(values.dtype)
        return log_sum_exp(values, overwrite=True)
    return np.asarray(np.log(_sums_of_exponentials(values), dtype=np.float64))


def log_sum_above_place(values: NDArray[Any], place: int, log_weights: NDArray[np.float64] | None = None) -> float:
    """Return what `log_sum_above` does, for the values of a single row and the one at a place; overwrites them.

    >>> round(log_sum_above_place(np.array([3.0, 3.0]), 0), 6)
    0.693147
    """
    values -= values[place]
    if log_weights is not None:
        return float(log_sum_exp((values + log_weights)[np.newaxis])[0])
    np.maximum(values, NEGLIGIBLE, out=values)
    return math.log(np.add.reduce(np.exp(values, out=values)))


def _sums_of_exponentials(values: NDArray[Any]) -> NDArray[Any]:
    """Return Σ_i exp(values[:, i]) of values whose largest in each row is 0; overwrites them.

    Exponentials are the dearest step, and of many classes few are near enough to a row to add anything.
    """
    n_rows, n_values = values.shape
    if values.flags.f_contiguous:  # column by column, as the logits of few classes are
        np.maximum(values, NEGLIGIBLE, out=values)
        return np.asarray(np.add.reduce(np.exp(values, out=values), axis=1))
    if values.size > FEW_VALUES:
        is_counted = values > NEGLIGIBLE
        if np.count_nonzero(is_counted) <= MOST_THAT_COUNT * values.size:
            places = np.flatnonzero(is_counted)
            return np.bincount(places // n_values, weights=np.exp(values.take(places)), minlength=n_rows)
    np.maximum(values, NEGLIGIBLE, out=values)
    return row_sums(np.exp(values, out=values))
