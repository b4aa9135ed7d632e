"""RowSet: rows in whatever form they come, read once in checked batches."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.detectors import Detector
from gem_ood.detectors.columns import refuse_other_columns
from gem_ood.errors import InputError
from gem_ood.features import as_features, as_labels, chunks, refuse_non_finite

__all__ = ["RowSet", "as_row_set", "batches_or_none", "columns_of"]

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
        refuse_other_columns(detector, title=self.title, n_features=n_features, columns=self.columns, name=name)


def as_row_set(rows: Any, title: str, *, labels: ArrayLike | None = None, with_labels: bool = False) -> RowSet:
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
