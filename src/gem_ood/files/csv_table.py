"""CSV files with a line of column names, streamed a block of text at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from gem_ood.errors import FileFormatError, InputError
from gem_ood.files.arrow_rows import Piece

__all__ = ["CSVTable"]

#: A line may be as long as a block; this one holds some 400,000 numbers.
_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class CSVTable:
    """The columns of a CSV file, with the types that its first block of text suggests."""

    path: Path
    schema: pa.Schema
    n_rows: int | None = None

    @classmethod
    def open(cls, path: Path) -> "CSVTable":
        """Return the table at path; only the first block is read."""
        _refuse_other_separator(path)
        with _one_error(path), csv.open_csv(path, csv.ReadOptions(block_size=_BLOCK_BYTES)) as reader:
            schema, names = reader.schema, reader.schema.names
        # pandas names the columns of an array 0, 1, 2, ...; any other line of numbers is a row.
        places = [str(place) for place in range(len(names))]
        if all(map(_is_number, names)) and [name.strip() for name in names] != places:
            raise InputError(
                f"{path} begins with numbers ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}) but its "
                f"first line must name the columns; add such a line"
            )
        if len(set(names)) < len(names):
            raise InputError(f"{path} has two columns of one name; its first line must name each column once")
        # A column without any value yet may hold numbers further down; if not, its first row is named as missing.
        fields = [
            pa.field(field.name, pa.float64() if pa.types.is_null(field.type) else field.type) for field in schema
        ]
        return cls(path, pa.schema(fields))

    def read(self, columns: list[str], labels: str | None, batch_rows: int) -> Iterator[Piece]:
        """Yield the columns, at most batch_rows rows at a time."""
        # Numbers are read as float64 whatever the first block suggests: it may hold only 0 where 0.5 comes later.
        kinds = {name: pa.float64() for name in columns if not pa.types.is_boolean(self.schema.field(name).type)}
        wanted = list(columns)
        if labels is not None:
            kind = self.schema.field(labels).type
            kinds[labels] = kind if pa.types.is_integer(kind) or pa.types.is_floating(kind) else pa.string()
            wanted.append(labels)
        options = csv.ConvertOptions(column_types=kinds, include_columns=wanted)
        reading = csv.ReadOptions(block_size=_BLOCK_BYTES)
        with _one_error(self.path), csv.open_csv(self.path, reading, convert_options=options) as reader:
            first_row = 0
            for block in reader:
                for start in range(0, block.num_rows, batch_rows):
                    batch = block.slice(start, batch_rows)
                    yield Piece(batch if labels is None else _with_missing_labels(batch, labels), self.path, first_row)
                    first_row += batch.num_rows


def _with_missing_labels(batch: pa.RecordBatch, labels: str) -> pa.RecordBatch:
    # Text is never null to pyarrow, so that a class may be called "NA"; an empty label is a missing one.
    column = batch.column(labels)
    if not pa.types.is_string(column.type):
        return batch
    index = batch.schema.get_field_index(labels)
    marked = pc.if_else(pc.equal(column, ""), None, column)
    return batch.set_column(index, labels, marked)


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _refuse_other_separator(path: Path) -> None:
    with path.open("rb") as stream:
        header = stream.readline(_BLOCK_BYTES)
    for separator, name in ((b";", "semicolons"), (b"\t", "tabs")):
        if separator in header and b"," not in header:
            raise InputError(
                f"{path} seems to be separated by {name} but its columns must be separated by commas; save it so "
                f"(pandas: to_csv(sep=','))"
            )


@contextmanager
def _one_error(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        cause = " ".join(str(error).split()).rstrip(".")
        if isinstance(error, UnicodeDecodeError) or "UTF8" in cause:
            raise FileFormatError(f"{path} is not text in UTF-8 ({cause}); save it as UTF-8") from error
        raise FileFormatError(
            f"{path} cannot be read as CSV ({cause}); a column holds numbers only or text only, and every line has "
            f"as many values as the first"
        ) from error
