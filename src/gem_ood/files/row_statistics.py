"""What reading every row of a file tells: rows that no detector takes, columns that never change, rows per class."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.files.reading import BATCH_BYTES, FeatureFile

__all__ = ["RowStatistics", "row_statistics"]

#: More different labels than this are no classes, and counting them all could take memory without bound.
MOST_CLASSES = 100_000


@dataclass(frozen=True)
class RowStatistics:
    """What reading every row of a file tells.

    Attributes:
        n_rows: How many rows there are.
        n_bad_rows: How many hold NaN, an infinity or a missing value among their features.
        first_bad_row: The first of these, counted from 0; None without one.
        constant_columns: The places of the features that have one value in all rows.
        zero_columns: Those of them whose value is 0.
        n_classes: How many different labels there are; None without labels, or with more than 100,000.
        smallest_class: The label with the fewest rows, and how many.
        largest_class: The label with the most rows, and how many.
        n_missing_labels: How many rows have no label.
    """

    n_rows: int
    n_bad_rows: int
    first_bad_row: int | None
    constant_columns: tuple[int, ...]
    zero_columns: tuple[int, ...]
    n_classes: int | None
    smallest_class: tuple[Any, int] | None
    largest_class: tuple[Any, int] | None
    n_missing_labels: int


def row_statistics(file: FeatureFile, on_rows: Callable[[int], None] | None = None) -> RowStatistics:
    """Return what the rows of an opened file tell, read once and a batch at a time."""
    folded = _Folded(file.n_features)
    for features, labels in _unchecked(file):
        folded.add(features, labels)
        if on_rows is not None:
            on_rows(folded.n_rows)
    return folded.result()


class _Folded:
    """Takes batches one by one and keeps a few numbers for each column and each class."""

    def __init__(self, n_features: int) -> None:
        self.n_rows = self._n_bad = self._n_missing_labels = 0
        self._first_bad: int | None = None
        self._least = np.full(n_features, np.inf)
        self._most = np.full(n_features, -np.inf)
        self._counts: Counter[Any] | None = Counter()
        self._has_labels = False

    def add(self, features: NDArray[Any], labels: NDArray[Any] | None) -> None:
        """Take a batch."""
        if len(features) == 0:
            return
        if features.dtype.kind == "f":
            is_finite = np.isfinite(features)
            is_bad = ~is_finite.all(axis=1)
            if is_bad.any():
                self._n_bad += int(is_bad.sum())
                if self._first_bad is None:
                    self._first_bad = self.n_rows + int(np.argmax(is_bad))
                self._fold(np.where(is_finite, features, np.inf), np.where(is_finite, features, -np.inf))
            else:
                self._fold(features, features)
        else:
            self._fold(features, features)
        if labels is not None:
            self._count(labels.reshape(len(labels)))
        self.n_rows += len(features)

    def _fold(self, low: NDArray[Any], high: NDArray[Any]) -> None:
        np.minimum(self._least, low.min(axis=0), out=self._least)
        np.maximum(self._most, high.max(axis=0), out=self._most)

    def _count(self, labels: NDArray[Any]) -> None:
        self._has_labels = True
        if labels.dtype.kind == "O":
            is_missing = np.array([label is None or (isinstance(label, float) and isnan(label)) for label in labels])
        elif labels.dtype.kind in "fcmM":  # times that are none count as NaN
            is_missing = np.isnan(labels)
        else:
            is_missing = np.zeros(len(labels), dtype=bool)
        self._n_missing_labels += int(is_missing.sum())
        present = labels[~is_missing]
        if self._counts is None or len(present) == 0:
            return
        # By their Python values: a batch with gaps holds objects where another holds an array of numbers.
        if present.dtype.kind == "O":
            self._counts.update(present.tolist())
        else:
            names, counts = np.unique(present, return_counts=True)
            self._counts.update(dict(zip(names.tolist(), counts.tolist(), strict=True)))
        if len(self._counts) > MOST_CLASSES:
            self._counts = None

    def result(self) -> RowStatistics:
        """Return what all batches told."""
        is_constant = self._least == self._most
        counts = self._counts if self._has_labels else None
        # Ties go to the first name, so that the same rows in another order tell the same.
        ordered = sorted(counts.items(), key=lambda entry: str(entry[0])) if counts else []
        return RowStatistics(
            n_rows=self.n_rows,
            n_bad_rows=self._n_bad,
            first_bad_row=self._first_bad,
            constant_columns=tuple(np.flatnonzero(is_constant).tolist()),
            zero_columns=tuple(np.flatnonzero(is_constant & (self._least == 0.0)).tolist()),
            n_classes=None if counts is None else len(counts),
            smallest_class=min(ordered, key=lambda entry: entry[1]) if ordered else None,
            largest_class=max(ordered, key=lambda entry: entry[1]) if ordered else None,
            n_missing_labels=self._n_missing_labels,
        )


def _unchecked(file: FeatureFile) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
    """Yield features and labels as they are, with NaN and None for what a table has not."""
    size = max(64, BATCH_BYTES // (8 * file.n_features))
    source: Any = file.source
    if not hasattr(source, "table"):
        yield from source.read(size)
        return
    first_row = 0
    for batch in source.table.read(list(source.columns), source.labels, size):
        if source.is_list:
            features = _lists(batch.column(source.columns[0]), source.n_features, first_row, file)
        else:
            features = np.stack([_numbers(batch.column(name)) for name in source.columns], axis=1)
        labels = None if source.labels is None else _values(batch.column(source.labels))
        yield features, labels
        first_row += batch.num_rows


def _lists(column: Any, n_features: int, first_row: int, file: FeatureFile) -> NDArray[Any]:
    import pyarrow.compute as pc

    column = getattr(column, "storage", column)
    lengths = pc.list_value_length(column).fill_null(n_features).to_numpy(zero_copy_only=False)
    if (lengths != n_features).any():
        row = int(np.argmax(lengths != n_features))
        raise InputError(
            f"{file.path}: row {first_row + row} has {lengths[row]} numbers but row 0 has {n_features}; every row "
            f"needs as many"
        )
    is_there = column.is_valid().to_numpy(zero_copy_only=False)
    features = np.full((len(column), n_features), np.nan)
    features[is_there] = _numbers(column.filter(column.is_valid()).flatten()).reshape(-1, n_features)
    return features


def _numbers(column: Any) -> NDArray[Any]:
    import pyarrow as pa

    column = getattr(column, "storage", column)
    numbers: NDArray[Any] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers


def _values(column: Any) -> NDArray[Any]:
    """Return labels so that one value is one name, whether its batch has gaps or not."""
    import pyarrow as pa

    column = getattr(column, "storage", column)
    if pa.types.is_timestamp(column.type):  # without its zone, whose names not every system has
        column = column.cast(pa.timestamp(column.type.unit)).cast(pa.string())
    elif pa.types.is_duration(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_nested(column.type):  # lists and the like cannot be counted, their text can
        texts = [None if value is None else str(value) for value in column.to_pylist()]
        column = pa.array(texts, type=pa.string())
    if column.null_count:
        return np.array(column.to_pylist(), dtype=object)
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values
