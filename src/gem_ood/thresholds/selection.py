"""Which of many rows to flag: selections that bound the share of false alarms among the flagged rows."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import InputError
from gem_ood.features import as_scores
from gem_ood.thresholds.probability import as_probability

__all__ = ["benjamini_hochberg"]

#: Conformal p-values are ratios of counts and often lie exactly on the line i·level/m; each side of the
#: comparison is rounded two or three times by half an ulp, so that an equality may look broken by this
#: relative gap.
EQUALITY_TOLERANCE = 4 * float(np.finfo(np.float64).eps)


def benjamini_hochberg(p_values: ArrayLike, *, level: float) -> NDArray[np.bool_]:
    """Return which rows to declare out-of-distribution, of which at most the share level is expected wrong.

    Sort the m p-values; with i the last rank at which p_(i) <= i·level/m, the i smallest are declared.
    Conformal p-values that share one calibration set depend on one another, but positively (PRDS), and then
    the procedure keeps its bound: Bates, Candès, Lei, Romano & Sesia, "Testing for outliers with conformal
    p-values", Annals of Statistics 51(1), 2023.

    Args:
        p_values: One p-value per row, each in [0, 1].
        level: The false-discovery rate allowed: the expected share of ID rows among those declared.

    Example:
        >>> benjamini_hochberg([0.01, 0.9, 0.02, 0.04], level=0.05)
        array([ True, False,  True, False])
    """
    allowed = float(as_probability(level, name="level"))
    values = as_scores(p_values, name="p_values")
    outside = (values < 0) | (values > 1)
    if outside.any():
        row = int(np.argmax(outside))
        raise InputError(
            f"p_values row {row} is {float(values[row])!r} but a p-value lies in [0, 1]; pass p-values, not scores"
        )
    # scipy.stats.false_discovery_control compares without tolerance and loses rows that lie on the line.
    ordered = np.sort(values)
    line = np.arange(1, len(ordered) + 1) * allowed
    under = np.flatnonzero(ordered * len(ordered) <= line * (1 + EQUALITY_TOLERANCE))
    if len(under) == 0:
        return np.zeros(len(values), dtype=np.bool_)
    declared: NDArray[np.bool_] = values <= ordered[under[-1]]
    return declared
