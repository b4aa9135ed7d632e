"""Report: detectors side by side, everything worth showing of them, as numbers and as one HTML file."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gem_ood.comparison import MEAN, Comparison
from gem_ood.errors import InputError
from gem_ood.plain import natural_order, plain
from gem_ood.reports.page import render
from gem_ood.reports.panels.curves import DetectionCurves
from gem_ood.reports.panels.histograms import ScoreHistogram
from gem_ood.reports.panels.kept import KeptShares
from gem_ood.reports.panels.quantiles import QuantileCurves
from gem_ood.reports.panels.surprises import Surprise
from gem_ood.storage import atomic_path, naming, refuse_unwritable_place
from gem_ood.theory import Diagnosis
from gem_ood.thresholds import Threshold

__all__ = ["SUFFIXES", "DetectorReport", "DiagnosisReport", "FeatureMap", "Report", "Run", "check_page_path"]

#: What a page may be called.
SUFFIXES = (".html", ".htm")

#: The metrics whose best are marked.
MARKED_METRICS = ("fpr", "auroc", "aupr_in")


@dataclass(frozen=True, eq=False)
class DetectorReport:
    """What a report shows of one detector.

    Attributes:
        description: The detector with its options.
        threshold: Its threshold and what it guarantees; None before calibration.
        histogram: Of its scores on every set.
        curves: ROC and precision-recall, by name of the out-of-distribution set.
        kept: The share of in-distribution rows asked to be kept against that realised; None before calibration.
        surprises: The rows that it judges most against what they are.
    """

    description: str
    threshold: Threshold | None
    histogram: ScoreHistogram
    curves: Mapping[str, DetectionCurves]
    kept: KeptShares | None
    surprises: tuple[Surprise, ...]


@dataclass(frozen=True, eq=False)
class DiagnosisReport:
    """How Gaussian the classes of one detector are, and the curves that show it."""

    detector: str
    diagnosis: Diagnosis
    curves: QuantileCurves


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """A sample of the rows, placed in the plane.

    Attributes:
        method: How they are placed.
        note: What is drawn and how, in a sentence or two.
        points: One place per row.
        sets: 0 for an in-distribution row, otherwise the place of its set, counted from 1.
        rows: The place of each row in its set.
        classes: The name of each in-distribution row's class, by its label or the nearest class; None for the others.
        class_from: Where these names are from.
        is_ood: The verdicts of each detector; None if it is not calibrated.
    """

    method: Literal["UMAP", "PCA"]
    note: str
    points: NDArray[np.float64]
    sets: NDArray[np.intp]
    rows: NDArray[np.intp]
    classes: tuple[str | None, ...]
    class_from: str
    is_ood: Mapping[str, NDArray[np.bool_] | None]


@dataclass(frozen=True)
class Run:
    """What was run: enough to run it again.

    Attributes:
        command: The command line, if it was one.
        date: When, in UTC.
        versions: Of what computed it.
        inputs: The sets by name, each with its source and number of rows.
    """

    command: str | None
    date: str
    versions: Mapping[str, str]
    inputs: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True, eq=False)
class Report:
    """Detectors on one in-distribution set and others: what was found, in words, numbers and figures.

    Attributes:
        title: Of the page.
        headline: The verdict, in one plain sentence.
        findings: What else is worth knowing, a sentence each.
        caveats: What this cannot tell, a sentence each.
        lead: The detector that is shown first: the best on average among those with a threshold, if some have one.
        comparison: The metrics, as `gem_ood.compare` returns them.
        detectors: Each detector's own part, by name.
        diagnosis: How Gaussian the classes are; None where no detector has Gaussian classes.
        map: The features in two dimensions; None if it was not asked for.
        images: Pictures of surprising rows as data URIs, by set (None: in-distribution) and row.
        run: What was run.
    """

    title: str
    headline: str
    findings: tuple[str, ...]
    caveats: tuple[str, ...]
    lead: str
    comparison: Comparison
    detectors: Mapping[str, DetectorReport]
    diagnosis: DiagnosisReport | None
    map: FeatureMap | None
    images: Mapping[tuple[str | None, int], str]
    run: Run

    def as_dict(self) -> dict[str, Any]:
        """Return all that the page shows as plain values, ready for JSON."""
        comparison = self.comparison
        document = {
            "title": self.title,
            "headline": self.headline,
            "findings": self.findings,
            "caveats": self.caveats,
            "tpr": comparison.tpr,
            "convention": comparison.convention,
            "n_id": comparison.n_id,
            "sets": [{"name": name, "n_rows": n_rows} for name, n_rows in comparison.n_ood.items()],
            "lead": self.lead,
            "comparison": comparison.as_dict(),
            "best": {
                metric: {ood: comparison.best(metric, ood) for ood in (*comparison.n_ood, MEAN)}
                for metric in MARKED_METRICS
            },
            "detectors": {name: self._detector_dict(one) for name, one in self.detectors.items()},
            "images": {_image_key(*place): uri for place, uri in self.images.items()},
            "diagnosis": None if self.diagnosis is None else _diagnosis_dict(self.diagnosis),
            "map": None if self.map is None else self._map_dict(self.map),
            "run": {
                "command": self.run.command,
                "date": self.run.date,
                "versions": self.run.versions,
                "inputs": [
                    {"name": name, "source": source, "n_rows": n_rows} for name, source, n_rows in self.run.inputs
                ],
            },
        }
        values: dict[str, Any] = plain(document)
        return values

    def to_html(self) -> str:
        """Return the page: one file that needs nothing else."""
        return render(self.as_dict())

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, all or nothing, and return its path."""
        target = check_page_path(path)
        page = self.to_html()
        with naming(target), atomic_path(target) as temporary:
            temporary.write_text(page, encoding="utf-8")
        return target

    def _detector_dict(self, one: DetectorReport) -> dict[str, Any]:
        threshold = one.threshold
        return {
            "description": one.description,
            "threshold": None
            if threshold is None
            else {
                "value": threshold.value,
                "tpr": threshold.tpr,
                "confidence": threshold.confidence,
                "method": threshold.method,
                "n_rows": threshold.n_rows,
                "guarantee": threshold.guarantee,
            },
            "histogram": one.histogram.as_dict(),
            "curves": {ood: curves.as_dict() for ood, curves in one.curves.items()},
            "kept": None if one.kept is None else one.kept.as_dict(),
            "surprises": [self._surprise_dict(surprise) for surprise in one.surprises],
        }

    def _surprise_dict(self, surprise: Surprise) -> dict[str, Any]:
        place = (surprise.ood, surprise.row)
        return {
            "set": surprise.ood,
            "row": surprise.row,
            "label": surprise.label,
            "nearest_class": surprise.nearest_class,
            "distance": surprise.distance,
            "score": surprise.score,
            "p_value": surprise.p_value,
            "is_ood": surprise.is_ood,
            "image": _image_key(*place) if place in self.images else None,
        }

    def _map_dict(self, drawn: FeatureMap) -> dict[str, Any]:
        names = sorted({name for name in drawn.classes if name is not None}, key=natural_order)
        codes = {name: code for code, name in enumerate(names)}
        return {
            "method": drawn.method,
            "note": drawn.note,
            "n_drawn": len(drawn.points),
            "n_rows": self.comparison.n_id + sum(self.comparison.n_ood.values()),
            # Four significant digits are finer than a screen, and a third of the bytes.
            "x": [float(f"{value:.4g}") for value in drawn.points[:, 0]],
            "y": [float(f"{value:.4g}") for value in drawn.points[:, 1]],
            "set": drawn.sets,
            "row": drawn.rows,
            "class": [None if name is None else codes[name] for name in drawn.classes],
            "classes": names,
            "class_from": drawn.class_from,
            "is_ood": {
                name: None if verdicts is None else verdicts.astype(int) for name, verdicts in drawn.is_ood.items()
            },
        }


def check_page_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a page that can be written; raise before any long work."""
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise InputError(f"{target} is to be a report, which is an HTML page; name it with the suffix .html")
    refuse_unwritable_place(target)
    return target


def _diagnosis_dict(one: DiagnosisReport) -> dict[str, Any]:
    diagnosis = one.diagnosis
    return {
        "detector": one.detector,
        "trust": diagnosis.trust,
        "sentences": diagnosis.summary,
        "has_labels": diagnosis.has_labels,
        **one.curves.as_dict(),
        "degrees_of_freedom": diagnosis.rank,
    }


def _image_key(ood: str | None, row: int) -> str:
    return f"id {row}" if ood is None else f"ood {ood} {row}"
