"""Ranking inversions: where a score puts a point above another that is likelier (E9)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import InputError
from gem_ood.features import as_scores

__all__ = ["Inversions", "ranking_inversions"]

#: Points that are equal by symmetry differ by a few roundings of their densities and scores; these are ties.
TIE_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Inversions:
    """For each point, the likeliest of the points that the score ranks under it.

    Attributes:
        partners: The place of that point where it is likelier than the point itself, and −1 elsewhere.
        factors: How many times likelier it is; 1 where there is no inversion.

    >>> found = ranking_inversions(density=[0.1, 0.4, 0.2], score=[3.0, 2.0, 1.0])
    >>> found.partners, found.factors
    (array([ 1, -1, -1]), array([4., 1., 1.]))
    >>> found.worst
    (0, 1)
    """

    partners: NDArray[np.intp]
    factors: NDArray[np.float64]

    @property
    def is_inverted(self) -> NDArray[np.bool_]:
        """Which points are ranked above a likelier one."""
        inverted: NDArray[np.bool_] = self.partners >= 0
        return inverted

    @property
    def worst(self) -> tuple[int, int] | None:
        """The last point ranked too high by the largest factor and the point it should be under; None for none."""
        if not self.is_inverted.any():
            return None
        place = int(np.flatnonzero(self.factors >= self.factors.max() * (1.0 - TIE_TOLERANCE))[-1])
        return place, int(self.partners[place])


def ranking_inversions(density: ArrayLike, score: ArrayLike) -> Inversions:
    """Return where a score disagrees with the density about which of two points is the likelier.

    x is inverted if some x' has p(x') > p(x) and score(x') < score(x). A score that is aligned with the density has
    no inversion, one that is not must have some (E9); rescaling a score by an increasing function changes none.
    Differences under 1e-9 of the density or of the score's range are ties.

    Args:
        density: The positive density at each point.
        score: The score at each point; higher = more in-distribution.

    Example:
        >>> ranking_inversions([0.1, 0.4, 0.2], np.log([0.1, 0.4, 0.2])).worst is None
        True
    """
    densities, scores = as_scores(density, name="density"), as_scores(score, name="score")
    if densities.shape != scores.shape:
        raise InputError(
            f"score has {len(scores)} values but density has {len(densities)}; pass one of each for every point"
        )
    if not (np.isfinite(densities) & (densities > 0.0)).all() or not np.isfinite(scores).all():
        raise InputError("density must be positive and score finite at every point; leave the other points out")
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    likeliest = _running_argmax(densities[order])
    n_lower = np.searchsorted(ordered, scores - TIE_TOLERANCE * np.ptp(scores), side="left")
    candidates = order[likeliest[np.maximum(n_lower - 1, 0)]]
    factors = densities[candidates] / densities
    is_inverted = (n_lower > 0) & (factors > 1.0 + TIE_TOLERANCE)
    return Inversions(np.where(is_inverted, candidates, -1), np.where(is_inverted, factors, 1.0))


def _running_argmax(values: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return, for each place, where the largest value up to it stands."""
    is_record = values >= np.maximum.accumulate(values)
    places: NDArray[np.intp] = np.maximum.accumulate(np.where(is_record, np.arange(len(values)), 0))
    return places
