"""What scores should be: the textbook's formulas in extended precision, in plain code that takes its time.

Class means, then the covariance of the rows less their class means (two passes, divisor N), its Cholesky factor, and
squared distances by a triangular solve for each class: no square is expanded and nothing is streamed. NumPy has these
steps for ``longdouble`` only as loops, which here they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Extended", "Reference", "fit_reference", "log_sum_exp"]

Extended = NDArray[np.longdouble]


@dataclass(frozen=True, eq=False)
class Reference:
    """Class means and one tied covariance, fitted to ``n_rows`` rows."""

    n_rows: int
    class_means: Extended
    covariance: Extended

    @cached_property
    def factor(self) -> Extended:
        """Lower triangular L with L Lᵀ the covariance."""
        lower = np.zeros_like(self.covariance)
        for j in range(len(lower)):
            column = self.covariance[j:, j] - lower[j:, :j] @ lower[j, :j]
            lower[j:, j] = column / np.sqrt(column[0])
        return lower

    @property
    def log_determinant(self) -> np.longdouble:
        """Of the covariance."""
        return 2 * np.log(np.diag(self.factor)).sum()

    @property
    def condition(self) -> float:
        """The condition number of the correlation matrix, by which gem-ood's promise goes."""
        scales = np.sqrt(np.diag(self.covariance))
        correlation = self.covariance / scales / scales[:, np.newaxis]
        return float(np.linalg.cond(correlation.astype(np.float64)))

    def squared_distances(self, rows: ArrayLike) -> Extended:
        """From each row to each class mean."""
        features = np.asarray(rows, np.longdouble)
        distances = np.empty((len(features), len(self.class_means)), np.longdouble)
        for place, mean in enumerate(self.class_means):
            whitened = _solve_lower(self.factor, (features - mean).T)
            distances[:, place] = np.sum(whitened**2, axis=0)
        return distances


def fit_reference(features: ArrayLike, labels: NDArray[Any]) -> Reference:
    """The reference fitted to these rows, each taken as exact."""
    rows = np.asarray(features, np.longdouble)
    classes = np.unique(labels)
    class_means = np.stack([rows[labels == name].mean(axis=0) for name in classes])
    centred = rows - class_means[np.searchsorted(classes, labels)]
    return Reference(len(rows), class_means, centred.T @ centred / len(rows))


def log_sum_exp(exponents: Extended) -> Extended:
    """Log Σ exp of each row."""
    largest = exponents.max(axis=1, keepdims=True)
    return np.log(np.exp(exponents - largest).sum(axis=1)) + largest[:, 0]


def _solve_lower(lower: Extended, right: Extended) -> Extended:
    solution = np.empty_like(right)
    for j in range(len(lower)):
        solution[j] = (right[j] - lower[j, :j] @ solution[:j]) / lower[j, j]
    return solution
