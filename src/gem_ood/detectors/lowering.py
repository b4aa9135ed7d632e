"""Lowering: calibration scores less what rounding may change in the score of a row in a batch of another size.

A row that ties with a calibration row must count as tied, or the guarantees would not hold for ties.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import InputError
from gem_ood.thresholds import RankedScores

__all__ = ["lowered_ranks", "lowered_scores"]


def lowered_scores(
    scores: NDArray[np.float64], slack: NDArray[np.float64], rounding: ArrayLike = 0.0
) -> NDArray[np.float64]:
    """Return scores less their slack or the rounding given, one number or one per score, whichever is more.

    >>> lowered_scores(np.array([3.0, -np.inf]), np.array([1.0, np.inf]), rounding=2.0)
    array([  1., -inf])
    """
    given = np.asarray(rounding, dtype=np.float64)
    if given.shape not in ((), scores.shape) or not ((given >= 0.0) & (given < np.inf)).all():
        raise InputError("rounding must be one finite number of at least 0, or one per score; leave it out for none")
    with np.errstate(invalid="ignore"):
        lowered = scores - np.maximum(slack, given)
    return np.where(np.isinf(scores), scores, lowered)


def lowered_ranks(
    ranked: RankedScores, slack: NDArray[np.float64], rounding: float = 0.0
) -> RankedScores | NDArray[np.float64]:
    """Return the ranked scores of lowered rows; all of these, in order, where none of them was left out.

    What is taken off hangs on the score alone, and no score overtakes another by it. So of n scores, those that are
    lowered to below a lowered value were below that value before, and its rank bounds their number as it did.

    >>> lowered_ranks(RankedScores.of([1.0, 2.0, 2.0]), np.full(2, 0.5)).values
    array([0.5, 1.5])
    >>> lowered_ranks(RankedScores.of([2.0, 1.0]), np.full(2, 0.5))
    array([0.5, 1.5])
    """
    if np.ndim(rounding) != 0:
        raise InputError("rounding of ranked scores must be one finite number of at least 0; leave it out for none")
    lowered = lowered_scores(ranked.values, slack, rounding)
    lowered = np.minimum.accumulate(lowered[::-1])[::-1]  # changes nothing but where slack grows faster than scores
    if ranked.is_whole:
        return lowered
    is_first = np.append(True, lowered[1:] > lowered[:-1])  # of neighbours that became equal, the lowest rank stays
    return RankedScores(lowered[is_first], ranked.ranks[is_first], ranked.n_rows)
