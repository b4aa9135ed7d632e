"""Every detection metric at once, in a named convention, and functions that give one each (P49 to P52)."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import InputError
from gem_ood.features import as_scores
from gem_ood.metrics.areas import Areas, measure_areas
from gem_ood.metrics.intervals import bootstrap_intervals, delong_interval
from gem_ood.metrics.labelled import labelled_sort
from gem_ood.metrics.operating_point import (
    Convention,
    OperatingPoint,
    openood_operating_point,
    paper_operating_point,
)
from gem_ood.thresholds import as_probability

__all__ = ["Evaluation", "aupr", "auroc", "evaluate", "fpr_at_tpr"]

Scores = NDArray[np.float64]

#: The fields that have an interval, in the order in which they are printed.
METRICS = {
    "fpr": "FPR",
    "auroc": "AUROC",
    "aupr_in": "AUPR in",
    "aupr_out": "AUPR out",
    "detection_error": "Detection error",
}


@dataclass(frozen=True)
class Evaluation:
    """How well scores separate two sets of rows. Rates and areas are fractions; print it for percentages.

    Attributes:
        fpr: False positive rate at `threshold`.
        auroc: Probability that an ID row scores above an OOD row, ties half.
        aupr_in: Area under precision and recall with ID positive.
        aupr_out: The same with OOD positive.
        detection_error: Smallest mean of the two error rates over all thresholds.
        threshold: Where fpr is read. "paper": rows from it up are kept; "openood": from it down, flagged.
        tpr: True positive rate realised there: ID rows kept ("paper") or OOD rows flagged ("openood").
        convention: "paper" or "openood".
        n_id: Number of in-distribution rows.
        n_ood: Number of out-of-distribution rows.
        intervals: A (low, high) per metric name, if asked for.
    """

    fpr: float
    auroc: float
    aupr_in: float
    aupr_out: float
    detection_error: float
    threshold: float
    tpr: float
    convention: Convention
    n_id: int
    n_ood: int
    intervals: Mapping[str, tuple[float, float]] | None = None

    def __str__(self) -> str:
        lines = [f"{self.n_id} in-distribution and {self.n_ood} out-of-distribution rows, {self.convention} convention"]
        for name, title in METRICS.items():
            label = f"{title} at {self.tpr:.2%} TPR" if name == "fpr" else title
            line = f"{label:<20} {getattr(self, name):>8.2%}"
            if self.intervals is not None and name in self.intervals:
                low, high = self.intervals[name]
                line += f"  [{low:.2%}, {high:.2%}]"
            lines.append(line)
        lines.append(f"{'Threshold':<20} {self.threshold:>8.6g}")
        return "\n".join(lines)


def evaluate(
    id_scores: ArrayLike,
    ood_scores: ArrayLike,
    *,
    tpr: float = 0.95,
    convention: Convention = "paper",
    intervals: Literal["bootstrap", "delong"] | None = None,
    confidence: float = 0.95,
    n_resamples: int = 200,
    random_state: int | np.random.Generator | None = 0,
) -> Evaluation:
    """Return FPR at a TPR, AUROC, both AUPRs and the detection error of two sets of scores.

    The conventions differ in the positive side, and so in what "FPR at 95 % TPR" means:

    - "paper": ID is positive. The threshold is the ID score whose recall is nearest tpr (of two, the higher
      recall), and fpr is the share of OOD rows at or above it. AUPR is average precision.
    - "openood", as OpenOOD 1.5 computes: OOD is positive. The threshold is the lowest at which at least tpr
      of the OOD rows are flagged, and fpr is the share of ID rows flagged too. AUPR is the trapezoidal area.

    AUROC and the detection error are the same in both. AUPR depends on the ratio of ID to OOD rows: compare
    it only between runs of one ratio. The threshold here has seen the answers: never put a detector to work
    with it, calibrate with `gem_ood.thresholds` on held-out ID rows instead.

    Args:
        id_scores: One score per in-distribution row; higher = more in-distribution. Infinities are allowed.
        ood_scores: One score per out-of-distribution row.
        tpr: The true positive rate at which fpr is read.
        convention: "paper" or "openood".
        intervals: "bootstrap" (percentile, every metric), "delong" (AUROC only) or None.
        confidence: The confidence of each interval.
        n_resamples: How many bootstrap resamples to draw.
        random_state: Seed or generator of the resamples.

    Example:
        >>> result = evaluate([3.0, 4.0, 5.0, 6.0], [1.0, 2.0, 3.5, 0.0], tpr=0.75)
        >>> result.fpr, result.auroc, result.threshold
        (0.0, 0.9375, 4.0)
        >>> print(result)
        4 in-distribution and 4 out-of-distribution rows, paper convention
        FPR at 75.00% TPR       0.00%
        AUROC                  93.75%
        AUPR in                95.00%
        AUPR out               95.00%
        Detection error        12.50%
        Threshold                   4
    """
    share = as_probability(tpr, name="tpr")
    sureness = float(as_probability(confidence, name="confidence"))
    _check_options(convention, intervals, n_resamples)
    inside, outside = as_scores(id_scores, name="id_scores"), as_scores(ood_scores, name="ood_scores")
    point = _operating_point(inside, outside, share, convention)
    areas = _areas(inside, outside, convention)
    found: dict[str, tuple[float, float]] | None = None
    if intervals == "delong":
        found = {"auroc": delong_interval(inside, outside, confidence=sureness)}
    elif intervals == "bootstrap":
        ranges = bootstrap_intervals(
            inside,
            outside,
            lambda drawn_in, drawn_out: (
                _operating_point(drawn_in, drawn_out, share, convention).fpr,
                *_areas(drawn_in, drawn_out, convention),
            ),
            confidence=sureness,
            n_resamples=n_resamples,
            generator=np.random.default_rng(random_state),
        )
        found = dict(zip(METRICS, ranges, strict=True))
    return Evaluation(
        fpr=point.fpr,
        **areas._asdict(),
        threshold=point.threshold,
        tpr=point.tpr,
        convention=convention,
        n_id=len(inside),
        n_ood=len(outside),
        intervals=found,
    )


def fpr_at_tpr(
    id_scores: ArrayLike, ood_scores: ArrayLike, *, tpr: float = 0.95, convention: Convention = "paper"
) -> float:
    """Return the false positive rate at a true positive rate, as `evaluate` reads it, without its sort.

    Example:
        >>> fpr_at_tpr([3.0, 4.0, 5.0, 6.0], [1.0, 2.0, 3.5, 0.0], tpr=0.95)
        0.25
    """
    share = as_probability(tpr, name="tpr")
    _check_options(convention)
    inside, outside = as_scores(id_scores, name="id_scores"), as_scores(ood_scores, name="ood_scores")
    return _operating_point(inside, outside, share, convention).fpr


def auroc(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return the probability that an in-distribution row scores above an out-of-distribution row, ties half.

    Example:
        >>> auroc([2.0, 3.0], [1.0, 2.0])
        0.875
    """
    return evaluate(id_scores, ood_scores).auroc


