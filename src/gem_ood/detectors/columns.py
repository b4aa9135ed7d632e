"""The columns of a fit against those of other rows: compared once for all rooms that bring rows to a detector."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gem_ood.detectors.base import Detector
from gem_ood.errors import InputError

__all__ = ["fitted_names", "refuse_other_columns", "refuse_other_order", "without_names_warning"]


def fitted_names(*detectors: Detector) -> tuple[str, ...] | None:
    """Return the columns that the first detector with named columns was fitted on, or None if there is none."""
    for detector in detectors:
        names = getattr(detector, "feature_names_in_", None)
        if names is not None:
            return tuple(str(name) for name in names)
    return None


def refuse_other_columns(
    detector: Detector,
    *,
    title: str,
    n_features: int | None,
    columns: tuple[str, ...] | None = None,
    name: str | None = None,
) -> None:
    """Raise if rows are not as wide as those of the fit, or are other columns.

    Args:
        detector: What is to read the rows.
        title: What the error calls the rows.
        n_features: How wide they are; None where only reading would tell.
        columns: The names of their columns, if they have names that must be those of the fit.
        name: What the error calls the detector, where it is one of several.
    """
    called = f"the {type(detector).__name__} detector" + ("" if name is None else f" {name!r}")
    fitted, expected = fitted_names(detector), _width(detector)
    if fitted is not None and columns is not None and columns != fitted:
        raise InputError(
            f"{title}: the features are {_shortened(columns)} but {called} was fitted on {_shortened(fitted)}; pass "
            f"fitted_names to open_features to pick them by name, or a frame's columns in this order"
        )
    if n_features is not None and expected is not None and n_features != expected:
        remedy = "pass the features it was fitted on, naming them or the labels if need be"
        if detector.reads_logits:
            remedy = "it reads logits: give it a head, the classifier's last layer, to read features, or pass logits"
        raise InputError(f"{title} has {n_features} features but {called} was fitted on {expected}; {remedy}")


def refuse_other_order(columns: Sequence[str], fitted: Sequence[str] | None) -> None:
    """Raise if columns that a caller names are those of the fit in another order: each would be taken for another.

    >>> refuse_other_order(["b", "a"], ["a", "b"])
    Traceback (most recent call last):
    ...
    gem_ood.errors.InputError: features are named 'b', 'a' but ... on 'a', 'b'; name them in that order, or not at all
    """
    if fitted is not None and tuple(columns) != tuple(fitted) and sorted(columns) == sorted(fitted):
        raise InputError(
            f"features are named {_shortened(tuple(columns))} but the detector was fitted on "
            f"{_shortened(tuple(fitted))}; name them in that order, or not at all"
        )


@contextmanager
def without_names_warning() -> Iterator[None]:
    """Silence scikit-learn's warning that arrays have no column names.

    Batches reach a detector as arrays, and `refuse_other_columns` has compared the names of what they come from.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
        yield


def _width(detector: Detector) -> int | None:
    """Return how many numbers a row of a detector has; a score of logits that was never fitted takes any number."""
    if hasattr(detector, "n_features_in_"):
        return int(detector.n_features_in_)
    head = getattr(detector, "head", None)
    return None if head is None else int(head.n_features)


def _shortened(names: tuple[str, ...], limit: int = 8) -> str:
    return ", ".join(map(repr, names[:limit])) + (f", ... ({len(names)})" if len(names) > limit else "")
