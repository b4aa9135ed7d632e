"""Files cut into pieces for the tasks of a cluster: runs of row groups of a Parquet file, or another file whole."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.files import FeatureFile
from gem_ood.files.arrow_rows import TableColumns
from gem_ood.files.parquet_sets import ParquetPart, read_row_groups, refuse_changed
from gem_ood.files.sources import Member

__all__ = ["FilePiece", "RowGroups", "WholeFile", "cut", "first_rows"]

#: A task reads so many bytes: long beside the start of a task, short beside the whole.
BYTES_PER_PIECE = 256 << 20


@dataclass(frozen=True)
class RowGroups:
    """Some neighbouring row groups of a Parquet file; iterate over them for (features, labels) batches.

    Attributes:
        path: The file, as every machine sees it.
        groups: The row groups.
        columns: What is features and labels.
        n_rows: The rows of these groups.
        label_file: The labels of the whole set, if they lie in a file beside.
        first_label: Where in that file those of this piece begin.
    """

    path: Path
    groups: tuple[int, ...]
    columns: TableColumns
    n_rows: int
    label_file: Member | None = None
    first_label: int = 0

    @property
    def place(self) -> str:
        """Which rows they are, for an error."""
        first, last = self.groups[0], self.groups[-1]
        return f"{self.path}, row group {first}" if first == last else f"{self.path}, row groups {first} to {last}"

    def __iter__(self) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
        return self.batches()

    def batches(self, batch_rows: int | None = None) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
        """Yield features and labels, at most so many rows at a time; by default, batches of some 16 MB."""
        n_read = 0
        for batch in read_row_groups(self.path, self.groups, columns=self.columns, batch_rows=batch_rows):
            labels = batch.labels
            if self.label_file is not None:
                first = self.first_label + n_read
                labels = self.label_file.rows(first, first + len(batch.features))
            yield batch.features, labels
            n_read += len(batch.features)
        refuse_changed(self.place, self.n_rows, n_read)


@dataclass(frozen=True)
class WholeFile:
    """A file that is read from end to end by one task."""

    file: FeatureFile

    @property
    def place(self) -> str:
        """Which rows they are, for an error."""
        return str(self.file.path)

    def __iter__(self) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
        return iter(self.file)


FilePiece = RowGroups | WholeFile


def first_rows(file: FeatureFile, n_rows: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return some of the first rows of an opened file or set."""
    piece = next(cut(file), None)
    if piece is None:
        raise InputError(f"{file.path} holds no rows; pass a file with at least one")
    features, labels = next(piece.batches(n_rows) if isinstance(piece, RowGroups) else iter(piece))
    return features[:n_rows], None if labels is None else labels[:n_rows]


def cut(file: FeatureFile, *, rows_per_part: int | None = None) -> Iterator[FilePiece]:
    """Yield the pieces of an opened file or set, in order: of so many rows, or of 256 MB once they are decompressed.

    Row groups stay whole, so a piece may be somewhat smaller, or larger where one row group is.
    """
    files, columns = file.parquet, file.columns
    if files is None or columns is None:
        yield WholeFile(replace(file, path=file.path.absolute(), on_rows=None))
        return
    first_label = 0
    for part in files.files:
        for groups in _runs(part, rows_per_part):
            n_rows = sum(part.row_groups[group].n_rows for group in groups)
            yield RowGroups(part.path.absolute(), groups, columns, n_rows, file.label_file, first_label)
            first_label += n_rows


def _runs(part: ParquetPart, rows_per_part: int | None) -> Iterator[tuple[int, ...]]:
    """Yield neighbouring row groups that are no more together than asked for; empty ones are left out."""
    most = BYTES_PER_PIECE if rows_per_part is None else rows_per_part
    run: list[int] = []
    size = 0
    for number, group in enumerate(part.row_groups):
        if group.n_rows == 0:
            continue
        own = group.n_bytes if rows_per_part is None else group.n_rows
        if run and size + own > most:
            yield tuple(run)
            run, size = [], 0
        run.append(number)
        size += own
    if run:
        yield tuple(run)
