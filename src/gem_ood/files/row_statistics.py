"""What reading every row of a file tells: rows that no detector takes, columns that never change, rows per class."""

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.files.reading import FeatureFile, rows_per_batch
from gem_ood.files.reading_ahead import read_ahead
from gem_ood.files.sources import Block

__all__ = ["RowStatistics", "row_statistics"]

#: More different labels than this are no classes, and counting them all could take memory without bound.
MOST_CLASSES = 100_000


@dataclass(frozen=True)
class RowStatistics:
    """What reading every row of a file tells.

    Attributes:
        n_rows: How many rows there are.
        n_bad_rows: How many hold NaN, an infinity or a missing value among their features.
        first_bad_row: The first of these, counted from 0 in its file; None without one.
        constant_columns: The places of the features that have one value in all rows.
        zero_columns: Those of them whose value is 0.
        n_classes: How many different labels there are; None without labels, or with more than 100,000.
        smallest_class: The label with the fewest rows, and how many.
        largest_class: The label with the most rows, and how many.
        n_missing_labels: How many rows have no label.
        first_bad_file: Of a set of files, the one with the first bad row.
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
    first_bad_file: str | None = None


def row_statistics(file: FeatureFile, on_rows: Callable[[int], None] | None = None) -> RowStatistics:
    """Return what the rows of an opened file tell, read once and a batch at a time."""
    folded = _Folded(file.n_features)
    blocks = read_ahead(_unchecked(file)) if file.source.is_decoded else _unchecked(file)
    with closing(blocks):
        for block in blocks:
            folded.add(block)
            if on_rows is not None:
                on_rows(folded.n_rows)
    return folded.result(is_file_set=file.is_file_set)


class _Folded:
    """Takes batches one by one and keeps a few numbers for each column and each class."""

    def __init__(self, n_features: int) -> None:
        self.n_rows = self._n_bad = self._n_missing_labels = 0
        self._first_bad: tuple[str, int] | None = None
        self._least = np.full(n_features, np.inf)
        self._most = np.full(n_features, -np.inf)
        self._counts: Counter[Any] | None = Counter()
        self._has_labels = False

    def add(self, block: Block) -> None:
        """Take a batch."""
        features, labels = block.features, block.labels
        if len(features) == 0:
            return
        if features.dtype.kind == "f":
            is_finite = np.isfinite(features)
            is_bad = ~is_finite.all(axis=1)
            if is_bad.any():
                self._n_bad += int(is_bad.sum())
                if self._first_bad is None:
                    self._first_bad = str(block.path), block.first_row + int(np.argmax(is_bad))
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

    def result(self, *, is_file_set: bool) -> RowStatistics:
        """Return what all batches told."""
        is_constant = self._least == self._most
        counts = self._counts if self._has_labels else None
        # Ties go to the first name, so that the same rows in another order tell the same.
        ordered = sorted(counts.items(), key=lambda entry: str(entry[0])) if counts else []
        return RowStatistics(
            n_rows=self.n_rows,
            n_bad_rows=self._n_bad,
            first_bad_row=None if self._first_bad is None else self._first_bad[1],
            constant_columns=tuple(np.flatnonzero(is_constant).tolist()),
            zero_columns=tuple(np.flatnonzero(is_constant & (self._least == 0.0)).tolist()),
            n_classes=None if counts is None else len(counts),
            smallest_class=min(ordered, key=lambda entry: entry[1]) if ordered else None,
            largest_class=max(ordered, key=lambda entry: entry[1]) if ordered else None,
            n_missing_labels=self._n_missing_labels,
            first_bad_file=self._first_bad[0] if self._first_bad is not None and is_file_set else None,
        )


def _unchecked(file: FeatureFile) -> Generator[Block, None, None]:
    """Yield features and labels as they are, with NaN and None for what a table has not."""
    size = rows_per_batch(file.n_features)
    source: Any = file.source
    if not hasattr(source, "table"):
        yield from source.read(size)
        return
    from gem_ood.files.arrow_rows import transposed

    columns = source.columns
    for piece in source.pieces(size):
        if columns.is_list:
            features = _lists(piece, columns.features[0], columns.n_features)
        else:
            features = transposed([_numbers(piece.batch.column(name)) for name in columns.features])
        labels = None if columns.labels is None else _values(piece.batch.column(columns.labels))
        yield Block(features, labels, piece.path, piece.first_row)


def _lists(piece: Any, name: str, n_features: int) -> NDArray[Any]:
    import pyarrow.compute as pc

    column = piece.batch.column(name)
    column = getattr(column, "storage", column)
    lengths = pc.list_value_length(column).fill_null(n_features).to_numpy(zero_copy_only=False)
    if (lengths != n_features).any():
        row = int(np.argmax(lengths != n_features))
        raise InputError(
            f"{piece.path}: row {piece.first_row + row} has {lengths[row]} numbers but the first row has {n_features}; "
            f"every row needs as many"
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
