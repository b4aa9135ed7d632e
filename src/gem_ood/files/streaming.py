"""Detectors at work on files: rows come in batches, and only one number or verdict per row is kept."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from gem_ood.detectors import Detector, Verdicts
from gem_ood.errors import InputError
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


def fitted_names(*detectors: Detector) -> tuple[str, ...] | None:
    """Return the columns that the first detector with named columns was fitted on, or None if there is none."""
    for detector in detectors:
        names = getattr(detector, "feature_names_in_", None)
        if names is not None:
            return tuple(str(name) for name in names)
    return None


def refuse_other_columns(detector: Detector, file: FeatureFile) -> None:
    """Raise if the rows of the file are not as wide as those of the fit, or are other columns by default."""
    fitted, kind = fitted_names(detector), type(detector).__name__
    if fitted is not None and file.feature_names not in (None, fitted) and not file.is_choice_explicit:
        raise InputError(
            f"{file.path}: the features are {_shortened(file.feature_names or ())} but the {kind} detector was fitted "
            f"on {_shortened(fitted)}; pass fitted_names to open_features to pick them by name"
        )
    if file.n_features != detector.n_features_in_:
        raise InputError(
            f"{file.path} has {file.n_features} features but the {kind} detector was fitted on "
            f"{detector.n_features_in_}; pass the same features, naming them or the labels if need be"
        )


@contextmanager
def without_names_warning() -> Iterator[None]:
    """Silence scikit-learn's warning that arrays have no column names.

    Batches reach a detector as arrays, and `refuse_other_columns` has compared the names of their file.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
        yield


def _shortened(names: tuple[str, ...], limit: int = 8) -> str:
    return ", ".join(map(repr, names[:limit])) + (f", ... ({len(names)})" if len(names) > limit else "")
