"""Calibration: the share of in-distribution rows that was asked for, and the share that is kept."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from gem_ood.errors import InputError
from gem_ood.features import as_scores
from gem_ood.thresholds import RankedScores, Threshold, conformal_threshold, rows_needed

__all__ = ["CONFIDENCE", "KeptShares", "kept_shares"]

#: Shares to ask for: evenly, then closer towards 1, where detectors work.
ASKED = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995, 0.999)

#: The probability of the range from `low` to `high`.
CONFIDENCE = 0.95

#: Numbers of rows kept whose probability is computed; more than these are taken in even steps.
N_COUNTS = 20_000

#: The probability that may lie outside of those numbers, at each end.
NEGLIGIBLE = 1e-7

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class KeptShares:
    """The shares of in-distribution rows kept by conformal thresholds, beside the range that luck explains.

    Attributes:
        asked: The true positive rates asked for, as many as the calibration rows allow.
        realised: The share of the test rows at or above the conformal threshold of each.
        low: What the realised share is at least, with probability 97.5 %, if calibration and test rows are
            exchangeable.
        high: What it is at most, with probability 97.5 %.
        n_calibration: Number of calibration rows.
        n_test: Number of in-distribution rows whose shares these are.
        own_asked: The true positive rate that the detector's own threshold was asked for.
        own_realised: The share of the test rows that this threshold keeps.
        own_low: What that share is at least, with probability 97.5 %, if calibration and test rows are exchangeable.
        own_high: What it is at most, with probability 97.5 %.
        own_chance: How likely it is, then, that the share lies as far out as it does, on either side.
    """

    asked: Floats
    realised: Floats
    low: Floats
    high: Floats
    n_calibration: int
    n_test: int
    own_asked: float
    own_realised: float
    own_low: float
    own_high: float
    own_chance: float

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as lists and numbers that JSON can write."""
        return {
            "asked": self.asked.tolist(),
            "realised": self.realised.tolist(),
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "n_calibration": self.n_calibration,
            "n_test": self.n_test,
            "own": {
                "asked": self.own_asked,
                "realised": self.own_realised,
                "low": self.own_low,
                "high": self.own_high,
                "chance": self.own_chance,
            },
        }


def kept_shares(
    calibration_scores: ArrayLike | RankedScores, id_scores: ArrayLike, *, threshold: Threshold
) -> KeptShares:
    """Return what share of in-distribution rows conformal thresholds keep, for many shares asked for.

    The rows kept of n_test, by the j-th smallest of n calibration scores, are beta-binomial(n_test, n + 1 − j, j): as
    many test rows lie above that score as the ranks of exchangeable rows have it (B5).

    Args:
        calibration_scores: One score per calibration row, those that the detector's threshold is from, or its
            `ranked_calibration` where it has one.
        id_scores: One score per in-distribution test row.
        threshold: The detector's own threshold.

    Example:
        >>> found = kept_shares(range(99), range(50), threshold=conformal_threshold(range(99), tpr=0.9))
        >>> found.asked[:3].tolist(), found.realised[:3].tolist(), found.own_realised
        ([0.5, 0.55, 0.6], [0.02, 0.12, 0.22], 0.82)
        >>> found.low[:3].tolist(), found.high[:3].tolist()
        ([0.34, 0.38, 0.44], [0.66, 0.72, 0.76])
    """
    if not isinstance(threshold, Threshold):
        raise InputError(f"threshold is {threshold!r}; pass a detector's threshold_, from gem_ood.thresholds")
    inside = np.sort(as_scores(id_scores, name="id_scores"))
    calibration: Floats | RankedScores
    if isinstance(calibration_scores, RankedScores):
        calibration, n_calibration = calibration_scores, calibration_scores.n_rows
    else:
        calibration = np.sort(as_scores(calibration_scores, name="calibration_scores"))
        n_calibration = len(calibration)
        if threshold.n_rows > n_calibration:
            raise InputError(
                f"threshold is of {threshold.n_rows} calibration rows but {n_calibration} scores came; pass all of "
                f"them, or the detector's ranked_calibration where it has one"
            )
    shares = sorted({*ASKED, threshold.tpr})
    asked = [share for share in shares if rows_needed(tpr=share) <= n_calibration]
    cuts = [_conformal(calibration, share) for share in asked]
    ranges = np.array([_KeptLaw.of(cut, calibration, len(inside)).range() for cut in cuts])
    own = _KeptLaw.of(threshold, calibration, len(inside))
    own_realised = float(_share_kept(inside, np.array([threshold.value]))[0])
    own_low, own_high = own.range()
    return KeptShares(
        asked=np.array(asked),
        realised=_share_kept(inside, np.array([cut.value for cut in cuts])),
        low=ranges[:, 0],
        high=ranges[:, 1],
        n_calibration=n_calibration,
        n_test=len(inside),
        own_asked=threshold.tpr,
        own_realised=own_realised,
        own_low=own_low,
        own_high=own_high,
        own_chance=own.chance(own_realised),
    )


