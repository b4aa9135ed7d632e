"""Detectors side by side on files: one in-distribution set against several others, each file read once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gem_ood.detectors import Detector
from gem_ood.errors import InputError
from gem_ood.files.reading import FeatureFile
from gem_ood.files.streaming import refuse_other_columns, without_names_warning
from gem_ood.metrics import Evaluation, evaluate

__all__ = ["Comparison", "DetectorComparison", "compare_detectors"]


@dataclass(frozen=True)
class DetectorComparison:
    """One detector against every out-of-distribution set; rates are fractions.

    Attributes:
        evaluations: The metrics by name of the out-of-distribution set.
        id_error: Share of in-distribution rows whose nearest class is not their label; None without labels.
        id_kept: Share of in-distribution rows that the detector's own threshold keeps; None if uncalibrated.
        flagged: Share of each out-of-distribution set that the threshold flags; None if uncalibrated.
    """

    evaluations: Mapping[str, Evaluation]
    id_error: float | None
    id_kept: float | None
    flagged: Mapping[str, float] | None

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over the out-of-distribution sets."""
        return float(np.mean([getattr(evaluation, metric) for evaluation in self.evaluations.values()]))


@dataclass(frozen=True)
class Comparison:
    """Every detector against every out-of-distribution set, and how many rows each set has."""

    detectors: Mapping[str, DetectorComparison]
    n_id: int
    n_ood: Mapping[str, int]


@dataclass(frozen=True)
class _Answers:
    scores: NDArray[np.float64]
    flagged: float | None
    error: float | None


def compare_detectors(
    detectors: Mapping[str, Detector],
    id_file: FeatureFile,
    ood_files: Mapping[str, FeatureFile],
    *,
    tpr: float = 0.95,
    convention: Literal["paper", "openood"] = "paper",
    intervals: Literal["bootstrap", "delong"] | None = None,
) -> Comparison:
    """Return how well detectors, by name, tell one file of rows from others.

    Args:
        detectors: Fitted detectors, calibrated or not.
        id_file: In-distribution rows; with labels, the error of the nearest class is measured too.
        ood_files: Out-of-distribution rows, by name of the set.
        tpr: The true positive rate at which the false positive rate is read.
        convention: Of the metrics, as `gem_ood.metrics.evaluate`.
        intervals: Of the metrics, as `gem_ood.metrics.evaluate`.
    """
    if not detectors or not ood_files:
        raise InputError("nothing to compare; pass at least one detector and one out-of-distribution file")
    for file in (id_file, *ood_files.values()):
        for detector in detectors.values():
            refuse_other_columns(detector, file)
    id_answers = _answers(detectors, id_file)
    ood_answers = {name: _answers(detectors, file.without_labels()) for name, file in ood_files.items()}
    compared = {}
    for name in detectors:
        inside, outside = id_answers[name], {key: answers[name] for key, answers in ood_answers.items()}
        compared[name] = DetectorComparison(
            evaluations={
                key: evaluate(inside.scores, answers.scores, tpr=tpr, convention=convention, intervals=intervals)
                for key, answers in outside.items()
            },
            id_error=inside.error,
            id_kept=None if inside.flagged is None else 1.0 - inside.flagged,
            flagged=None
            if inside.flagged is None
            else {key: answers.flagged for key, answers in outside.items() if answers.flagged is not None},
        )
    any_name = next(iter(detectors))
    n_ood = {key: len(answers[any_name].scores) for key, answers in ood_answers.items()}
    return Comparison(compared, len(id_answers[any_name].scores), n_ood)


def _answers(detectors: Mapping[str, Detector], file: FeatureFile) -> dict[str, _Answers]:
    scores: dict[str, list[NDArray[np.float64]]] = {name: [] for name in detectors}
    n_flagged = dict.fromkeys(detectors, 0)
    n_wrong: dict[str, int | None] = dict.fromkeys(detectors, 0 if file.has_labels else None)
    n_rows = 0
    for batch in file.batches():
        n_rows += len(batch.features)
        for name, detector in detectors.items():
            with without_names_warning():
                verdicts = detector.verdicts(batch.features)
            scores[name].append(verdicts.score)
            if verdicts.is_ood is not None:
                n_flagged[name] += int(np.count_nonzero(verdicts.is_ood))
            n_wrong[name] = _add_wrong(n_wrong[name], verdicts.nearest_class, batch.labels)
    return {
        name: _Answers(
            np.concatenate(scores[name]),
            n_flagged[name] / n_rows if detector.is_calibrated else None,
            None if (wrong := n_wrong[name]) is None or len(detector.classes_) < 2 else wrong / n_rows,
        )
        for name, detector in detectors.items()
    }


def _add_wrong(n_wrong: int | None, nearest: NDArray[Any], labels: NDArray[Any] | None) -> int | None:
    # Column numbers of logits are not comparable with labels that are words.
    if n_wrong is None or labels is None or (nearest.dtype.kind == "U") != (labels.dtype.kind == "U"):
        return None
    return n_wrong + int(np.count_nonzero(nearest != labels))
