"""What a file of rows holds, and its rows in batches: one way in for every format."""

import os
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import NDArray

from gem_ood.errors import FileFormatError, InputError
from gem_ood.files.checking import checked_features, checked_labels
from gem_ood.files.listing import SET_SUFFIX, is_file_set, list_parquet
from gem_ood.files.reading_ahead import read_ahead
from gem_ood.files.sources import Member, Source
from gem_ood.storage import refuse_special

if TYPE_CHECKING:
    from gem_ood.files.arrow_rows import TableColumns
    from gem_ood.files.parquet_sets import ParquetSet

__all__ = ["READABLE", "Batch", "FeatureFile", "Labels", "open_features", "refuse_unreadable", "rows_per_batch"]

#: The suffixes that `open_features` reads.
READABLE = (".npz", ".npy", ".parquet", ".csv", ".safetensors")

#: A batch of this many bytes keeps matrix products busy and is small beside any computer's memory.
BATCH_BYTES = 32 << 20

#: A column's or member's name, a `.npy` file, None for the usual names, or False for no labels at all.
Labels = str | os.PathLike[str] | Literal[False] | None


@dataclass(frozen=True)
class Batch:
    """A run of rows, already checked: finite features, one label per row or None, and its place among all rows."""

    features: NDArray[Any]
    labels: NDArray[Any] | None
    first_row: int


@dataclass(frozen=True)
class FeatureFile:
    """The rows of a file, or of a set of files; iterate over it, as often as you like, for (features, labels) batches.

    Attributes:
        path: Where the file is, or the directory or pattern of the set.
        n_features: How many numbers a row has.
        n_rows: How many rows there are; None where only reading to the end would tell (CSV).
        has_labels: Whether the batches carry labels.
        feature_names: The columns that make up the features; None where one array or column of lists holds them.
        left_out: The columns that hold other things than numbers, if the features were chosen by default.
        is_choice_explicit: Whether the caller named the features, so that their order is the caller's.
    """

    path: Path
    n_features: int
    n_rows: int | None
    has_labels: bool
    feature_names: tuple[str, ...] | None
    left_out: tuple[str, ...]
    is_choice_explicit: bool
    source: Source = field(repr=False)
    label_file: Member | None = field(default=None, repr=False)
    on_rows: Callable[[int], None] | None = field(default=None, repr=False)

    def watched(self, on_rows: Callable[[int], None]) -> "FeatureFile":
        """Return the same file that calls on_rows, after each batch, with the number of rows read so far."""
        return replace(self, on_rows=on_rows)

    def without_labels(self) -> "FeatureFile":
        """Return the same rows with their labels left unread; a column named as labels stays out of the features."""
        return replace(self, has_labels=False, source=self.source.without_labels(), label_file=None)

    def __iter__(self) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
        for batch in self.batches():
            yield batch.features, batch.labels

    def batches(self) -> Iterator[Batch]:
        """Yield the rows in order, each batch bounded in memory; an error names the file and the row of it.

        What must be decoded is read ahead by another thread, which holds two batches more.
        """
        found = read_ahead(self._batches()) if self.source.is_decoded else self._batches()
        with closing(found):
            for batch in found:
                yield batch
                if self.on_rows is not None:
                    self.on_rows(batch.first_row + len(batch.features))

    def _batches(self) -> Generator[Batch, None, None]:
        n_read = 0
        for block in self.source.read(rows_per_batch(self.n_features)):
            if len(block.features) == 0:
                continue
            features = checked_features(block.features, block.path, block.first_row)
            labels = block.labels
            if self.label_file is not None:
                labels = checked_labels(self._labels_beside(n_read, len(features)), self.path, n_read)
            elif labels is not None:
                labels = checked_labels(labels, block.path, block.first_row)
            yield Batch(features, labels, n_read)
            n_read += len(features)
        if n_read == 0:
            raise InputError(f"{self.path} holds no rows; pass a file with at least one")
        if self.label_file is not None and self.label_file.shape[0] != n_read:
            raise InputError(_unequal_rows(self.label_file, self.path, n_read))

    def _labels_beside(self, first_row: int, n_rows: int) -> NDArray[Any]:
        assert self.label_file is not None
        if first_row + n_rows > self.label_file.shape[0]:
            raise InputError(_unequal_rows(self.label_file, self.path, f"more than {first_row + n_rows - 1}"))
        return self.label_file.rows(first_row, first_row + n_rows)

    @property
    def parquet(self) -> "ParquetSet | None":
        """The Parquet files behind the rows, one or many; None for other formats."""
        return getattr(self.source, "table", None) if self.source.is_decoded else None

    @property
    def columns(self) -> "TableColumns | None":
        """What `read_row_groups` reads of these Parquet files; None for other formats."""
        return getattr(self.source, "columns", None) if self.source.is_decoded else None

    @property
    def is_file_set(self) -> bool:
        """Whether the rows come from a directory or a pattern of files."""
        return is_file_set(self.path)

    def parts(self) -> "tuple[FeatureFile, ...]":
        """Return the rows of each Parquet file by themselves, in order, without labels that lie in a file beside."""
        files = self.parquet
        if files is None:
            return (self,)
        return tuple(
            replace(
                self,
                path=file.path,
                n_rows=file.n_rows,
                has_labels=self.source.has_labels,
                source=replace(self.source, table=files.only(file)),  # type: ignore[type-var]
                label_file=None,
                on_rows=None,
            )
            for file in files.files
        )


