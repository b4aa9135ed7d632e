"""Arrays of pictures in NumPy's files, read without unpickling."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments.data_sets.catalogue import DataSet
from gem_ood.experiments.data_sets.trees import naming_unreadable, shown
from gem_ood.numpy_format import ArrayHeader, archive_headers, naming_archive, read_block

__all__ = ["array_headers", "picture_array", "read_npy", "read_npz"]

#: The usual names of an array of pictures, and of its labels.
_PICTURES = ("images", "x", "X", "data", "arr_0")
_LABELS = ("labels", "label", "y", "Y", "targets", "arr_1")

#: Bytes; a larger array is not read into memory.
LARGEST_ARRAY = 1 << 33


def picture_array(headers: Mapping[str, ArrayHeader], split: str, *, is_told: bool) -> str | None:
    """Return the name of the array that holds a split's pictures, None if there is none.

    Where the file's name does not tell the split (`is_told`), the array's must.

    >>> header = ArrayHeader((9, 32, 32, 3), False, np.dtype(np.uint8), 128)
    >>> picture_array({"x_train": header, "x_test": header}, "test", is_told=False)
    'x_test'
    """
    named = (f"x_{split}", f"X_{split}", f"{split}_images", f"images_{split}")
    names = [name for name in (*named, *(_PICTURES if is_told else ())) if name in headers]
    return next((name for name in names if len(headers[name].shape) == 4), None)


def array_headers(path: Path) -> dict[str, ArrayHeader]:
    """Return the headers of the arrays of an `.npz` file by name."""
    with naming_unreadable(path):
        return archive_headers(path)


def read_npz(
    path: Path, split: str, *, known: DataSet | None = None, is_told: bool = True
) -> tuple[NDArray[np.uint8], NDArray[Any] | None]:
    """Return the pictures (n, height, width, 3) of an `.npz` file, and their labels where it has any."""
    with naming_unreadable(path):
        headers = array_headers(path)
        name = picture_array(headers, split, is_told=is_told)
        if name is None and known is None:  # one array of any name will do
            several = [found for found, header in headers.items() if len(header.shape) == 4]
            name = several[0] if len(several) == 1 else None
        if name is None:
            found = ", ".join(f"{found} {header.shape}" for found, header in list(headers.items())[:8]) or "nothing"
            raise FileFormatError(
                f"{shown(path)} holds {found}, but no array of pictures; name an array (n, height, width, 3) of uint8 "
                f'"images"'
            )
        label_name = next((label for label in (f"y_{split}", f"{split}_labels", *_LABELS) if label in headers), None)
        pictures = _colours_last(_member(path, name, headers[name]), f"{shown(path)}: {name}")
        labels = None if label_name is None or known is None else _member(path, label_name, headers[label_name])
    return pictures, labels


def read_npy(path: Path) -> NDArray[np.uint8]:
    """Return the pictures (n, height, width, 3) of an `.npy` file."""
    with naming_unreadable(path), path.open("rb") as stream:
        header = ArrayHeader.read(stream, shown(path))
        return _colours_last(_values(stream, header, shown(path)), shown(path))


def _member(path: Path, name: str, header: ArrayHeader) -> NDArray[Any]:
    with naming_archive(shown(path)), zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as stream:
        stream.seek(header.length)
        return _values(stream, header, f"{shown(path)}: {name}")


def _values(stream: IO[bytes], header: ArrayHeader, title: str) -> NDArray[Any]:
    if header.kind not in "iufb":
        raise FileFormatError(f"{title} holds no numbers but dtype {header.dtype}; write it again as uint8")
    if header.n_bytes > LARGEST_ARRAY:
        raise FileFormatError(
            f"{title} has shape {header.shape}, {header.n_bytes:,} bytes, more than is read into memory "
            f"({LARGEST_ARRAY:,}); pass fewer pictures"
        )
    if header.is_fortran:
        return read_block(stream, header.dtype, header.shape[::-1], title).T
    return read_block(stream, header.dtype, header.shape, title)


def _colours_last(values: NDArray[Any], title: str) -> NDArray[np.uint8]:
    is_last = values.ndim == 4 and values.shape[3] == 3
    is_first = not is_last and values.ndim == 4 and values.shape[1] == 3
    if not (is_last or is_first) or values.dtype != np.uint8 or not values.size:
        raise InputError(
            f"{title} has shape {values.shape} and dtype {values.dtype}; pass pictures (n, height, width, 3) or "
            f"(n, 3, height, width) as uint8 from 0 to 255 (repeat the values of grey ones three times)"
        )
    return np.ascontiguousarray(values if is_last else values.transpose(0, 2, 3, 1))
