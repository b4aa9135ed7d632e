"""Laws of the squared distance of a row to its own class mean, and how far found distances and classes are from them.

With known parameters it is χ² with as many degrees of freedom as directions have variance. Two things move it: features
that are not Gaussian, or not of one covariance; and parameters that are estimated, which alone makes it a multiple of
an F law (Hotelling's) with the mean of B6. Both laws stand beside what is found, so that one cause is not taken for the
other. The classes that rows are of stand beside the priors in the same way.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtrik, betaincinv, chdtr, chdtri, fdtr

from gem_ood.errors import InputError
from gem_ood.gaussians import TiedGaussians

__all__ = ["ClassMix", "DistanceFit", "DistanceLaws", "Trust"]

Trust = Literal["close", "rough", "poor", "unclear"]

#: A Kolmogorov–Smirnov distance is the most by which any share computed from the law is off: 5 points are close and 15
#: are rough. What sampling alone would give, at 95 % confidence, is taken off first.
CLOSE_DISTANCE, ROUGH_DISTANCE = 0.05, 0.15

#: How many times the expected share of rows may lie beyond the point that matters most, the certified threshold's, and
#: how many rows more of all. At 95 % these are the same: 7.5 % of rows are close and 15 % are rough.
CLOSE_FACTOR, ROUGH_FACTOR = 1.5, 3.0
CLOSE_EXCESS, ROUGH_EXCESS = 0.025, 0.1

#: The Kolmogorov–Smirnov distance of n rows from their own law is below this over √n in 95 % of draws (Massart).
SAMPLING_DISTANCE = math.sqrt(0.5 * math.log(2.0 / 0.05))

#: The confidence of the intervals of shares.
CONFIDENCE = 0.95

#: So many rows drawn from a Gaussian put shares of them within MODEL_ERROR (three standard errors), well under what
#: counts as close.
MODEL_ROWS, MODEL_ERROR = 20_000, 0.01

#: At so many thresholds the effect of a class mix is looked for.
MIX_POINTS = 512


@dataclass(frozen=True)
class DistanceFit:
    """Squared distances of rows to their class mean beside the law that Gaussian classes give them.

    Attributes:
        name: The class; None for all rows.
        n_rows: How many rows.
        ratio: Mean squared distance over its expectation, the number of directions with variance.
        beyond: Share of rows beyond the χ² point that the share 1 − tpr is expected beyond.
        beyond_interval: Clopper and Pearson's 95 % interval of it.
        distance: Kolmogorov–Smirnov distance from χ².
        expected_ratio: What `ratio` would be for Gaussian rows, as parameters are estimated (B6); None if not known.
        expected_beyond: What `beyond` would be, likewise.
        distance_estimated: Kolmogorov–Smirnov distance from the law that estimated parameters give Gaussian rows.
    """

    name: Any
    n_rows: int
    ratio: float
    beyond: float
    beyond_interval: tuple[float, float]
    distance: float
    expected_ratio: float | None
    expected_beyond: float | None
    distance_estimated: float | None

    @property
    def shown_distance(self) -> float:
        """The part of `distance` that sampling does not explain."""
        return shown_distance(self.distance, self.n_rows)


@dataclass(frozen=True)
class ClassMix:
    """The classes of rows beside those that the priors say.

    Attributes:
        names: The classes.
        found: Share of rows of each; of rows without labels, share that is nearest to each.
        expected: The priors; of rows without labels, the share of rows of these Gaussians that is nearest to each.
        distance: Total variation between the two: no share of rows differs by more for this reason.
        shown_distance: The part of it that sampling does not explain, at 95 %.
        shown_effect: By how much the mix moves the share of rows whose own class's term of the score, log prior − ½ d²,
            is above some threshold, at the most, less what sampling explains. It is 0 where priors are equal, as such
            a score counts all classes alike.
    """

    names: tuple[Any, ...]
    found: tuple[float, ...]
    expected: tuple[float, ...]
    distance: float
    shown_distance: float
    shown_effect: float

    @property
    def is_off(self) -> bool:
        """Whether it differs by more than counts as close."""
        return max(self.shown_distance, self.shown_effect) > CLOSE_DISTANCE


class DistanceLaws:
    """χ² for known parameters and, where the counts behind the fit are known, Hotelling's for estimated ones."""

    def __init__(self, gaussians: TiedGaussians, counts: NDArray[np.int64] | None, tpr: float) -> None:
        self._rank, self._expected = gaussians.rank, 1.0 - tpr
        self._point = float(chdtri(gaussians.rank, 1.0 - tpr))
        self.n_fit: int | None = None
        # Shrinking the covariance changes the law, and so do fewer rows than give it a mean.
        if counts is not None and gaussians.shrinkage == 0.0:
            n_fit, k = int(counts.sum()), gaussians.n_classes
            if n_fit - k - self._rank - 1 > 0:
                self.n_fit, self._freedom = n_fit, n_fit - k - self._rank + 1
                self._scales = (1.0 + 1.0 / counts) * n_fit / self._freedom
                self._ratios = (1.0 + 1.0 / counts) * n_fit / (n_fit - k - self._rank - 1)

    def fit(self, distances: NDArray[np.float64], codes: NDArray[np.intp], *, name: Any) -> DistanceFit:
        """Return rows of these classes beside both laws."""
        n_beyond = int(np.count_nonzero(distances > self._point))
        known = self.n_fit is not None
        return DistanceFit(
            name=name,
            n_rows=len(distances),
            ratio=float(distances.mean() / self._rank),
            beyond=n_beyond / len(distances),
            beyond_interval=clopper_pearson(n_beyond, len(distances)),
            distance=ks_distance(chdtr(self._rank, distances)),
            expected_ratio=float(self._ratios[codes].mean()) if known else None,
            expected_beyond=1.0 - float(self._estimated(self._point, codes).mean()) if known else None,
            distance_estimated=ks_distance(self._estimated(distances, codes)) if known else None,
        )

    def _estimated(self, distances: NDArray[np.float64] | float, codes: NDArray[np.intp]) -> NDArray[np.float64]:
        return np.asarray(fdtr(self._rank, self._freedom, distances / (self._scales[codes] * self._rank)))


