"""The one threshold at which a false positive rate is read, in each convention (P50)."""

import math
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Convention", "OperatingPoint", "openood_operating_point", "paper_operating_point"]

Convention = Literal["paper", "openood"]


class OperatingPoint(NamedTuple):
    """A threshold, and the two rates there, in the terms of its convention."""

    threshold: float
    tpr: float
    fpr: float


def paper_operating_point(
    id_scores: NDArray[np.float64], ood_scores: NDArray[np.float64], tpr: Fraction
) -> OperatingPoint:
    """Return the ID score whose recall, the share of ID rows from it up, is nearest tpr (of two, the higher).

    Example:
        >>> paper_operating_point(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 2.5]), Fraction(3, 4))
        OperatingPoint(threshold=2.0, tpr=0.75, fpr=0.5)
    """
    n_id = len(id_scores)
    wanted = tpr * n_id
    rank = n_id - math.ceil(wanted)
    threshold = np.partition(id_scores, rank)[rank]
    kept = int(np.count_nonzero(id_scores >= threshold))
    n_higher = int(np.count_nonzero(id_scores > threshold))
    if n_higher > 0 and wanted - n_higher < kept - wanted:
        threshold, kept = id_scores[id_scores > threshold].min(), n_higher
    false_positives = int(np.count_nonzero(ood_scores >= threshold))
    return OperatingPoint(float(threshold), kept / n_id, false_positives / len(ood_scores))


def openood_operating_point(
    id_scores: NDArray[np.float64], ood_scores: NDArray[np.float64], tpr: Fraction
) -> OperatingPoint:
    """Return the lowest OOD score at or below which at least the share tpr of OOD rows lies; OOD is positive.

    Example:
        >>> openood_operating_point(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 2.5]), Fraction(3, 4))
        OperatingPoint(threshold=2.5, tpr=1.0, fpr=0.5)
    """
    n_ood = len(ood_scores)
    n_wanted = math.ceil(tpr * n_ood)
    if n_wanted > 1 and (n_wanted - 1) / n_ood >= float(tpr):  # equal in floats, as OpenOOD compares: tpr=5/7 of 7
        n_wanted -= 1
    threshold = np.partition(ood_scores, n_wanted - 1)[n_wanted - 1]
    flagged = int(np.count_nonzero(ood_scores <= threshold))
    false_positives = int(np.count_nonzero(id_scores <= threshold))
    return OperatingPoint(float(threshold), flagged / n_ood, false_positives / len(id_scores))
