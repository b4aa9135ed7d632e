"""RowSet: rows in whatever form they come, read once in checked batches."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.detectors import Detector
from gem_ood.errors import InputError
from gem_ood.features import as_features, as_labels, chunks, refuse_non_finite

__all__ = ["RowSet", "batches_or_none", "columns_of", "open_rows"]

#: An array is scored in pieces of this many bytes, so that what a detector makes of them stays small too.
BATCH_BYTES = 16 << 20

Batch = tuple[NDArray[Any], NDArray[Any] | None]


@dataclass(frozen=True, eq=False)
class RowSet:
    """A set of rows.

    Attributes:
        title: What errors call it.
        source: Its (features, labels) batches, which are read once.
        n_features: How many numbers a row has; None where only reading would tell.
        columns: The names of its columns, if it has names that must be those of the fit.
        with_labels: Whether its labels are read.
    """

    title: str
    source: Iterable[tuple[ArrayLike, ArrayLike | None]]
    n_features: int | None
    columns: tuple[str, ...] | None
    with_labels: bool

    def batches(self) -> Iterator[Batch]:
        """Yield checked rows in order; an error names the set and the row."""
        n_read = 0
        for X, y in self.source:
            features = as_features(X, name=self.title, min_rows=0)
            if len(features) == 0:
                continue
            if features.dtype.kind == "f":
                refuse_non_finite(features, first_row=n_read, name=self.title)
            labels = None
            if self.with_labels and y is not None:
                labels = as_labels(y, len(features), name=f"labels of {self.title}")
            yield features, labels
            n_read += len(features)
        if n_read == 0:
            raise InputError(f"{self.title} holds no rows; pass at least one")

    def refuse_detector(self, name: str, detector: Detector, n_features: int | None) -> None:
        """Raise if these rows, of this width if it is known, are not what the detector reads."""
        self._refuse_columns(name, detector)
        expected = _width(detector)
        if n_features is None or expected is None or expected == n_features:
            return
        remedy = "pass the features it was fitted on, or compare it on rows of its own"
        if detector.reads_logits:
            remedy = "it reads logits: give it a head, the classifier's last layer, to read the features of the others"
        raise InputError(
            f"{self.title} has {n_features} features but the {type(detector).__name__} detector {name!r} was fitted on "
            f"{expected}; {remedy}"
        )

    def _refuse_columns(self, name: str, detector: Detector) -> None:
        fitted = getattr(detector, "feature_names_in_", None)
        if fitted is None or self.columns is None or self.columns == tuple(map(str, fitted)):
            return
        raise InputError(
            f"{self.title}: the features are {_shortened(self.columns)} but the {type(detector).__name__} detector "
            f"{name!r} was fitted on {_shortened(tuple(map(str, fitted)))}; pass fitted_names to open_features "
            f"to pick them by name, or a frame's columns in this order"
        )


def open_rows(rows: Any, title: str, *, labels: ArrayLike | None = None, with_labels: bool = False) -> RowSet:
    """Return rows, an array or batches of them, as a set that is ready to be read once."""
    batches = batches_or_none(rows)
    if batches is None:
        features = as_features(rows, name=title)
        checked = None if labels is None else as_labels(labels, len(features))
        return RowSet(title, _pieces(features, checked), features.shape[1], columns_of(rows), with_labels)
    if labels is not None:
        raise InputError(f"labels came beside {title}, whose batches carry their own; pass only one of them")
    if not with_labels and hasattr(batches, "without_labels"):
        batches = batches.without_labels()
    named = str(rows.path) if hasattr(rows, "path") else title
    return RowSet(named, batches, getattr(rows, "n_features", None), columns_of(rows), with_labels)


def batches_or_none(rows: Any) -> Any:
    """Return rows as an iterable of (features, labels) batches if they are that, and None if they are one array."""
    if hasattr(rows, "__array__") or not isinstance(rows, Iterable):
        return None
    if hasattr(rows, "n_features"):  # an opened file
        return rows
    iterator = iter(rows)
    first = next(iterator, None)
    if not (isinstance(first, tuple | list) and len(first) == 2 and np.ndim(first[0]) == 2):
        return None
    return chain([first], iterator)


def columns_of(rows: Any) -> tuple[str, ...] | None:
    """Return the column names of a frame or an opened file, unless it has none or the caller chose them by hand."""
    if hasattr(rows, "__array__"):
        names = getattr(rows, "columns", None)
    else:
        names = None if getattr(rows, "is_choice_explicit", False) else getattr(rows, "feature_names", None)
    if names is None or not all(isinstance(name, str) for name in names):
        return None
    return tuple(names)


def _pieces(features: NDArray[Any], labels: NDArray[Any] | None) -> Iterator[tuple[ArrayLike, ArrayLike | None]]:
    for piece in chunks(len(features), max(64, BATCH_BYTES // (8 * features.shape[1]))):
        yield features[piece], None if labels is None else labels[piece]


def _width(detector: Detector) -> int | None:
    """Return how many numbers a row of a detector has; a score of logits that was never fitted takes any number."""
    if hasattr(detector, "n_features_in_"):
        return int(detector.n_features_in_)
    head = getattr(detector, "head", None)
    return None if head is None else int(head.n_features)


def _shortened(names: tuple[str, ...], limit: int = 8) -> str:
    return ", ".join(map(repr, names[:limit])) + (f", ... ({len(names)})" if len(names) > limit else "")