def ks_distance(probabilities: NDArray[np.float64]) -> float:
    """Return the Kolmogorov–Smirnov distance of values of a law's cdf from the uniform law."""
    ordered, n_rows = np.sort(probabilities), len(probabilities)
    steps = np.arange(n_rows + 1) / n_rows
    return float(max(np.max(steps[1:] - ordered), np.max(ordered - steps[:-1])))


def shown_distance(distance: float, n_rows: int) -> float:
    """Return the part of a Kolmogorov–Smirnov distance that sampling does not explain."""
    return max(0.0, distance - SAMPLING_DISTANCE / math.sqrt(n_rows))


def clopper_pearson(n_hits: int, n_rows: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a share."""
    tail = 0.5 * (1.0 - CONFIDENCE)
    low = 0.0 if n_hits == 0 else float(betaincinv(n_hits, n_rows - n_hits + 1, tail))
    high = 1.0 if n_hits == n_rows else float(betaincinv(n_hits + 1, n_rows - n_hits, 1.0 - tail))
    return low, high


def threshold_interval(scores: NDArray[np.float64], tpr: float) -> tuple[float, float]:
    """Return between which scores the threshold lies that keeps this share of the law the scores are from, at 95 %.

    How many of n scores are below it is binomial, whatever the law; an end is infinite where none need be beyond it.
    """
    n_rows, tail = len(scores), 0.5 * (1.0 - CONFIDENCE)
    fewest, most = (int(np.ceil(bdtrik(level, n_rows, 1.0 - tpr))) for level in (tail, 1.0 - tail))
    ordered = np.concatenate([[-np.inf], np.sort(scores), [np.inf]])
    return float(ordered[fewest]), float(ordered[most + 1])


def compare_mix(
    gaussians: TiedGaussians, counts: NDArray[np.int64], model_counts: NDArray[np.int64] | None = None
) -> ClassMix:
    """Return how many rows each class has beside its prior or, where given, beside its count of rows of the model."""
    found, n_rows = counts / counts.sum(), float(counts.sum())
    expected = gaussians.priors if model_counts is None else model_counts / model_counts.sum()
    # two samples differ as one would of this size
    size = n_rows if model_counts is None else 1.0 / (1.0 / n_rows + 1.0 / float(model_counts.sum()))
    distance = 0.5 * float(np.abs(found - expected).sum())
    # The mean over draws is at most this first term; one row moves the distance by 1 / n (McDiarmid).
    explained = 0.5 * float(np.sqrt(expected * (1.0 - expected) / size).sum())
    explained += math.sqrt(0.5 * math.log(1.0 / (1.0 - CONFIDENCE)) / size)
    effect = _mix_effect(gaussians, found - expected)
    # No chance explains a row of a class that has no prior.
    impossible = float(found[gaussians.priors == 0.0].sum()) if model_counts is None else 0.0
    return ClassMix(
        names=tuple(gaussians.classes.tolist()),
        found=tuple(found.tolist()),
        expected=tuple(np.asarray(expected).tolist()),
        distance=distance,
        shown_distance=max(0.0, impossible, distance - explained),
        shown_effect=max(0.0, impossible, effect - SAMPLING_DISTANCE / math.sqrt(size)),
    )


def _mix_effect(gaussians: TiedGaussians, excess: NDArray[np.float64]) -> float:
    """Return the most by which this excess of classes moves the share of own terms log π − ½ d² above a threshold."""
    priors, groups = np.unique(gaussians.priors, return_inverse=True)
    if len(priors) == 1:
        return 0.0
    grouped = np.bincount(groups, weights=excess)[priors > 0.0]
    log_priors = np.log(priors[priors > 0.0])
    # Classes of prior 0 are never above a threshold; where it is low enough, all others are.
    most = abs(float(grouped.sum()))
    radii = chdtri(gaussians.rank, np.linspace(0.01, 0.99, 50))
    thresholds = np.unique(log_priors[:, np.newaxis] - 0.5 * radii)
    thresholds = thresholds[:: max(1, len(thresholds) // MIX_POINTS)]
    reach = np.maximum(2.0 * (log_priors - thresholds[:, np.newaxis]), 0.0)
    return max(most, float(np.abs(chdtr(gaussians.rank, reach) @ grouped).max()))


def judge(shown: float, least_beyond: float, expected: float, n_rows: int) -> Trust:
    """Return how far to trust a law that is off by so much, with so large a share beyond its point."""
    close, rough = (
        min(factor * expected, expected + excess) * (1.0 + 1e-12)  # a limit met exactly is met
        for factor, excess in ((CLOSE_FACTOR, CLOSE_EXCESS), (ROUGH_FACTOR, ROUGH_EXCESS))
    )
    if shown <= CLOSE_DISTANCE and least_beyond <= close:
        return "close" if SAMPLING_DISTANCE / math.sqrt(n_rows) <= CLOSE_DISTANCE else "unclear"
    return "rough" if shown <= ROUGH_DISTANCE and least_beyond <= rough else "poor"


def judge_fits(overall: DistanceFit, by_class: tuple[DistanceFit, ...], expected: float) -> Trust:
    """Return how far to trust χ² for these rows."""
    # Classes that are off to either side can cancel in the whole: their mean counts where it is larger.
    by_row = sum(fit.n_rows * fit.shown_distance for fit in by_class) / overall.n_rows
    return judge(max(overall.shown_distance, by_row), overall.beyond_interval[0], expected, overall.n_rows)


def judge_mix(mix: ClassMix, expected: float, n_rows: int) -> Trust:
    """Return how far to trust the priors: another mix leaves rates rough at best, as not all depend on scores alone."""
    return worst(judge(mix.shown_effect, expected, expected, n_rows), "rough" if mix.is_off else "close")


def worst(*trusts: Trust) -> Trust:
    """Return the least trust of several.

    >>> worst("close", "rough", "unclear")
    'rough'
    """
    order: tuple[Trust, ...] = ("close", "unclear", "rough", "poor")
    return max(trusts, key=order.index)


def checked_counts(counts: ArrayLike | None, gaussians: TiedGaussians) -> NDArray[np.int64] | None:
    """Return the rows of each class behind a fit, checked; None stays None."""
    if counts is None:
        return None
    values = np.asarray(counts)
    if values.shape != (gaussians.n_classes,) or values.dtype.kind not in "iu" or (values < 1).any():
        raise InputError(
            f"counts must be {gaussians.n_classes} whole numbers of at least 1 but is {counts!r}; pass the rows of "
            f"each class behind the fit"
        )
    return values.astype(np.int64)
