"""Comparison: the numbers of every detector on every out-of-distribution set, and what they print as."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gem_ood.comparison.measured import MEAN, METRICS, DetectorComparison, Measurements, chosen_metrics
from gem_ood.comparison.rendering import as_csv, as_latex, as_markdown, as_text
from gem_ood.comparison.tables import PAPER_METRICS, TEXT_WIDTH, Layout, TableOptions
from gem_ood.plain import plain

__all__ = ["Comparison"]


@dataclass(frozen=True)
class Comparison(Measurements):
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

    def __str__(self) -> str:
        return self.to_text()

    def to_text(
        self,
        *,
        layout: Layout = "auto",
        width: int = TEXT_WIDTH,
        sort: str | None = None,
        metrics: str | Sequence[str] = PAPER_METRICS,
        time: bool = True,
        ansi: bool = False,
    ) -> str:
        """Return the table as plain text, in percent, the best on each set marked.

        Args:
            layout: "wide" has one row per detector, "long" one per set and detector; "auto" is wide where a line has
                at most `width` characters.
            width: How many characters of text are one line at most.
            sort: A metric by whose mean the detectors are ordered; the order given, unless set.
            metrics: Which of `METRICS` are shown, one or several.
            time: Whether the time to score 10,000 rows is shown.
            ansi: Mark the best by a terminal's bold instead of a star.
        """
        return as_text(self, TableOptions(layout, width, sort, chosen_metrics(metrics), time), ansi=ansi)

    def to_markdown(
        self,
        *,
        layout: Layout = "auto",
        width: int = TEXT_WIDTH,
        sort: str | None = None,
        metrics: str | Sequence[str] = PAPER_METRICS,
        time: bool = True,
    ) -> str:
        """Return the table as Markdown, the best on each set in bold; arguments as `to_text`."""
        return as_markdown(self, TableOptions(layout, width, sort, chosen_metrics(metrics), time))

    def to_latex(
        self,
        *,
        layout: Layout = "auto",
        width: int = TEXT_WIDTH,
        sort: str | None = None,
        metrics: str | Sequence[str] = PAPER_METRICS,
        time: bool = True,
    ) -> str:
        r"""Return a LaTeX tabular for `\usepackage{booktabs}`, the best on each set in bold; as `to_text`."""
        return as_latex(self, TableOptions(layout, width, sort, chosen_metrics(metrics), time))

    def to_csv(
        self, *, sort: str | None = None, metrics: str | Sequence[str] = tuple(METRICS), time: bool = True
    ) -> str:
        """Return one line per detector, set and metric, as fractions, with the ends of its interval if there is one."""
        return as_csv(self, self.order(sort), metrics=chosen_metrics(metrics), time=time)

    def to_json(
        self, *, sort: str | None = None, metrics: str | Sequence[str] = tuple(METRICS), time: bool = True
    ) -> str:
        """Return everything as one JSON object; what JSON cannot write (infinities) becomes null."""
        values = self.as_dict(sort=sort, metrics=metrics, time=time)
        return json.dumps(plain(values), ensure_ascii=False, allow_nan=False, indent=1) + "\n"

    def as_dict(
        self, *, sort: str | None = None, metrics: str | Sequence[str] = tuple(METRICS), time: bool = True
    ) -> dict[str, Any]:
        """Return everything as plain values under the names of the fields, with each detector's means.

        Args:
            sort: A metric by whose mean the detectors are ordered; the order given, unless set.
            metrics: Which of `METRICS` are kept, one or several.
            time: Whether the time to score 10,000 rows is kept; it is None otherwise.
        """
        chosen = chosen_metrics(metrics)
        return {
            "tpr": self.tpr,
            "convention": self.convention,
            "intervals": self.intervals,
            "confidence": self.confidence,
            "n_id": self.n_id,
            "n_ood": dict(self.n_ood),
            "detectors": {name: _detector_dict(self.detectors[name], chosen, time=time) for name in self.order(sort)},
        }


def _detector_dict(one: DetectorComparison, metrics: tuple[str, ...], *, time: bool) -> dict[str, Any]:
    return {
        "id_error": one.id_error,
        "id_kept": one.id_kept,
        "flagged": None if one.flagged is None else dict(one.flagged),
        "evaluations": {ood: _only(asdict(evaluation), metrics) for ood, evaluation in one.evaluations.items()},
        MEAN: {metric: one.mean(metric) for metric in METRICS if metric in metrics},
        "mean_intervals": None if one.mean_intervals is None else _only(one.mean_intervals, metrics),
        "seconds_per_10k": one.seconds_per_10k if time else None,
    }


def _only(values: Mapping[str, Any], metrics: tuple[str, ...]) -> dict[str, Any]:
    """Return the values, and the intervals among them, without the metrics that were not chosen."""
    return {
        name: _only(value, metrics) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if name not in METRICS or name in metrics
    }
