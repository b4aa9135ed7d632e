"""Comparison: the numbers of every detector on every out-of-distribution set, and what they print as."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from gem_ood.errors import InputError
from gem_ood.metrics import Evaluation

__all__ = ["MEAN", "METRICS", "Comparison", "DetectorComparison", "Layout"]

#: What the mean over all sets is called wherever a set is named.
MEAN = "mean"

#: The metrics of a comparison, and whether a lower value is the better one.
METRICS = {"fpr": True, "auroc": False, "aupr_in": False, "aupr_out": False, "detection_error": True}

#: What the paper's tables show of them.
PAPER_METRICS = ("fpr", "auroc", "aupr_in")

#: A line of text up to this long takes one row per detector; longer ones become one row per set and detector.
TEXT_WIDTH = 120

Layout = Literal["auto", "wide", "long"]


@dataclass(frozen=True)
class DetectorComparison:
    """One detector against every out-of-distribution set; rates are fractions.

    Attributes:
        evaluations: The metrics by name of the out-of-distribution set.
        id_error: Share of in-distribution rows whose nearest class is not their label; None without labels.
        id_kept: Share of in-distribution rows that the detector's own threshold keeps; None if uncalibrated.
        flagged: Share of each out-of-distribution set that the threshold flags; None if uncalibrated.
        seconds_per_10k: Time to score 10,000 rows, measured over all sets.
    """

    evaluations: Mapping[str, Evaluation]
    id_error: float | None = None
    id_kept: float | None = None
    flagged: Mapping[str, float] | None = None
    seconds_per_10k: float | None = None

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over the out-of-distribution sets."""
        _check_metric(metric)
        return float(np.mean([getattr(evaluation, metric) for evaluation in self.evaluations.values()]))

    def value(self, metric: str, ood: str = MEAN) -> float:
        """Return a metric on one out-of-distribution set, or its mean over all."""
        _check_metric(metric)
        return self.mean(metric) if ood == MEAN else float(getattr(self.evaluations[ood], metric))

    def flagged_share(self, ood: str = MEAN) -> float | None:
        """Return the share of one set that is flagged, or the mean over all sets; None if uncalibrated."""
        if self.flagged is None:
            return None
        return float(np.mean(list(self.flagged.values()))) if ood == MEAN else self.flagged[ood]


@dataclass(frozen=True)
class Comparison:
    """Every detector against every out-of-distribution set; print it for a table in percent.

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
        _check_metric(metric)
        if ood != MEAN and ood not in self.n_ood:
            raise InputError(f"there is no set {ood!r}; choose among {', '.join([*self.n_ood, MEAN])}")
        shown = {name: round(100.0 * one.value(metric, ood), 2) for name, one in self.detectors.items()}
        finite = [value for value in shown.values() if math.isfinite(value)]
        if not finite:
            return ()
        best = min(finite) if METRICS[metric] else max(finite)
        return tuple(name for name, value in shown.items() if value == best)

    def ranking(self, metric: str = "fpr") -> tuple[str, ...]:
        """Return the names of the detectors by their mean over the sets, the best first; equals keep their order."""
        _check_metric(metric)
        means = {name: one.mean(metric) for name, one in self.detectors.items()}
        sign = 1.0 if METRICS[metric] else -1.0
        return tuple(sorted(means, key=lambda name: sign * means[name] if math.isfinite(means[name]) else math.inf))

    def __str__(self) -> str:
        return self.to_text()

    def to_text(
        self,
        *,
        layout: Layout = "auto",
        width: int = TEXT_WIDTH,
        sort: str | None = None,
        metrics: Sequence[str] = PAPER_METRICS,
        time: bool = True,
        ansi: bool = False,
    ) -> str:
        """Return the table as plain text, in percent, the best on each set marked.

        Args:
            layout: "wide" has one row per detector, "long" one per set and detector; "auto" is wide where a line has
                at most `width` characters.
            width: How many characters of text are one line at most.
            sort: A metric by whose mean the detectors are ordered; the order given, unless set.
            metrics: Which of `METRICS` are shown.
            time: Whether the time to score 10,000 rows is shown.
            ansi: Mark the best by a terminal's bold instead of a star.
        """
        from gem_ood.comparison.rendering import as_text

        table = self._table(layout, width, sort, metrics, time)
        return as_text(table, ansi=ansi)

    def to_markdown(
        self,
        *,
        layout: Layout = "auto",
        width: int = TEXT_WIDTH,
        sort: str | None = None,
        metrics: Sequence[str] = PAPER_METRICS,
        time: bool = True,
    ) -> str:
        """Return the table as Markdown, the best on each set in bold; arguments as `to_text`."""
        from gem_ood.comparison.rendering import as_markdown

        return as_markdown(self._table(layout, width, sort, metrics, time))

    def to_latex(
        self,
        *,
        layout: Layout = "auto",
        width: int = TEXT_WIDTH,
        sort: str | None = None,
        metrics: Sequence[str] = PAPER_METRICS,
        time: bool = True,
    ) -> str:
        r"""Return a LaTeX tabular for `\usepackage{booktabs}`, the best on each set in bold; as `to_text`."""
        from gem_ood.comparison.rendering import as_latex

        return as_latex(self._table(layout, width, sort, metrics, time))

    def to_csv(self, *, sort: str | None = None) -> str:
        """Return one line per detector, set and metric, as fractions, with the ends of its interval if there is one."""
        from gem_ood.comparison.rendering import as_csv

        return as_csv(self, self._order(sort))

    def to_json(self, *, sort: str | None = None) -> str:
        """Return everything as one JSON object; what JSON cannot write (infinities) becomes null."""
        return json.dumps(_plain(self.as_dict(sort=sort)), ensure_ascii=False, allow_nan=False, indent=1) + "\n"

    def as_dict(self, *, sort: str | None = None) -> dict[str, Any]:
        """Return everything as plain values under the names of the fields, with each detector's means."""
        detectors = {
            name: {
                "id_error": one.id_error,
                "id_kept": one.id_kept,
                "flagged": None if one.flagged is None else dict(one.flagged),
                "evaluations": {ood: asdict(evaluation) for ood, evaluation in one.evaluations.items()},
                MEAN: {metric: one.mean(metric) for metric in METRICS},
                "seconds_per_10k": one.seconds_per_10k,
            }
            for name, one in ((name, self.detectors[name]) for name in self._order(sort))
        }
        return {
            "tpr": self.tpr,
            "convention": self.convention,
            "intervals": self.intervals,
            "confidence": self.confidence,
            "n_id": self.n_id,
            "n_ood": dict(self.n_ood),
            "detectors": detectors,
        }

    def _order(self, sort: str | None) -> tuple[str, ...]:
        return tuple(self.detectors) if sort is None else self.ranking(sort)

    def _table(self, layout: str, width: int, sort: str | None, metrics: Sequence[str], time: bool) -> Any:
        from gem_ood.comparison.tables import lay_out

        for metric in metrics:
            _check_metric(metric)
        return lay_out(self, self._order(sort), tuple(metrics), layout=layout, width=width, time=time)


def _check_metric(metric: str) -> None:
    if metric not in METRICS:
        raise InputError(f"there is no metric {metric!r}; choose among {', '.join(METRICS)}")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
