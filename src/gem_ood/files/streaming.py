"""Detectors at work on files: rows come in batches, and only one number or verdict per row is kept."""

from collections.abc import Iterator

import numpy as np

from gem_ood.detectors import Detector, Verdicts, columns
from gem_ood.detectors.columns import fitted_names, without_names_warning
from gem_ood.files.reading import FeatureFile

__all__ = ["calibrate_on_file", "fitted_names", "refuse_other_columns", "score_file", "without_names_warning"]


def score_file(detector: Detector, file: FeatureFile) -> Iterator[Verdicts]:
    """Yield the verdicts on the rows of a file, a batch at a time, in the order of the file."""
    refuse_other_columns(detector, file)
    for batch in file.without_labels().batches():
        with without_names_warning():
            verdicts = detector.verdicts(batch.features)
        yield verdicts


def calibrate_on_file(
    detector: Detector, file: FeatureFile, *, tpr: float = 0.95, confidence: float | None = None
) -> Detector:
    """Return the detector with its threshold set from the rows of a file, which the fit has not seen."""
    refuse_other_columns(detector, file)
    with without_names_warning():
        scores = [detector.evidence(batch.features) for batch in file.without_labels().batches()]
    return detector.calibrate_scores(np.concatenate(scores), tpr=tpr, confidence=confidence)


def refuse_other_columns(detector: Detector, file: FeatureFile) -> None:
    """Raise if the rows of the file are not as wide as those of the fit, or are other columns by default."""
    names = None if file.is_choice_explicit else file.feature_names
    columns.refuse_other_columns(detector, title=str(file.path), n_features=file.n_features, columns=names)
