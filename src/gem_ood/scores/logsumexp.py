"""Log-sum-exp over the classes of each row.

SciPy's own costs 100 µs a call and several temporaries the size of its input; scoring one row has 40 µs in all.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.gaussians.blas import row_sums

__all__ = ["log_sum_above", "log_sum_exp"]

#: What lies this far below the largest adds nothing to a sum of float64. Its exponential would be slow in float32,
#: whose smallest numbers are not handled at full speed.
NEGLIGIBLE = -80.0


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
    values: NDArray[Any], best: NDArray[np.intp], log_weights: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return log Σ_i w_i exp(values[:, i] − v) for each row, v being its value at the given place; overwrites values.

    Without weights that place must be the largest, so that the sum is at least one.

    >>> log_sum_above(np.array([[3.0, 3.0], [0.0, -5000.0]]), np.array([0, 0]))
    array([0.69314718, 0.        ])
    """
    n_rows, n_values = values.shape
    places = np.arange(0, n_rows * n_values, n_values)
    places += best
    values -= values.take(places)[:, np.newaxis]
    if log_weights is not None:
        values += log_weights.astype(values.dtype)
        return log_sum_exp(values, overwrite=True)
    np.maximum(values, NEGLIGIBLE, out=values)
    total: NDArray[np.float64] = np.log(row_sums(np.exp(values, out=values)), dtype=np.float64)
    return total
