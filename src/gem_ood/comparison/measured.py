"""Measurements: the numbers of every detector on every out-of-distribution set, before any format is chosen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gem_ood.errors import InputError
from gem_ood.metrics import Evaluation

__all__ = [
    "IN_DISTRIBUTION",
    "MEAN",
    "METRICS",
    "DetectorComparison",
    "Measurements",
    "check_set_name",
    "chosen_metrics",
]

#: What the mean over all sets is called wherever a set is named.
MEAN = "mean"

#: What the rows that no set of others holds are called.
IN_DISTRIBUTION = "in-distribution"

#: The metrics of a comparison, and whether a lower value is the better one.
METRICS = {"fpr": True, "auroc": False, "aupr_in": False, "aupr_out": False, "detection_error": True}


@dataclass(frozen=True)
class DetectorComparison:
    """One detector against every out-of-distribution set; rates are fractions.

    Attributes:
        evaluations: The metrics by name of the out-of-distribution set.
        id_error: Share of in-distribution rows whose nearest class is not their label; None without labels, and where
            they are not among the names of the detector's classes.
        id_kept: Share of in-distribution rows that the detector's own threshold keeps; None if uncalibrated.
        flagged: Share of each out-of-distribution set that the threshold flags; None if uncalibrated.
        seconds_per_10k: Time to score 10,000 rows, measured over all sets after a first call that is not counted.
        mean_intervals: A (low, high) per metric for its mean over several sets; None unless bootstrapped.
    """

    evaluations: Mapping[str, Evaluation]
    id_error: float | None = None
    id_kept: float | None = None
    flagged: Mapping[str, float] | None = None
    seconds_per_10k: float | None = None
    mean_intervals: Mapping[str, tuple[float, float]] | None = None

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over the out-of-distribution sets, NaN if there are none."""
        chosen_metrics(metric)
        if not self.evaluations:
            return math.nan
        return float(np.mean([getattr(evaluation, metric) for evaluation in self.evaluations.values()]))

    def value(self, metric: str, ood: str = MEAN) -> float:
        """Return a metric on one out-of-distribution set, or its mean over all."""
        chosen_metrics(metric)
        _check_set(ood, self.evaluations)
        return self.mean(metric) if ood == MEAN else float(getattr(self.evaluations[ood], metric))

    def interval(self, metric: str, ood: str = MEAN) -> tuple[float, float] | None:
        """Return the interval of a metric on one set, or of its mean over all; None where there is none."""
        chosen_metrics(metric)
        _check_set(ood, self.evaluations)
        if ood == MEAN and len(self.evaluations) != 1:
            return (self.mean_intervals or {}).get(metric)
        one = next(iter(self.evaluations.values())) if ood == MEAN else self.evaluations[ood]
        return (one.intervals or {}).get(metric)

    def flagged_share(self, ood: str = MEAN) -> float | None:
        """Return the share of one set that is flagged, or the mean over all sets; None if uncalibrated."""
        _check_set(ood, self.evaluations)
        if not self.flagged:
            return None
        return float(np.mean(list(self.flagged.values()))) if ood == MEAN else self.flagged[ood]


@dataclass(frozen=True)
class Measurements:
    """Every detector against every out-of-distribution set: what a `Comparison` holds.

    Attributes:
        detectors: What was measured, by name of the detector.
        n_id: Number of in-distribution rows.
        n_ood: Number of out-of-distribution rows, by name of the set.
        tpr: The true positive rate at which fpr is read.
        convention: Of the metrics: "paper" or "openood".
        intervals: How intervals were computed, if they were: "bootstrap" or "delong".
        confidence: The confidence of each interval.
    """

    detectors: Mapping[str, DetectorComparison]
    n_id: int
    n_ood: Mapping[str, int]
    tpr: float = 0.95
    convention: str = "paper"
    intervals: str | None = None
    confidence: float = 0.95

    def best(self, metric: str = "fpr", ood: str = MEAN) -> tuple[str, ...]:
        """Return the best detectors on a set, or over all: every one whose percentage with two decimals is best."""
        chosen_metrics(metric)
        _check_set(ood, self.n_ood)
        shown = {name: round(100.0 * one.value(metric, ood), 2) for name, one in self.detectors.items()}
        finite = [value for value in shown.values() if math.isfinite(value)]
        if not finite:
            return ()
        best = min(finite) if METRICS[metric] else max(finite)
        return tuple(name for name, value in shown.items() if value == best)

    def ranking(self, metric: str = "fpr") -> tuple[str, ...]:
        """Return the names of the detectors by their mean over the sets, the best first; equals keep their order."""
        chosen_metrics(metric)
        means = {name: one.mean(metric) for name, one in self.detectors.items()}
        sign = 1.0 if METRICS[metric] else -1.0
        return tuple(sorted(means, key=lambda name: sign * means[name] if math.isfinite(means[name]) else math.inf))

    def order(self, sort: str | None) -> tuple[str, ...]:
        """Return the names of the detectors as given, or by the mean of a metric."""
        return tuple(self.detectors) if sort is None else self.ranking(sort)


def chosen_metrics(metrics: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of metrics, one or several, each checked and there once.

    >>> chosen_metrics("fpr"), chosen_metrics(["auroc", "fpr"])
    (('fpr',), ('auroc', 'fpr'))
    """
    names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    if not names:
        raise InputError(f"no metric is named; choose among {', '.join(METRICS)}")
    for name in names:
        if name not in METRICS:
            raise InputError(f"there is no metric {name!r}; choose among {', '.join(METRICS)}")
        if names.count(name) > 1:
            raise InputError(f"the metric {name!r} is named twice; name each once")
    return names


def check_set_name(name: object) -> None:
    """Raise if an out-of-distribution set cannot be called so."""
    if not isinstance(name, str) or not name.strip():
        raise InputError(f"an out-of-distribution set is named {name!r}; name each with a string that is not empty")
    for taken, what in ((MEAN, "the mean over all sets is"), (IN_DISTRIBUTION, "the other rows are")):
        if name == taken:
            raise InputError(f"an out-of-distribution set is named {taken!r}, as {what}; rename it")


def _check_set(ood: str, known: Mapping[str, object]) -> None:
    if ood != MEAN and ood not in known:
        raise InputError(f"there is no set {ood!r}; choose among {', '.join([*known, MEAN])}")
