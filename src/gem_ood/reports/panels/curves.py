"""ROC and precision-recall curves, reduced to the points that a drawing needs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import InputError
from gem_ood.features import as_scores
from gem_ood.metrics.labelled import labelled_sort

__all__ = ["DetectionCurves", "detection_curves"]

#: The area under a reduced curve differs from the exact one's by at most this, half of what is promised.
AREA_TOLERANCE = 5e-4

#: By how much more points are tried where the area is further off.
GROWTH = 1.3

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DetectionCurves:
    """The two curves of one set, from the strictest threshold to the mildest; in-distribution rows are positive.

    Attributes:
        fpr: Share of out-of-distribution rows kept, from 0 to 1.
        tpr: Share of in-distribution rows kept, for each `fpr`.
        recall: Share of in-distribution rows kept, from 0 to 1.
        precision: Share of the rows kept that are in-distribution, for each `recall`; 1 where no row is kept.
    """

    fpr: Floats
    tpr: Floats
    recall: Floats
    precision: Floats

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as lists that JSON can write."""
        return {
            "fpr": self.fpr.tolist(),
            "tpr": self.tpr.tolist(),
            "recall": self.recall.tolist(),
            "precision": self.precision.tolist(),
        }


def detection_curves(id_scores: ArrayLike, ood_scores: ArrayLike, *, n_points: int = 200) -> DetectionCurves:
    """Return the ROC and the precision-recall curve of two sets of scores, each as few of its own points.

    Every point is one of the exact curve, whose both ends are kept. The area under straight lines between them differs
    from the exact curve's by less than 0.001; a jagged curve gets more points than asked for where that takes them.

    Args:
        id_scores: One score per in-distribution row; higher = more in-distribution. Infinities are allowed.
        ood_scores: One score per out-of-distribution row.
        n_points: How many points a curve has at most, unless it is jagged.

    Example:
        >>> curves = detection_curves([2.0, 3.0], [1.0, 2.0])
        >>> curves.fpr.tolist(), curves.tpr.tolist()
        ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
        >>> curves.recall.tolist(), curves.precision.tolist()
        ([0.0, 0.5, 1.0, 1.0], [1.0, 1.0, 0.6666666666666666, 0.5])
    """
    if isinstance(n_points, bool) or not isinstance(n_points, int | np.integer) or n_points < 2:
        raise InputError(f"n_points is {n_points!r}; pass a whole number of at least 2, for example 200")
    inside, outside = as_scores(id_scores, name="id_scores"), as_scores(ood_scores, name="ood_scores")
    n_in_kept, n_kept = _counts(inside, outside)
    tpr = n_in_kept / len(inside)
    fpr = (n_kept - n_in_kept) / len(outside)
    precision = np.concatenate([[1.0], n_in_kept[1:] / n_kept[1:]])
    drawn = _reduced(fpr, tpr, int(n_points), _staircase_length)
    fewer = _reduced(tpr, precision, int(n_points), _envelope_length)
    return DetectionCurves(fpr[drawn], tpr[drawn], tpr[fewer], precision[fewer])


def _counts(inside: Floats, outside: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many in-distribution rows and how many rows at all are kept at each distinct score, 0 first."""
    bits = labelled_sort(inside, outside)[::-1]
    # Rows of one score differ in the lowest bit alone; unsigned, so that a change of sign is a large difference.
    is_last = np.append((bits[1:] ^ bits[:-1]).view(np.uint64) > 1, True)
    ends = np.flatnonzero(is_last)
    n_in_kept = np.cumsum(bits & 1)[ends]
    return np.concatenate([[0], n_in_kept]), np.concatenate([[0], ends + 1])


def _reduced(x: Floats, y: Floats, n_points: int, length: Callable[[Floats, Floats], Floats]) -> NDArray[np.intp]:
    """Return the places of the points to draw: the corners, thinned evenly along the curve if they are too many."""
    corners = _corners(x, y)
    x, y = x[corners], y[corners]
    exact = np.trapezoid(y, x)
    along = length(x, y)
    while n_points < len(corners):
        wanted = np.linspace(0.0, along[-1], n_points)
        right = np.clip(np.searchsorted(along, wanted), 1, len(along) - 1)
        places = np.unique(np.where(wanted - along[right - 1] < along[right] - wanted, right - 1, right))
        places = np.union1d(places, [0, len(corners) - 1])
        if abs(np.trapezoid(y[places], x[places]) - exact) <= AREA_TOLERANCE:
            return np.asarray(corners[places])
        n_points = int(GROWTH * n_points) + 1
    return corners


def _corners(x: Floats, y: Floats) -> NDArray[np.intp]:
    """Return the places where an upright or level run of the curve ends; points inside one change no drawing."""
    is_inside = np.zeros(len(x), dtype=np.bool_)
    for values in (x, y):
        is_same = values[1:] == values[:-1]
        is_inside[1:-1] |= is_same[1:] & is_same[:-1]
    return np.flatnonzero(~is_inside)


def _staircase_length(x: Floats, y: Floats) -> Floats:
    """Return how far along a curve that only rises each point lies."""
    return x + y


def _envelope_length(x: Floats, y: Floats) -> Floats:
    """Return how far along each point lies, by the lines over the curve that only fall and only rise.

    The curve itself has many teeth where few rows are kept, which would draw all points there.
    """
    falling = np.maximum.accumulate(y[::-1])[::-1]
    rising = np.maximum.accumulate(y[1:])  # the first point is 1 by convention
    return np.asarray(x + falling[0] - falling + np.concatenate([[0.0], rising - rising[0]]))
