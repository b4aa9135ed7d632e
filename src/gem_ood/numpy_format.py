"""NumPy's own format, `.npy` alone or in a `.npz` archive: headers and blocks of bytes, read without unpickling."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import FileFormatError

__all__ = ["ArrayHeader", "archive_headers", "naming_archive", "one_line", "read_block"]

#: What reading a damaged zip archive may raise; RuntimeError and NotImplementedError mean encryption.
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError)

#: What reading a damaged header of an array may raise: it is parsed as a few words of Python.
HEADER_ERRORS = (ValueError, EOFError, SyntaxError, TokenError, TypeError, RecursionError, MemoryError)


@dataclass(frozen=True)
class ArrayHeader:
    """The first bytes of an array in NumPy's format: all that is needed to find any of its rows.

    Attributes:
        shape: Of the array.
        is_fortran: Whether its first index runs fastest.
        dtype: Of its values.
        length: How many bytes the header takes.
    """

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    length: int

    @classmethod
    def read(cls, stream: IO[bytes], title: str) -> "ArrayHeader":
        """Return the header at the start of a stream, which is left at the values; the title is for errors."""
        try:
            version = np.lib.format.read_magic(stream)
            if version == (1, 0):
                shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
            elif version == (2, 0):
                shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(stream)
            else:
                raise ValueError(f"version {version} is not for plain numbers or strings")
            if any(length < 0 for length in shape):
                raise ValueError(f"its shape {shape} has a length below 0")
        except HEADER_ERRORS as error:
            raise FileFormatError(
                f"{title} is not an array in NumPy's format, or is damaged ({one_line(error)}); write it again "
                f"with numpy.save or numpy.savez"
            ) from error
        return cls(shape, is_fortran, dtype, stream.tell())

    @property
    def n_bytes(self) -> int:
        """How many bytes the values take."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def kind(self) -> str:
        """NumPy's letter for the type; "O" for anything that holds pickled objects."""
        return "O" if self.dtype.hasobject else self.dtype.kind


def archive_headers(path: Path) -> dict[str, ArrayHeader]:
    """Return the headers of the arrays of a `.npz` archive by name."""
    headers = {}
    with naming_archive(str(path)), zipfile.ZipFile(path) as archive:
        for entry in archive.namelist():
            if entry.endswith(".npy"):
                name = entry.removesuffix(".npy")
                with archive.open(entry) as stream:
                    headers[name] = ArrayHeader.read(stream, f"{path}: {name}")
    return headers


@contextmanager
def naming_archive(title: str) -> Iterator[None]:
    """Say of an archive that cannot be read that it is damaged, and name it."""
    try:
        yield
    except ZIP_ERRORS as error:
        raise FileFormatError(
            f"{title} is not a zip archive of arrays, or is damaged ({one_line(error)}); write it again with "
            f"numpy.savez"
        ) from error


def read_block(stream: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...], title: str) -> NDArray[Any]:
    """Return the next values of a stream as an array of this shape."""
    wanted = prod(shape) * dtype.itemsize
    data = stream.read(wanted)
    if len(data) < wanted:
        raise FileFormatError(f"{title} ends before its last row; write the file again")
    return np.frombuffer(data, dtype, prod(shape)).reshape(shape)


def one_line(error: BaseException) -> str:
    """Return an error's message on one line, or its kind where it has none."""
    return " ".join(str(error).split()) or type(error).__name__