def _conformal(calibration: Floats | RankedScores, share: float) -> Threshold:
    if isinstance(calibration, RankedScores):
        return calibration.threshold(tpr=share)
    return conformal_threshold(calibration, tpr=share, assume_sorted=True)


def _share_kept(ordered: Floats, cuts: Floats) -> Floats:
    return np.asarray((len(ordered) - np.searchsorted(ordered, cuts, side="left")) / len(ordered))


@dataclass(frozen=True, eq=False)
class _KeptLaw:
    """How many of n_test rows are kept, if they and the calibration rows are exchangeable.

    Where calibration scores tie with the threshold, more rows are kept than their ranks say: then the law of the first
    of the tied scores bounds the number from below, and that of the score beneath them from above. Of ranked scores it
    is not known which are tied, so they count as if they were.
    """

    fewest: "_Counts"
    most: "_Counts | None"
    n_test: int

    @classmethod
    def of(cls, cut: Threshold, calibration: Floats | RankedScores, n_test: int) -> "_KeptLaw":
        """Return the law for a threshold among calibration scores; None stands for no bound from above."""
        if isinstance(calibration, RankedScores):
            first, is_tied = cut.order - 1, True
        else:
            first, last = (int(np.searchsorted(calibration, cut.value, side=side)) for side in ("left", "right"))
            is_tied = last - first >= 2
        if not is_tied:
            counts = _Counts.of(cut.order, cut.n_rows, n_test)
            return cls(counts, counts, n_test)
        most = _Counts.of(first, cut.n_rows, n_test) if first else None
        return cls(_Counts.of(first + 1, cut.n_rows, n_test), most, n_test)

    def range(self) -> tuple[float, float]:
        """Return the ends of the central range of the share kept."""
        tail = 0.5 * (1.0 - CONFIDENCE)
        high = self.n_test if self.most is None else self.most.quantile(1.0 - tail)
        return self.fewest.quantile(tail) / self.n_test, high / self.n_test

    def chance(self, share: float) -> float:
        """Return how likely a share is that lies as far out as this one, or farther, on either side."""
        n_kept = round(share * self.n_test)
        at_least = 1.0 if self.most is None else 1.0 - self.most.up_to(n_kept - 1)
        return float(np.clip(2.0 * min(self.fewest.up_to(n_kept), at_least), 0.0, 1.0))


@dataclass(frozen=True, eq=False)
class _Counts:
    """A beta-binomial law on a grid of its likely counts; SciPy's own quantiles are too slow for many rows."""

    counts: NDArray[np.intp]
    cumulated: Floats

    @classmethod
    def of(cls, order: int, n_calibration: int, n_test: int) -> "_Counts":
        above, below = n_calibration + 1 - order, order
        expected = stats.beta.ppf([NEGLIGIBLE, 1.0 - NEGLIGIBLE], above, below)
        first = int(stats.binom.ppf(NEGLIGIBLE, n_test, expected[0]))
        last = int(stats.binom.ppf(1.0 - NEGLIGIBLE, n_test, expected[1]))
        step = -(-(last - first + 1) // N_COUNTS)
        counts = np.arange(max(first, 0), last + 1, step)
        cumulated = np.cumsum(stats.betabinom.pmf(counts, n_test, above, below))
        return cls(counts, cumulated / cumulated[-1])

    def quantile(self, level: float) -> int:
        return int(self.counts[np.searchsorted(self.cumulated, level)])

    def up_to(self, count: int) -> float:
        """Return the probability of at most so many."""
        place = int(np.searchsorted(self.counts, count, side="right")) - 1
        return 0.0 if place < 0 else float(self.cumulated[place])
