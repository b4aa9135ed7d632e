"""Parquet and CSV: columns of numbers, or one column of lists, streamed batch by batch with pyarrow."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.files.sources import LABEL_NAMES, Source

__all__ = ["open_table"]


class _Table(Protocol):
    """One file of named columns."""

    @property
    def path(self) -> Path: ...
    @property
    def schema(self) -> pa.Schema: ...
    @property
    def n_rows(self) -> int | None: ...

    def read(self, columns: list[str], labels: str | None, batch_rows: int) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True)
class _TableSource:
    """Features that are a set of columns, or one column of lists, of a table."""

    table: _Table
    columns: tuple[str, ...]
    left_out: tuple[str, ...]
    labels: str | None
    is_list: bool
    n_features: int

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        return None if self.is_list else self.columns

    @property
    def n_rows(self) -> int | None:
        return self.table.n_rows

    @property
    def has_labels(self) -> bool:
        return self.labels is not None

    def without_labels(self) -> "_TableSource":
        return replace(self, labels=None)

    def read(self, batch_rows: int) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
        first_row = 0
        for batch in self.table.read(list(self.columns), self.labels, batch_rows):
            place = f"{self.table.path}: row"
            if self.is_list:
                column = batch.column(self.columns[0])
                features = _lists(column, self.columns[0], self.n_features, first_row, place)
            else:
                features = _columns(batch, self.columns, first_row, place)
            labels = None
            if self.labels is not None:
                labels = _labels(batch.column(self.labels), self.labels, first_row, place)
            yield features, labels
            first_row += batch.num_rows


def open_table(
    path: Path,
    suffix: str,
    features: str | Sequence[str] | None,
    labels: str | Literal[False] | None,
    fitted_names: Sequence[str] | None,
) -> Source:
    """Return the rows of a table whose features are the columns asked for, else those of the fit by their names.

    By default every numeric column that is not the labels is a feature.
    """
    table: _Table
    if suffix == ".csv":
        from gem_ood.files.csv_table import CSVTable

        table = CSVTable.open(path)
    else:
        from gem_ood.files.parquet_table import ParquetTable

        table = ParquetTable.open(path)
    fitted = _fitted_columns(table, fitted_names) if features is None and fitted_names is not None else None
    label_name = _choose_labels(table, labels, fitted or ())
    usual_label = next((name for name in LABEL_NAMES if name in table.schema.names), None)
    names = fitted or _choose_features(table, features, label_name or usual_label)
    if label_name in names:
        raise InputError(
            f"{path}: column {label_name!r} would be both a feature and the labels; leave it out of features, or "
            f"name other labels, or none"
        )
    is_list = len(names) == 1 and _is_list(table.schema.field(names[0]).type)
    if not is_list:
        _refuse_other_than_numbers(table, names)
    n_features = _list_length(table, names[0]) if is_list else len(names)
    left_out: tuple[str, ...] = ()
    if features is None and fitted is None and names != ("features",):
        kept = {*names, label_name or usual_label}
        left_out = tuple(name for name in table.schema.names if name not in kept)
    return _TableSource(table, names, left_out, label_name, is_list, n_features)


def _fitted_columns(table: _Table, fitted_names: Sequence[str]) -> tuple[str, ...] | None:
    names = table.schema.names
    missing = [name for name in fitted_names if name not in names]
    if not missing:
        return tuple(fitted_names)
    if "features" in names and _is_list(table.schema.field("features").type):
        return None  # the entries of a list have no names
    noun = "column" if len(missing) == 1 else "columns"
    raise InputError(
        f"{table.path} has no {noun} {_listed(missing)}, but the detector was fitted on {_listed(fitted_names)}; it "
        f"has {_listed(names)}: rename them, or list the columns that stand for those of the fit with features"
    )


def _choose_labels(table: _Table, wanted: str | Literal[False] | None, fitted: Sequence[str]) -> str | None:
    names = table.schema.names
    if wanted is False:
        return None
    if wanted is None:
        return next((name for name in LABEL_NAMES if name in names and name not in fitted), None)
    if wanted not in names:
        raise InputError(f"{table.path} has no column {wanted!r} for the labels; it has {_listed(names)}")
    return wanted


def _choose_features(table: _Table, wanted: str | Sequence[str] | None, label_name: str | None) -> tuple[str, ...]:
    names = table.schema.names
    if wanted is None:
        if "features" in names:
            return ("features",)
        if "" in names:
            raise InputError(
                f"{table.path} has a column without a name, perhaps a saved row index; drop it (pandas: "
                f"to_csv(index=False)) or list the columns to use with features"
            )
        numeric = tuple(field.name for field in table.schema if _is_number(field.type) and field.name != label_name)
        if not numeric:
            raise InputError(
                f"{table.path} has no column 'features' and no numeric column besides the labels; it has "
                f"{_listed(names)}: name the features"
            )
        return numeric
    if isinstance(wanted, str):
        wanted = [wanted] if wanted in names else [name.strip() for name in wanted.split(",")]
    for name in wanted:
        if name not in names:
            raise InputError(f"{table.path} has no column {name!r} for the features; it has {_listed(names)}")
    if len(set(wanted)) < len(wanted):
        raise InputError(f"features names a column twice: {', '.join(wanted)}; name each once")
    return tuple(wanted)


def _refuse_other_than_numbers(table: _Table, names: Sequence[str]) -> None:
    for name in names:
        kind = _plain(table.schema.field(name).type)
        if not (_is_number(kind) or pa.types.is_boolean(kind)):
            raise InputError(
                f"{table.path}: column {name!r} holds {kind}, not numbers; encode it as numbers, mend the cells "
                f"that are not, or leave it out of features"
            )


def _list_length(table: _Table, name: str) -> int:
    kind = _plain(table.schema.field(name).type)
    if not _is_number(kind.value_type):
        raise InputError(
            f"{table.path}: column {name!r} holds {kind}, not lists of numbers; store one flat list per row"
        )
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size)
    for batch in table.read([name], None, 1):
        length = pc.list_value_length(_storage(batch.column(0)))[0].as_py()
        if length is None:
            raise InputError(_missing(f"{table.path}: row", 0, name))
        return int(length)
    raise InputError(f"{table.path} holds no rows; pass a file with at least one")


def _columns(batch: pa.RecordBatch, names: Sequence[str], first_row: int, place: str) -> NDArray[Any]:
    arrays = []
    for name in names:
        column = _storage(batch.column(name))
        if column.null_count:
            raise InputError(_missing(place, first_row + _first_null(column), name))
        arrays.append(column.to_numpy(zero_copy_only=False))
    return np.stack(arrays, axis=1)


def _lists(column: Any, name: str, n_features: int, first_row: int, place: str) -> NDArray[Any]:
    column = _storage(column)
    if column.null_count:
        raise InputError(_missing(place, first_row + _first_null(column), name))
    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    if (lengths != n_features).any():
        row = int(np.argmax(lengths != n_features))
        raise InputError(
            f"{place} {first_row + row}, column {name!r} has {lengths[row]} numbers but row 0 has {n_features}; "
            f"every row needs as many"
        )
    values = column.flatten()
    if values.null_count:
        raise InputError(_missing(place, first_row + _first_null(values) // n_features, name))
    matrix: NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(len(column), n_features)
    return matrix


def _labels(column: Any, name: str, first_row: int, place: str) -> NDArray[Any]:
    column = _storage(column)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count:
        raise InputError(_missing(place, first_row + _first_null(column), name))
    labels: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return labels


def _missing(place: str, row: int, name: str) -> str:
    return f"{place} {row}, column {name!r} is missing (null, NaN or empty); remove or impute that row"


def _first_null(column: Any) -> int:
    return int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))


def _plain(kind: Any) -> Any:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _storage(column: Any) -> Any:
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_list(kind: Any) -> bool:
    kind = _plain(kind)
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _listed(names: Sequence[str], limit: int = 20) -> str:
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "") or "no column"
