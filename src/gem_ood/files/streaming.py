"""Detectors at work on files: rows come in batches, and only one number or verdict per row is kept."""

from collections.abc import Iterator

import numpy as np

from gem_ood.detectors import Detector, Verdicts
from gem_ood.errors import InputError
from gem_ood.files.reading import FeatureFile

__all__ = ["calibrate_on_file", "refuse_other_width", "score_file"]


def score_file(detector: Detector, file: FeatureFile) -> Iterator[Verdicts]:
    """Yield the verdicts on the rows of a file, a batch at a time, in the order of the file."""
    refuse_other_width(detector, file)
    for batch in file.without_labels().batches():
        yield detector.verdicts(batch.features)


def calibrate_on_file(
    detector: Detector, file: FeatureFile, *, tpr: float = 0.95, confidence: float | None = None
) -> Detector:
    """Return the detector with its threshold set from the rows of a file, which the fit has not seen."""
    refuse_other_width(detector, file)
    scores = [detector.score_samples(batch.features) for batch in file.without_labels().batches()]
    return detector.calibrate_scores(np.concatenate(scores), tpr=tpr, confidence=confidence)


def refuse_other_width(detector: Detector, file: FeatureFile) -> None:
    """Raise if the rows of the file are not as wide as those of the fit."""
    if file.n_features != detector.n_features_in_:
        raise InputError(
            f"{file.path} has {file.n_features} features but the {type(detector).__name__} detector was fitted on "
            f"{detector.n_features_in_}; pass the same features, naming them or the labels if need be"
        )
