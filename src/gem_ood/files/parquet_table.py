"""Parquet files, streamed: only the columns that are asked for, a bounded number of rows at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gem_ood.errors import FileFormatError, InputError

__all__ = ["ParquetTable"]

#: Each column is read through a buffer of this size, so that a file of one giant row group streams too.
_BUFFER_BYTES = 1 << 16


@dataclass(frozen=True)
class ParquetTable:
    """What the footer of a Parquet file says.

    Reading holds a batch and, of each column, one page (at most a megabyte, unless its writer chose otherwise).
    """

    path: Path
    schema: pa.Schema
    n_rows: int | None

    @classmethod
    def open(cls, path: Path) -> "ParquetTable":
        """Return the table at path; only its footer is read."""
        try:
            with pq.ParquetFile(path) as file:
                schema, n_rows = file.schema_arrow, file.metadata.num_rows
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, PermissionError):
                raise
            raise FileFormatError(_damaged(path, error)) from error
        if len(set(schema.names)) < len(schema.names):
            raise InputError(f"{path} has two columns of one name; rename one")
        return cls(path, schema, n_rows)

    def read(self, columns: list[str], labels: str | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the columns, at most batch_rows rows at a time."""
        wanted = [*columns, *([labels] if labels is not None else [])]
        try:
            with pq.ParquetFile(self.path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
                yield from file.iter_batches(batch_rows, columns=wanted)
        except (pa.ArrowException, OSError) as error:
            raise FileFormatError(_damaged(self.path, error)) from error


def _damaged(path: Path, error: BaseException) -> str:
    cause = " ".join(str(error).split()).rstrip(".")
    return f"{path} is not a Parquet file, or is damaged or truncated ({cause}); write it again"