def aupr(
    id_scores: ArrayLike,
    ood_scores: ArrayLike,
    *,
    positive: Literal["in", "out"] = "in",
    convention: Convention = "paper",
) -> float:
    """Return the area under precision and recall with the in- or the out-of-distribution side positive.

    Example:
        >>> aupr([2.0, 3.0], [1.0, 2.0], positive="out")
        0.8333333333333333
    """
    if positive not in ("in", "out"):
        raise InputError(f'positive must be "in" or "out" but is {positive!r}; pass one of these')
    result = evaluate(id_scores, ood_scores, convention=convention)
    return result.aupr_in if positive == "in" else result.aupr_out


def _operating_point(inside: Scores, outside: Scores, tpr: Fraction, convention: Convention) -> OperatingPoint:
    if convention == "paper":
        return paper_operating_point(inside, outside, tpr)
    return openood_operating_point(inside, outside, tpr)


def _areas(inside: Scores, outside: Scores, convention: Convention) -> Areas:
    return measure_areas(labelled_sort(inside, outside), len(inside), trapezoid=convention == "openood")


def _check_options(convention: str, intervals: str | None = None, n_resamples: int = 1) -> None:
    if convention not in ("paper", "openood"):
        raise InputError(f'convention must be "paper" or "openood" but is {convention!r}; pass one of these')
    if intervals not in (None, "bootstrap", "delong"):
        raise InputError(f'intervals must be "bootstrap", "delong" or None but is {intervals!r}; pass one of these')
    if not isinstance(n_resamples, int | np.integer) or n_resamples < 1:
        raise InputError(
            f"n_resamples must be a whole number of at least 1 but is {n_resamples!r}; pass for example 200"
        )
