"""Conformal p-values: how often an in-distribution row would score this low."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.features import as_scores

__all__ = ["conformal_p_values"]


def conformal_p_values(
    calibration_scores: ArrayLike, scores: ArrayLike, *, assume_sorted: bool = False
) -> NDArray[np.float64]:
    """Return, for each score, the conformal p-value of "this row is in-distribution".

    With n calibration scores it is (1 + how many of them are at or below the score) / (n + 1). For a row
    exchangeable with the calibration rows, P(p <= t) <= t for every t, ties or not; a small value speaks for
    out-of-distribution. A row is under the conformal threshold of order j (B5) exactly when p <= j / (n + 1).

    Args:
        calibration_scores: One score per held-out in-distribution row.
        scores: The scores to judge.
        assume_sorted: Promise, unchecked, that the calibration scores ascend, which saves sorting them.

    Example:
        >>> conformal_p_values([1.0, 2.0, 3.0, 4.0], [0.5, 2.0, 9.0])
        array([0.2, 0.6, 1. ])
    """
    calibration = as_scores(calibration_scores, name="calibration_scores")
    ordered = calibration if assume_sorted else np.sort(calibration)
    at_or_below = np.searchsorted(ordered, as_scores(scores), side="right")
    return np.asarray((1 + at_or_below) / (len(ordered) + 1), dtype=np.float64)
