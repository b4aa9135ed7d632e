"""The demonstration behind `gem-ood demo`: a real classifier, data that ships with scikit-learn, every detector."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.comparison import Comparison, compare
from gem_ood.detectors import GEM, KNN, MSP, Detector, Energy, Head, Mahalanobis, MaxLogit, load, recommended
from gem_ood.digits import HIDDEN_UNITS, SIDE, DigitsCase, make_case
from gem_ood.errors import MissingExtraError, RankWarning
from gem_ood.metrics import error_rate
from gem_ood.reports import write
from gem_ood.scores import softmax

__all__ = ["Demonstration", "DetectorResult", "run"]

TITLE = "Digits that a classifier knows, and inputs that it does not"


@dataclass(frozen=True)
class DetectorResult:
    """One line of the main table: means over the out-of-distribution sets, and the FPR95 of each."""

    name: str
    fpr: float
    auroc: float
    aupr: float
    fpr_by_set: Mapping[str, float]


@dataclass(frozen=True)
class Demonstration:
    """Everything the demonstration found."""

    description: str
    known: str
    n_train: int
    n_calibration: int
    n_test: int
    id_error: float
    ood_rows: Mapping[str, int]
    notes: tuple[str, ...]
    detectors: tuple[DetectorResult, ...]
    guarantee: str
    kept: float
    flagged: Mapping[str, float]
    path: str
    report: str | None
    is_identical: bool
    example: str
    example_prediction: str
    example_confidence: float
    explanation: str

    def as_dict(self) -> dict[str, Any]:
        """Return the same as plain values."""
        return asdict(self)


def run(
    *,
    path: str | Path,
    report: str | Path | None = None,
    seed: int = 0,
    command: str | None = None,
    on_step: Callable[[str], None] | None = None,
) -> Demonstration:
    """Train, fit, calibrate, compare, save, load and explain.

    Args:
        path: Where the GEM detector is saved.
        report: Where a report of all detectors is written, unless None; without the extra `report`, a note says so.
        seed: Of the splits, the classifier and the corruptions.
        command: What the report shows as the command that makes it.
        on_step: Called with the name of each long step of the report as it begins.
    """
    case = make_case(seed)
    head, features = case.classifier.head, case.ood_features()
    train, test = case.classifier.features(case.train), case.classifier.features(case.test)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RankWarning)  # units that never fire are ordinary: a note, not an alarm
        detectors = {name: kind.fit(train, case.train_labels) for name, kind in _detectors(head).items()}
    notes = (*case.notes, *dict.fromkeys(str(warning.message) for warning in caught))
    for detector in detectors.values():
        detector.calibrate(case.classifier.features(case.calibration), tpr=0.95)
    rows: dict[str, Any] = {"id": test, "labels": case.test_labels, "ood": features}
    comparison = None
    if report is not None:
        options: dict[str, Any] = {"title": TITLE, "command": command, "notes": notes, "on_step": on_step}
        try:
            comparison = write(report, detectors, images=_pictures(case), **options, **rows).comparison
        except MissingExtraError as error:
            notes += (f"no report is written: {error}",)
    is_written = comparison is not None
    results = _results(comparison or compare(detectors, **rows))
    gem = detectors["GEM"]
    gem.save(path)
    loaded = load(path)
    everything = np.vstack([test, *features.values()])
    classes = np.unique(case.train_labels)

    example = _most_confident_mistake(gem, features["unseen digits"], head)
    confidence = softmax(head.logits(features["unseen digits"][example : example + 1]))[0]
    return Demonstration(
        description=f"{' + '.join(map(str, HIDDEN_UNITS))} hidden units",
        known=", ".join(map(str, classes)),
        n_train=len(case.train),
        n_calibration=len(case.calibration),
        n_test=len(case.test),
        id_error=error_rate(case.test_labels, classes[head.logits(test).argmax(axis=1)]),
        ood_rows={name: len(rows) for name, rows in features.items()},
        notes=notes,
        detectors=results,
        guarantee=loaded.threshold_.guarantee,
        kept=float(np.mean(~loaded.is_ood(test))),
        flagged={name: float(np.mean(loaded.is_ood(rows))) for name, rows in features.items()},
        path=str(path),
        report=str(report) if is_written else None,
        is_identical=bool(np.array_equal(loaded.score_samples(everything), gem.score_samples(everything))),
        example=f"handwritten {case.unseen_labels[example]}",
        example_prediction=str(classes[confidence.argmax()]),
        example_confidence=float(confidence.max()),
        explanation=str(loaded.explain(features["unseen digits"][example : example + 1])),
    )


def _pictures(case: DigitsCase) -> dict[str, NDArray[np.float64]]:
    """Return the rows of every set as pictures: ink is dark."""
    return {name: 1.0 - rows.reshape(-1, SIDE, SIDE) for name, rows in {"id": case.test, **case.ood}.items()}


def _detectors(head: Head) -> dict[str, Detector]:
    """Return the paper's five (ODIN at its own temperature, without input noise), some others, and the all-rounder."""
    return {
        "MSP": MSP(head=head),
        "ODIN (no noise)": MSP(head=head, temperature=1000.0),
        "MaxLogit": MaxLogit(head=head),
        "Energy": Energy(head=head),
        "Mahalanobis": Mahalanobis(),
        "GEM": GEM(),
        "GEM, unit length": GEM(normalize=True),
        "KNN": KNN(k=10),
        "All-rounder": recommended(head=head),
    }


def _results(comparison: Comparison) -> tuple[DetectorResult, ...]:
    return tuple(
        DetectorResult(
            name=name,
            fpr=one.mean("fpr"),
            auroc=one.mean("auroc"),
            aupr=one.mean("aupr_in"),
            fpr_by_set={key: evaluation.fpr for key, evaluation in one.evaluations.items()},
        )
        for name, one in comparison.detectors.items()
    )


def _most_confident_mistake(detector: Detector, features: NDArray[np.float64], head: Head) -> int:
    """Return the flagged row that the classifier is surest about."""
    confidence = softmax(head.logits(features)).max(axis=1)
    return int(np.argmax(np.where(detector.is_ood(features), confidence, 0.0)))
