"""Saving and loading detectors of any kind."""

from dataclasses import asdict
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood import storage
from gem_ood.detectors.base import Detector
from gem_ood.detectors.head import Head
from gem_ood.detectors.head_reading import HeadDetector
from gem_ood.detectors.packing import class_names, number, refuse_damaged, take, whole
from gem_ood.detectors.registry import detector_class, name_of
from gem_ood.errors import FileFormatError, InputError, NotFittedError
from gem_ood.features import is_count, is_share
from gem_ood.thresholds import RankedScores, Threshold

__all__ = ["load", "pack", "save", "unpack"]


def save(detector: Detector, path: str | PathLike[str]) -> None:
    """Write a fitted detector, calibrated or not, to one file."""
    tensors, header = pack(detector)
    storage.write(path, tensors=tensors, header=header)


def pack(detector: Detector) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return a fitted detector as the arrays and the header of its file."""
    if not hasattr(detector, "n_features_in_"):
        raise NotFittedError(
            f"this {type(detector).__name__} is not fitted yet; call fit(features, labels) before save"
        )
    tensors, values = detector._state()
    options = _pack_options(detector, "option", tensors)
    header: dict[str, Any] = {
        "detector": name_of(detector),
        "options": options,
        "n_features": detector.n_features_in_,
        "feature_names": getattr(detector, "feature_names_in_", np.array([])).tolist(),
        "state": values,
        "threshold": None,
    }
    if detector.is_calibrated:
        header["threshold"] = asdict(detector.threshold_)
        tensors["calibration.scores"] = detector.calibration_scores_
        if detector.calibration_ranks_ is not None:
            tensors["calibration.ranks"] = detector.calibration_ranks_
    return tensors, header


def load(path: str | PathLike[str]) -> Detector:
    """Return the detector saved at this path; its scores are the same to the bit.

    Raises:
        FileNotFoundError: There is no such file.
        FileFormatError: The file is damaged, truncated, foreign, or from a newer version.
    """
    tensors, header = storage.read(path)
    return unpack(tensors, header, name=str(path))


def unpack(tensors: dict[str, NDArray[Any]], header: dict[str, Any], *, name: str) -> Detector:
    """Return the detector that was packed; `name` is what errors call the place it came from."""
    try:
        return _rebuild(tensors, header)
    except FileFormatError as error:
        raise FileFormatError(f"{name}: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise FileFormatError(f"{name} does not hold a whole detector ({error!r}); save it again") from error


def _rebuild(tensors: dict[str, NDArray[Any]], header: dict[str, Any]) -> Detector:
    detector = _unpack_options(header, "option", tensors)
    detector._check_options()
    _refuse_unnamed(detector, tensors)
    n_features = whole(header["n_features"], "n_features", least=1)
    detector._restore(tensors, header["state"])
    if getattr(detector, "n_features_in_", n_features) != n_features:
        raise FileFormatError(
            "the header and the arrays disagree about the number of features; save the detector again"
        )
    detector.n_features_in_ = n_features
    if isinstance(detector, HeadDetector):
        _check_names(detector, header["state"]["labels"])
    priors = getattr(detector, "priors", "uniform")
    is_one_per_class = isinstance(priors, np.ndarray) and len(priors) == len(detector.classes_)
    refuse_damaged(not isinstance(priors, str) and not is_one_per_class, "priors", "is not one weight per class")
    columns = header["feature_names"]
    if columns != []:
        are_names = isinstance(columns, list) and all(isinstance(name, str) for name in columns)
        refuse_damaged(not are_names or len(columns) != n_features, "feature_names", "does not name every feature once")
        detector.feature_names_in_ = np.array(columns, dtype=object)
    if header["threshold"] is not None:
        threshold = _checked_threshold(Threshold(**header["threshold"]))
        scores, ranks = tensors.get("calibration.scores"), tensors.get("calibration.ranks")
        if scores is None or not _fits(threshold, scores, ranks):
            raise FileFormatError("the calibration scores are missing or damaged; calibrate and save again")
        detector.calibration_scores_, detector.calibration_ranks_ = scores, ranks
        detector.threshold_, detector.offset_ = threshold, threshold.value
    return detector


def _check_names(detector: HeadDetector, labels: list[Any]) -> None:
    n_names, n_logits = len(detector.classes_), detector._n_logits(detector.n_features_in_)
    refuse_damaged(n_names != n_logits, "classes", f"has {n_names} names for {n_logits} logits")
    if labels != []:
        class_names(labels)  # refuses what is none


def _checked_threshold(threshold: Threshold) -> Threshold:
    number(threshold.tpr, "threshold.tpr", least=0.0, most=1.0)
    if threshold.confidence is not None:
        number(threshold.confidence, "threshold.confidence", least=0.0, most=1.0)
    methods = ("quantile", "conformal") if threshold.confidence is None else ("pac",)
    refuse_damaged(threshold.method not in methods, "threshold.method", f"is {threshold.method!r}")
    refuse_damaged(not isinstance(threshold.value, float), "threshold.value", f"is {threshold.value!r}")
    return threshold


def _check_kinds(detector: Detector) -> None:
    """Raise unless the options that every detector has, and `_check_options` leaves to `fit`, are of their kind."""
    share, seed = detector.calibration, detector.random_state
    refuse_damaged(not (share is None or is_share(share)), "calibration", f"is {share!r} and no share")
    refuse_damaged(not (seed is None or is_count(seed, least=0)), "random_state", f"is {seed!r} and no seed")


def _refuse_unnamed(detector: Detector, tensors: dict[str, NDArray[Any]]) -> None:
    """Raise if the file has an array that is none of the options.

    A head that the header does not name would turn a detector of features into one of logits.
    """
    named: dict[str, NDArray[Any]] = {}
    _pack_options(detector, "option", named)
    unnamed = {name for name in tensors if name.startswith("option.")} - set(named)
    refuse_damaged(unnamed, "options", f"names no use for the array {min(unnamed, default='')!r}")


def _fits(threshold: Threshold, scores: NDArray[Any], ranks: NDArray[Any] | None) -> bool:
    """Return whether this is a threshold of these scores: of all in order, or of some with their ranks among all."""
    if not is_count(threshold.n_rows) or not is_count(threshold.order):
        return False
    if scores.ndim != 1 or len(scores) == 0 or scores.dtype != np.float64 or np.isnan(scores).any():
        return False
    if ranks is not None:
        return ranks.dtype == np.int64 and _fits_ranks(threshold, scores, ranks)
    is_whole = len(scores) == threshold.n_rows and bool((scores[1:] >= scores[:-1]).all())
    return is_whole and threshold.order <= len(scores) and bool(threshold.value == scores[threshold.order - 1])


def _fits_ranks(threshold: Threshold, scores: NDArray[Any], ranks: NDArray[Any]) -> bool:
    try:
        RankedScores(scores, ranks, threshold.n_rows)
    except InputError:
        return False
    at = np.flatnonzero(ranks == threshold.order)
    return len(at) == 1 and bool(threshold.value == scores[at[0]])


def _pack_options(detector: Detector, place: str, tensors: dict[str, NDArray[Any]]) -> dict[str, Any]:
    options = detector.get_params(deep=False)
    return {name: _pack_option(f"{place}.{name}", value, tensors) for name, value in options.items()}


def _unpack_options(header: dict[str, Any], place: str, tensors: dict[str, NDArray[Any]]) -> Detector:
    """Return an unfitted detector with the options that were packed."""
    options = {name: _unpack_option(f"{place}.{name}", value, tensors) for name, value in header["options"].items()}
    detector = detector_class(header["detector"])(**options)
    _check_kinds(detector)
    return detector


def _pack_option(place: str, value: Any, tensors: dict[str, NDArray[Any]]) -> Any:
    if isinstance(value, Head):
        tensors[f"{place}.weight"], tensors[f"{place}.bias"] = value.weight, value.bias
        return {"head": True}
    if isinstance(value, list | tuple) and all(isinstance(part, Detector) for part in value):
        parts = []
        for number, part in enumerate(value):
            packed = _pack_options(part, f"{place}.{number}", tensors)
            parts.append({"detector": name_of(part), "options": packed})
        return {"detectors": parts}
    if isinstance(value, np.floating):
        value = float(str(value))  # 0.95 in float32 means 0.95, not its expansion
    elif isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if place.endswith("random_state"):  # a generator only steered the hold-out, which is over
        return None
    tensors[place] = np.asarray(value, dtype=np.float64)
    return {"array": True}


def _unpack_option(place: str, value: Any, tensors: dict[str, NDArray[Any]]) -> Any:
    if value == {"head": True}:
        weight = take(tensors, f"{place}.weight", (None, None))
        return Head(weight, take(tensors, f"{place}.bias", (len(weight),)))
    if value == {"array": True}:
        return take(tensors, place, (None,))
    if isinstance(value, dict):
        parts = enumerate(value["detectors"])
        return [_unpack_options(header, f"{place}.{number}", tensors) for number, header in parts]
    return value
