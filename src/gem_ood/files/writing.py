"""Columns of results written to a file: all of them, or nothing."""

import csv
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.files.listing import is_file_set, list_parquet
from gem_ood.storage import atomic_path

__all__ = ["WRITABLE", "Columns", "as_arrow", "refuse_overwriting", "refuse_unwritable", "write_columns"]

#: The suffixes that `write_columns` writes.
WRITABLE = (".csv", ".parquet", ".npz", ".jsonl")

#: Batches of verdicts are joined into row groups of this many rows: small in memory, few in a file.
ROWS_PER_GROUP = 1 << 18

#: One value per row under each name; every batch has the same names.
Columns = Mapping[str, NDArray[Any]]


def write_columns(path: str | os.PathLike[str], batches: Iterable[Columns]) -> int:
    """Write batches of columns to a `.csv`, `.parquet`, `.npz` or `.jsonl` file and return the number of rows.

    The file appears under its name once it is complete; on any failure nothing is left behind. `.npz` holds the
    columns in memory until the end; the others are streamed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = Path(directory) / "scores.csv"
        ...     write_columns(path, [{"score": np.array([0.5, 2.0]), "is_ood": np.array([True, False])}])
        ...     print(path.read_text())
        2
        score,is_ood
        0.5,true
        2.0,false
    """
    path = Path(path)
    write = _WRITERS[refuse_unwritable(path)]
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        return write(stream, batches)


def refuse_unwritable(path: Path, suffixes: tuple[str, ...] = WRITABLE) -> str:
    """Return the lower-case suffix of a path that can be written; raise now rather than after long work."""
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        raise InputError(
            f"{path} has the suffix {suffix or '(none)'!r} but {' '.join(suffixes)} can be written; rename it"
        )
    if path.is_dir():
        raise InputError(f"{path} is a directory; name a file inside it")
    if not path.parent.is_dir():
        raise InputError(f"the directory {path.parent} does not exist; create it first")
    return suffix


def refuse_overwriting(out: Path, *inputs: Path) -> None:
    """Raise if what is to be written would replace a file that is read, or lie in a directory that is."""
    for path in inputs:
        if path.is_dir() and Path(os.path.realpath(out)).is_relative_to(os.path.realpath(path)):
            raise InputError(f"the output {out} would lie in {path}, which is read; name another place")
        files = list_parquet(path)[1] if is_file_set(path) else (path,)
        if out.exists() and any(file.exists() and out.samefile(file) for file in files):
            raise InputError(f"the output is {out}, which is also read; name another file")


def _write_csv(stream: IO[bytes], batches: Iterable[Columns]) -> int:
    n_rows = 0
    for columns in batches:
        lines: list[list[Any]] = [list(columns)] if n_rows == 0 else []
        lines.extend(list(row) for row in zip(*(_csv_values(values) for values in columns.values()), strict=True))
        text = _Lines()
        csv.writer(text, lineterminator="\n").writerows(lines)
        stream.write("".join(text.parts).encode())
        n_rows += _length(columns)
    return n_rows


class _Lines:
    """What csv.writer writes to."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def write(self, text: str) -> None:
        self.parts.append(text)


def _csv_values(values: NDArray[Any]) -> list[Any]:
    if values.dtype.kind == "b":
        return ["true" if value else "false" for value in values]
    return list(values.tolist())


def _write_jsonl(stream: IO[bytes], batches: Iterable[Columns]) -> int:
    n_rows = 0
    for columns in batches:
        names = list(columns)
        rows = zip(*(_json_values(values) for values in columns.values()), strict=True)
        text = "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
        stream.write(text.encode())
        n_rows += _length(columns)
    return n_rows


def _json_values(values: NDArray[Any]) -> list[Any]:
    plain: list[Any] = values.tolist()
    if values.dtype.kind == "f":  # JSON has no infinity
        return [value if math.isfinite(value) else None for value in plain]
    return plain


def _write_npz(stream: IO[bytes], batches: Iterable[Columns]) -> int:
    held: dict[str, list[NDArray[Any]]] = {}
    for columns in batches:
        for name, values in columns.items():
            held.setdefault(name, []).append(values)
    joined = {name: np.concatenate(parts) for name, parts in held.items()}
    np.savez(stream, **joined)  # type: ignore[arg-type]
    return _length(joined)


def _write_parquet(stream: IO[bytes], batches: Iterable[Columns]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    n_rows, n_held, writer = 0, 0, None
    held: list[Any] = []
    try:
        for columns in batches:
            held.append(pa.table({name: as_arrow(values) for name, values in columns.items()}))
            writer = writer or pq.ParquetWriter(stream, held[0].schema)
            n_held += held[-1].num_rows
            n_rows += held[-1].num_rows
            if n_held >= ROWS_PER_GROUP:
                writer.write_table(pa.concat_tables(held))
                held, n_held = [], 0
        if writer is not None and held:
            writer.write_table(pa.concat_tables(held))
    finally:
        if writer is not None:
            writer.close()
    return n_rows


def as_arrow(values: NDArray[Any]) -> Any:
    r"""Return a column as an Arrow array; text keeps every sign of it.

    >>> as_arrow(np.array(["cat", "d\0g"])).to_pylist()
    ['cat', 'd\x00g']
    """
    import pyarrow as pa

    if values.dtype.kind == "T" or (values.dtype.kind == "U" and _has_inner_zero(values)):
        return pa.array(values.tolist(), pa.string())
    return pa.array(values, pa.string()) if values.dtype.kind == "U" else pa.array(values)


def _has_inner_zero(texts: NDArray[np.str_]) -> bool:
    """Return whether a text goes on behind a zero, where Arrow would end it."""
    if texts.nbytes == 0:
        return False
    signs = np.ascontiguousarray(texts).view(np.uint32).reshape(texts.size, -1)
    return bool(((signs[:, :-1] == 0) & (signs[:, 1:] != 0)).any())


def _length(columns: Columns) -> int:
    return len(next(iter(columns.values()), ()))


_WRITERS = {".csv": _write_csv, ".jsonl": _write_jsonl, ".npz": _write_npz, ".parquet": _write_parquet}