def open_features(
    path: str | os.PathLike[str],
    *,
    features: str | Sequence[str] | None = None,
    labels: Labels = None,
    fitted_names: Sequence[str] | None = None,
) -> FeatureFile:
    """Return what a file of rows, or a set of Parquet files, holds, without reading the rows.

    Warns of columns that the default choice of features leaves out because they hold other things than numbers.

    Args:
        path: A `.npz`, `.npy`, `.parquet`, `.csv` or `.safetensors` file; a directory, which stands for all `.parquet`
            files below it in the order of their names; or a pattern of such files with `*`. Files of a set have the
            same columns. Names that begin with `.` or `_` are skipped.
        features: The member, tensor or column that holds the features, or the columns that make them up (a
            sequence, or one string with commas). By default the one named "features"; else the only
            two-dimensional member, or every numeric column that is not the labels.
        labels: The name of the labels, by default the first of "labels", "label" and "y" that is there; or the
            path of a `.npy` file that holds them; or False to leave them out.
        fitted_names: A detector's `feature_names_in_`: unless features are named, a table's columns are picked by
            these names, in this order. Files without named columns ignore it.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = Path(directory) / "rows.npz"
        ...     np.savez(path, features=np.eye(3), labels=["cat", "dog", "cat"])
        ...     file = open_features(path)
        ...     file.n_rows, file.n_features, [labels.tolist() for features, labels in file]
        (3, 3, [['cat', 'dog', 'cat']])
    """
    path = Path(path)
    suffix = refuse_unreadable(path, READABLE)
    label_file = _open_label_file(labels)
    label_name: str | Literal[False] | None = None if labels is None else str(labels)
    if labels is False or label_file is not None:
        label_name = False
    source = _open_source(path, suffix, features, label_name, fitted_names)
    if source.n_rows == 0:
        raise InputError(f"{path} holds no rows; pass a file with at least one")
    if source.n_features == 0:
        raise InputError(f"{path} holds rows of 0 features; pass a file with at least one number per row")
    if label_file is not None and source.n_rows is not None and label_file.shape[0] != source.n_rows:
        raise InputError(_unequal_rows(label_file, path, source.n_rows))
    if source.left_out:
        warnings.warn(
            f"{path}: left out of the features, as not every value is a number: "
            f"{', '.join(map(repr, source.left_out))}; mend them, or list the columns to use with features",
            stacklevel=2,
        )
    return FeatureFile(
        path=path,
        n_features=source.n_features,
        n_rows=source.n_rows,
        has_labels=source.has_labels or label_file is not None,
        feature_names=source.feature_names,
        left_out=source.left_out,
        is_choice_explicit=features is not None,
        source=source,
        label_file=label_file,
    )


def rows_per_batch(n_features: int) -> int:
    """Return how many rows of this width are read at a time."""
    return max(64, BATCH_BYTES // (8 * n_features))


def refuse_unreadable(path: Path, suffixes: Sequence[str]) -> str:
    """Return the lower-case suffix of a file that exists, has bytes and is of a known format; raise otherwise.

    A directory or a pattern stands for Parquet files, where these are among the formats.
    """
    if is_file_set(path) and SET_SUFFIX in suffixes:
        list_parquet(path)
        return SET_SUFFIX
    if not path.exists():
        raise InputError(f"{path} does not exist; check the path")
    if path.is_dir():
        raise InputError(f"{path} is a directory; pass one file ({' '.join(suffixes)})")
    refuse_special(path)
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        raise InputError(
            f"{path} has the suffix {suffix or '(none)'!r} but {' '.join(suffixes)} can be read; convert or rename it"
        )
    if path.stat().st_size == 0:
        raise FileFormatError(f"{path} is empty (0 bytes); write it again")
    return suffix


def _open_source(
    path: Path,
    suffix: str,
    features: str | Sequence[str] | None,
    labels: str | Literal[False] | None,
    fitted_names: Sequence[str] | None,
) -> Source:
    # Each format's library is loaded only when a file asks for it.
    if suffix in (".parquet", ".csv"):
        from gem_ood.files.tables import open_table

        return open_table(path, suffix, features, labels, fitted_names)
    from gem_ood.files.sources import ArraySource

    if suffix == ".safetensors":
        from gem_ood.files.safetensors_members import safetensors_members

        return ArraySource.choose(path, safetensors_members(path), features, labels)
    from gem_ood.files.numpy_members import npy_members, npz_members

    members = npy_members(path) if suffix == ".npy" else npz_members(path)
    return ArraySource.choose(path, members, features, labels)


def _open_label_file(labels: Labels) -> Member | None:
    if labels is None or labels is False:
        return None
    if isinstance(labels, str) and not labels.lower().endswith(".npy"):
        return None
    from gem_ood.files.numpy_members import npy_members

    path = Path(labels)
    refuse_unreadable(path, (".npy",))
    (member,) = npy_members(path).values()
    member.refuse_as_labels()
    return member


def _unequal_rows(label_file: Member, path: Path, n_rows: int | str) -> str:
    return f"{label_file.title} has {label_file.shape[0]} rows but {path} has {n_rows}; pass one label per row"
