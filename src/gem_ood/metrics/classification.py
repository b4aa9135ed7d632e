"""The classifier's own test error, which detection is reported beside (P53)."""

import numpy as np
from numpy.typing import ArrayLike

from gem_ood.errors import InputError
from gem_ood.features import as_labels

__all__ = ["error_rate"]


def error_rate(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Return the share of rows whose predicted class is not the label, from 0 to 1.

    Example:
        >>> error_rate([0, 1, 2, 2], [0, 1, 2, 1])
        0.25
    """
    n_rows, n_predicted = _count_rows(labels), _count_rows(predictions)
    if n_predicted != n_rows:
        raise InputError(f"predictions has {n_predicted} rows but labels has {n_rows}; pass one prediction per label")
    expected = as_labels(labels, n_rows)
    predicted = as_labels(predictions, n_rows, name="predictions")
    if n_rows == 0:
        raise InputError("labels is empty; pass at least one row")
    if expected.dtype.kind != predicted.dtype.kind:
        raise InputError(
            f"labels has dtype {expected.dtype} but predictions has dtype {predicted.dtype}; pass "
            f"both as whole numbers or both as strings"
        )
    return float(np.mean(expected != predicted))


def _count_rows(values: ArrayLike) -> int:
    shape = np.shape(values)
    return shape[0] if shape else 1  # a single value is refused by as_labels, which has the words for it
