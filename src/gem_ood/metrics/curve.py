"""The receiver operating characteristic, point by point, for plots (P49)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.features import as_scores

__all__ = ["Curve", "roc_curve"]


@dataclass(frozen=True, eq=False)
class Curve:
    """Rates at each distinct threshold, strictest first; a row at or above the threshold is accepted.

    Attributes:
        thresholds: Distinct scores of both sides, descending, after an `inf` that accepts no row.
        tpr: Share of in-distribution rows accepted.
        fpr: Share of out-of-distribution rows accepted.
    """

    thresholds: NDArray[np.float64]
    tpr: NDArray[np.float64]
    fpr: NDArray[np.float64]


def roc_curve(id_scores: ArrayLike, ood_scores: ArrayLike) -> Curve:
    """Return the share of each side accepted at every distinct threshold; in-distribution is positive.

    Example:
        >>> curve = roc_curve([2.0, 3.0], [1.0, 2.0])
        >>> curve.thresholds, curve.tpr, curve.fpr
        (array([inf,  3.,  2.,  1.]), array([0. , 0.5, 1. , 1. ]), array([0. , 0. , 0.5, 1. ]))
    """
    positive = as_scores(id_scores, name="id_scores")
    negative = as_scores(ood_scores, name="ood_scores")
    distinct = np.unique(np.concatenate([positive, negative]))[::-1]
    return Curve(
        thresholds=np.concatenate([[np.inf], distinct]),
        tpr=_shares_at_or_above(np.sort(positive), distinct),
        fpr=_shares_at_or_above(np.sort(negative), distinct),
    )


def _shares_at_or_above(ordered: NDArray[np.float64], thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
    counts = len(ordered) - np.searchsorted(ordered, thresholds, side="left")
    return np.concatenate([[0.0], counts / len(ordered)])
