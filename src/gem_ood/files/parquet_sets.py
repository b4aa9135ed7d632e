"""Parquet files, one or many of the same columns, streamed: only the columns asked for, a bounded number of rows.

The same functions read them here and in the workers of a cluster, which take some row groups of a file each.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gem_ood.errors import FileFormatError, InputError
from gem_ood.files.arrow_rows import Piece, TableColumns, as_block, is_list, is_number, plain_type
from gem_ood.files.checking import checked_features, checked_labels
from gem_ood.files.listing import is_file_set, list_parquet
from gem_ood.files.reading import rows_per_batch

__all__ = [
    "ParquetPart",
    "ParquetSet",
    "RowGroup",
    "RowGroupBatch",
    "damaged_row_group",
    "read_row_groups",
    "refuse_changed",
]

#: Each column is read through a buffer of this size, so that a file of one giant row group streams too.
BUFFER_BYTES = 1 << 16


@dataclass(frozen=True)
class RowGroup:
    """Rows of a file that lie together: how many, and their bytes once decompressed."""

    n_rows: int
    n_bytes: int


@dataclass(frozen=True)
class ParquetPart:
    """What the footer of one file of a set says.

    Attributes:
        path: Where the file is.
        name: Its path within the set, with slashes.
        n_rows: How many rows it has; there may be none.
        n_bytes: Its size on disk.
        row_groups: The row groups, in order.
        schema: Its columns; equal ones are one object.
        n_listed: Of each column of lists, how many numbers all rows have together.
    """

    path: Path
    name: str
    n_rows: int
    n_bytes: int
    row_groups: tuple[RowGroup, ...]
    schema: pa.Schema
    n_listed: Mapping[str, int]


@dataclass(frozen=True)
class RowGroupBatch:
    """A run of checked rows of a file, its place in that file, and the other columns as Arrow arrays."""

    features: NDArray[Any]
    labels: NDArray[Any] | None
    other: Mapping[str, Any]
    first_row: int


@dataclass(frozen=True)
class ParquetSet:
    """The Parquet files of a directory or pattern, or one file: same columns, rows in the order of the files' names.

    Reading holds a batch and, of each column, one page (at most a megabyte, unless its writer chose otherwise).

    Attributes:
        path: The file, directory or pattern.
        schema: The columns of the first file.
        files: What each file holds.
    """

    path: Path
    schema: pa.Schema
    files: tuple[ParquetPart, ...]

    @classmethod
    def open(cls, path: Path) -> "ParquetSet":
        """Return the set at path; only footers are read."""
        root, paths = list_parquet(path) if is_file_set(path) else (path.parent, (path,))
        files: list[ParquetPart] = []
        for file in paths:
            part = _footer(file, file.relative_to(root).as_posix())
            if files and part.schema.equals(files[-1].schema):
                part = replace(part, schema=files[-1].schema)
            elif files:
                _refuse_other_names(part, files[0])
            files.append(part)
        return cls(path, files[0].schema, tuple(files))

    @property
    def n_rows(self) -> int:
        """The rows of all files."""
        return sum(file.n_rows for file in self.files)

    @property
    def n_bytes(self) -> int:
        """The bytes of all files on disk."""
        return sum(file.n_bytes for file in self.files)

    def read(self, columns: list[str], labels: str | None, batch_rows: int) -> Iterator[Piece]:
        """Yield the columns, at most batch_rows rows at a time, file by file."""
        wanted = [*columns, *([labels] if labels is not None else [])]
        for file in self.files:
            n_read = 0
            for piece in _pieces(file.path, range(len(file.row_groups)), wanted, batch_rows):
                n_read += piece.batch.num_rows
                yield piece
            refuse_changed(str(file.path), file.n_rows, n_read)

    def only(self, file: ParquetPart) -> "ParquetSet":
        """Return the set of this file alone."""
        return ParquetSet(file.path, file.schema, (file,))

    def refuse_other_kinds(self, columns: TableColumns) -> None:
        """Raise if a file has another kind of value, or lists of another length, in one of these columns."""
        first, checked = self.files[0], self.schema
        decisive = next((file for file in self.files if file.n_rows), None)  # its first row says how long a list is
        for file in self.files:
            if file.schema is not checked:
                for name in columns.names:
                    kind, other = (_kind(part.schema.field(name).type) for part in (first, file))
                    if kind != other:
                        raise InputError(
                            f"{file.path}: column {name!r} holds {other} but in {first.path} it holds {kind}; write "
                            f"all files alike, or pass them one by one"
                        )
                checked = file.schema
            if columns.is_list and file is not decisive:
                _refuse_other_length(file, columns)


def read_row_groups(
    path: Path,
    groups: Sequence[int],
    *,
    columns: TableColumns,
    other: Sequence[str] = (),
    batch_rows: int | None = None,
) -> Iterator[RowGroupBatch]:
    """Yield the rows of some row groups of one file as checked batches.

    Args:
        path: The file.
        groups: Which row groups, in this order.
        columns: What is features and labels, as `FeatureFile.columns` of the opened set has it.
        other: Further columns to read along, as they are.
        batch_rows: At most this many rows at a time; by default, as many as local reading takes.

    Raises:
        FileFormatError: The file is damaged; the message names it and the row group.
        InputError: A value is missing or not finite; the message names the file and the row of it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = Path(directory) / "rows.parquet"
        ...     pq.write_table(pa.table({"a": [1.0, 2.0, 3.0], "y": [0, 1, 1]}), path, row_group_size=2)
        ...     columns = TableColumns(("a",), "y", is_list=False, n_features=1)
        ...     [(rows.features, rows.labels, rows.first_row) for rows in read_row_groups(path, [1], columns=columns)]
        [(array([[3.]]), array([1]), 2)]
    """
    size = batch_rows or rows_per_batch(columns.n_features)
    wanted = [*columns.names, *(name for name in other if name not in columns.names)]
    for piece in _pieces(path, groups, wanted, size):
        if piece.batch.num_rows:
            block = as_block(piece.batch, columns, path, piece.first_row)
            yield RowGroupBatch(
                checked_features(block.features, path, block.first_row),
                None if block.labels is None else checked_labels(block.labels, path, block.first_row),
                {name: piece.batch.column(name) for name in other},
                block.first_row,
            )


def damaged_row_group(
    path: Path, groups: Sequence[int] | None = None, *, columns: Sequence[str] | None = None, first_row: int = 0
) -> int | None:
    """Return the first row group that cannot be read, or None if each can, or not even the footer.

    Each is tried by itself.

    Args:
        path: The file.
        groups: Which to try; all by default.
        columns: Which columns to read; all by default.
        first_row: Row groups that end before this row of the file are known to be good.
    """
    n_before = 0
    with suppress(pa.ArrowException, OSError), _opened(path) as file:
        for group in range(file.metadata.num_row_groups):
            n_before += file.metadata.row_group(group).num_rows
            if n_before <= first_row or (groups is not None and group not in groups):
                continue
            try:
                for _ in file.iter_batches(1024, row_groups=[group], columns=columns):
                    pass
            except (pa.ArrowException, OSError):
                return group
    return None


def refuse_changed(place: str, n_rows: int, n_read: int) -> None:
    """Raise if other rows were read than there were when the file was opened."""
    if n_read != n_rows:
        raise InputError(
            f"{place} had {n_rows} rows when it was opened but {n_read} when it was read; begin again when nothing "
            f"writes to it"
        )


def _pieces(path: Path, groups: Sequence[int], wanted: list[str], batch_rows: int) -> Iterator[Piece]:
    """Yield batches of the row groups; each run of neighbours is read in one go, whatever the size of its groups."""
    for run in _runs(groups):
        row = stop = 0
        try:
            with _opened(path) as file:
                sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
                if run[-1] >= len(sizes):
                    raise InputError(f"{path} has {len(sizes)} row groups but number {run[-1]} is asked for")
                row, stop = sum(sizes[: run[0]]), sum(sizes[: run[-1] + 1])
                for batch in file.iter_batches(batch_rows, row_groups=run, columns=wanted):
                    yield Piece(batch, path, row)
                    row += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            place = damaged_row_group(path, run, columns=wanted, first_row=row) if row < stop else None
            raise _unreadable(path, error, place) from error


def _runs(groups: Sequence[int]) -> Iterator[list[int]]:
    """Yield the runs of neighbouring numbers.

    >>> list(_runs([0, 1, 2, 5, 4]))
    [[0, 1, 2], [5], [4]]
    """
    bounds = [place + 1 for place, (one, next_one) in enumerate(pairwise(groups)) if next_one != one + 1]
    for start, stop in pairwise([0, *bounds, len(groups)]):
        if start < stop:
            yield list(groups[start:stop])


def _opened(path: Path) -> pq.ParquetFile:
    # Where a writer left checksums of pages, as Spark does, they are verified: nothing else tells of a changed number.
    return pq.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True)


def _footer(path: Path, name: str) -> ParquetPart:
    try:
        with pq.ParquetFile(path) as file:
            metadata, schema = file.metadata, file.schema_arrow
            leaves = [file.schema.column(place).path for place in range(metadata.num_columns)]
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    if len(set(schema.names)) < len(schema.names):
        raise InputError(f"{path} has two columns of one name; rename one")
    groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    lists = {entry.name for entry in schema if is_list(entry.type)}
    n_listed = {
        leaf.split(".")[0]: sum(group.column(place).num_values for group in groups)
        for place, leaf in enumerate(leaves)
        if leaf.split(".")[0] in lists
    }
    row_groups = tuple(RowGroup(group.num_rows, group.total_byte_size) for group in groups)
    return ParquetPart(path, name, metadata.num_rows, path.stat().st_size, row_groups, schema, n_listed)


def _refuse_other_names(part: ParquetPart, first: ParquetPart) -> None:
    names, others = set(first.schema.names), set(part.schema.names)
    for has, name in [("no", name) for name in first.schema.names if name not in others] + [
        ("a", name) for name in part.schema.names if name not in names
    ]:
        contrast = "has one" if has == "no" else "has none"
        raise InputError(
            f"{part.path} has {has} column {name!r} but {first.path} {contrast}; all files of a set need the same "
            f"columns: move it elsewhere, or write it again"
        )


def _refuse_other_length(file: ParquetPart, columns: TableColumns) -> None:
    """Raise if the lists of a file have another length, as its footer tells; else reading names the row."""
    n_listed = file.n_listed.get(columns.features[0])
    if n_listed is None or not file.n_rows or n_listed % file.n_rows:
        return
    length = n_listed // file.n_rows
    if length not in (columns.n_features, 1):  # a list that is missing counts as one number
        raise InputError(
            f"{file.path}: column {columns.features[0]!r} has {length} numbers a row but in the first file it has "
            f"{columns.n_features}; all files of a set need as many"
        )


def _kind(kind: Any) -> str:
    """Return a type in words, so that types with one word can stand for one another.

    >>> _kind(pa.int32()), _kind(pa.dictionary(pa.int8(), pa.string()))
    ('numbers', 'text')
    """
    kind = plain_type(kind)
    if pa.types.is_dictionary(kind):
        return _kind(kind.value_type)
    if is_list(kind):
        return f"lists of {_kind(kind.value_type)}"
    if is_number(kind) or pa.types.is_boolean(kind):
        return "numbers"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    return str(kind)


def _unreadable(path: Path, error: BaseException, group: int | None = None) -> InputError:
    if isinstance(error, OSError) and error.errno is not None:
        return InputError(f"{path} cannot be read ({os.strerror(error.errno)}); mend that, or leave the file out")
    cause = " ".join(str(error).split()).rstrip(".")
    if group is not None:
        return FileFormatError(f"{path}, row group {group}: the file is damaged or truncated ({cause}); write it again")
    return FileFormatError(f"{path} is not a Parquet file, or is damaged or truncated ({cause}); write it again")
