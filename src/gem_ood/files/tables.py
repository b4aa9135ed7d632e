"""Parquet and CSV: columns of numbers, or one column of lists, streamed batch by batch with pyarrow."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from gem_ood.errors import InputError
from gem_ood.files.arrow_rows import (
    Piece,
    TableColumns,
    as_block,
    is_list,
    is_number,
    missing_value,
    plain_type,
    stored,
)
from gem_ood.files.parquet_sets import ParquetSet
from gem_ood.files.sources import LABEL_NAMES, Block

__all__ = ["Table", "TableSource", "open_table", "read_table"]


class Table(Protocol):
    """Named columns of one file, or of several that have the same ones."""

    @property
    def path(self) -> Path: ...  # noqa: D102
    @property
    def schema(self) -> pa.Schema: ...  # noqa: D102
    @property
    def n_rows(self) -> int | None: ...  # noqa: D102

    def read(self, columns: list[str], labels: str | None, batch_rows: int) -> Iterator[Piece]:
        """Yield the columns, at most batch_rows rows at a time."""
        ...


@dataclass(frozen=True)
class TableSource:
    """Features that are a set of columns, or one column of lists, of a table."""

    table: Table
    columns: TableColumns
    left_out: tuple[str, ...]

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The columns that make up the features; None for one of lists."""
        return None if self.columns.is_list else self.columns.features

    @property
    def n_features(self) -> int:
        """The numbers in a row."""
        return self.columns.n_features

    @property
    def n_rows(self) -> int | None:
        """The number of rows; None where only reading to the end would tell."""
        return self.table.n_rows

    @property
    def has_labels(self) -> bool:
        """Whether there is a label per row."""
        return self.columns.labels is not None

    @property
    def is_decoded(self) -> bool:
        """Whether reading takes a processor's time; CSV has a thread of its own."""
        return isinstance(self.table, ParquetSet)

    def without_labels(self) -> "TableSource":
        """Return the features alone."""
        return replace(self, columns=self.columns.without_labels())

    def pieces(self, batch_rows: int) -> Iterator[Piece]:
        """Yield the columns that are read, at most batch_rows rows at a time."""
        return self.table.read(list(self.columns.features), self.columns.labels, batch_rows)

    def read(self, batch_rows: int) -> Iterator[Block]:
        """Yield features and labels as arrays."""
        for piece in self.pieces(batch_rows):
            yield as_block(piece.batch, self.columns, piece.path, piece.first_row)


def read_table(path: Path, suffix: str) -> Table:
    """Return the table of a file, or of the files of a set; no row is read."""
    if suffix == ".csv":
        from gem_ood.files.csv_table import CSVTable

        return CSVTable.open(path)
    return ParquetSet.open(path)


def open_table(
    path: Path,
    suffix: str,
    features: str | Sequence[str] | None,
    labels: str | Literal[False] | None,
    fitted_names: Sequence[str] | None,
) -> TableSource:
    """Return the rows of a table whose features are the columns asked for, else those of the fit by their names.

    By default every numeric column that is not the labels is a feature.
    """
    table = read_table(path, suffix)
    fitted = _fitted_columns(table, fitted_names) if features is None and fitted_names is not None else None
    label_name = _choose_labels(table, labels, fitted or ())
    usual_label = next((name for name in LABEL_NAMES if name in table.schema.names), None)
    names = fitted or _choose_features(table, features, label_name or usual_label)
    if label_name in names:
        raise InputError(
            f"{path}: column {label_name!r} would be both a feature and the labels; leave it out of features, or "
            f"name other labels, or none"
        )
    has_lists = len(names) == 1 and is_list(table.schema.field(names[0]).type)
    if not has_lists:
        _refuse_other_than_numbers(table, names)
    n_features = _list_length(table, names[0]) if has_lists else len(names)
    columns = TableColumns(names, label_name, has_lists, n_features)
    if isinstance(table, ParquetSet):
        table.refuse_other_kinds(columns)
    left_out: tuple[str, ...] = ()
    if features is None and fitted is None and names != ("features",):
        kept = {*names, label_name or usual_label}
        left_out = tuple(name for name in table.schema.names if name not in kept)
    return TableSource(table, columns, left_out)


def _fitted_columns(table: Table, fitted_names: Sequence[str]) -> tuple[str, ...] | None:
    names = table.schema.names
    missing = [name for name in fitted_names if name not in names]
    if not missing:
        return tuple(fitted_names)
    if "features" in names and is_list(table.schema.field("features").type):
        return None  # the entries of a list have no names
    noun = "column" if len(missing) == 1 else "columns"
    raise InputError(
        f"{table.path} has no {noun} {_listed(missing)}, but the detector was fitted on {_listed(fitted_names)}; it "
        f"has {_listed(names)}: rename them, or list the columns that stand for those of the fit with features"
    )


def _choose_labels(table: Table, wanted: str | Literal[False] | None, fitted: Sequence[str]) -> str | None:
    names = table.schema.names
    if wanted is False:
        return None
    if wanted is None:
        found = next((name for name in LABEL_NAMES if name in names and name not in fitted), None)
        if found is None and isinstance(table, ParquetSet):
            _refuse_labels_in_names(table)
        return found
    if wanted not in names:
        raise InputError(f"{table.path} has no column {wanted!r} for the labels; it has {_listed(names)}")
    return wanted


def _refuse_labels_in_names(table: ParquetSet) -> None:
    """Raise if directories are named label=cat, as partitions are: without their labels all rows were one class."""
    for file in table.files:
        for part in file.name.split("/")[:-1]:
            if part.partition("=")[0] in LABEL_NAMES and "=" in part:
                raise InputError(
                    f"{file.path}: the labels are in the name of the directory {part!r} but must be a column of the "
                    f"files; write them as one, or ignore them"
                )


def _choose_features(table: Table, wanted: str | Sequence[str] | None, label_name: str | None) -> tuple[str, ...]:
    names = table.schema.names
    if wanted is None:
        if "features" in names:
            return ("features",)
        if "" in names:
            raise InputError(
                f"{table.path} has a column without a name, perhaps a saved row index; drop it (pandas: "
                f"to_csv(index=False)) or list the columns to use with features"
            )
        numeric = tuple(field.name for field in table.schema if is_number(field.type) and field.name != label_name)
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


def _refuse_other_than_numbers(table: Table, names: Sequence[str]) -> None:
    for name in names:
        kind = plain_type(table.schema.field(name).type)
        if not (is_number(kind) or pa.types.is_boolean(kind)):
            raise InputError(
                f"{table.path}: column {name!r} holds {kind}, not numbers; encode it as numbers, mend the cells "
                f"that are not, or leave it out of features"
            )


def _list_length(table: Table, name: str) -> int:
    kind = plain_type(table.schema.field(name).type)
    if not is_number(kind.value_type):
        raise InputError(
            f"{table.path}: column {name!r} holds {kind}, not lists of numbers; store one flat list per row"
        )
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size)
    for piece in table.read([name], None, 1):
        length = pc.list_value_length(stored(piece.batch.column(0)))[0].as_py()
        if length is None:
            raise InputError(missing_value(f"{piece.path}: row", piece.first_row, name))
        return int(length)
    raise InputError(f"{table.path} holds no rows; pass a file with at least one")


def _listed(names: Sequence[str], limit: int = 20) -> str:
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "") or "no column"
