"""NumPy's own files: `.npy` is memory-mapped, `.npz` is streamed out of its zip archive. Neither unpickles."""

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import FileFormatError
from gem_ood.files.sources import Member

__all__ = ["npy_members", "npz_members"]

#: What reading a damaged zip archive may raise; RuntimeError and NotImplementedError mean encryption.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError)


@dataclass(frozen=True)
class _Header:
    """The first bytes of an array in NumPy's format: all that is needed to find any of its rows."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    length: int

    @classmethod
    def read(cls, stream: IO[bytes], title: str) -> "_Header":
        try:
            version = np.lib.format.read_magic(stream)
            if version == (1, 0):
                shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
            elif version == (2, 0):
                shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(stream)
            else:
                raise ValueError(f"version {version} is not for plain numbers or strings")
        except (ValueError, EOFError) as error:
            raise FileFormatError(
                f"{title} is not an array in NumPy's format, or is damaged ({_one_line(error)}); write it again "
                f"with numpy.save or numpy.savez"
            ) from error
        return cls(shape, is_fortran, dtype, stream.tell())

    @property
    def n_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    @property
    def kind(self) -> str:
        return "O" if self.dtype.hasobject else self.dtype.kind


@dataclass(frozen=True)
class _NpyMember(Member):
    """The array of a `.npy` file, mapped into memory anew for each reading."""

    path: Path
    header: _Header

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        return np.asarray(self._mapped()[start:stop])

    def blocks(self, batch_rows: int) -> Iterator[NDArray[Any]]:
        mapped = self._mapped()
        for start in range(0, self.shape[0], batch_rows):
            yield np.asarray(mapped[start : start + batch_rows])

    def _mapped(self) -> NDArray[Any]:
        header = self.header
        order = "F" if header.is_fortran else "C"
        return np.memmap(self.path, header.dtype, "r", header.length, header.shape, order)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True)
class _NpzMember(Member):
    """One array of a `.npz` archive; its bytes are decompressed a block at a time."""

    path: Path
    entry: str

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        return np.concatenate(list(self.blocks(stop)))[start:stop]

    def blocks(self, batch_rows: int) -> Iterator[NDArray[Any]]:
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(self.entry) as stream:
                header = _Header.read(stream, self.title)
                if header.is_fortran:  # rows are scattered over all of its bytes
                    whole = self._block(stream, header, header.shape[::-1]).T
                    for start in range(0, self.shape[0], batch_rows):
                        yield whole[start : start + batch_rows]
                    return
                for start in range(0, self.shape[0], batch_rows):
                    n_rows = min(batch_rows, self.shape[0] - start)
                    yield self._block(stream, header, (n_rows, *header.shape[1:]))
        except _ZIP_ERRORS as error:
            raise FileFormatError(_damaged(self.title, error)) from error

    def _block(self, stream: IO[bytes], header: _Header, shape: tuple[int, ...]) -> NDArray[Any]:
        wanted = prod(shape) * header.dtype.itemsize
        data = stream.read(wanted)
        if len(data) < wanted:
            raise FileFormatError(f"{self.title} ends before its last row; write the file again")
        return np.frombuffer(data, header.dtype, prod(shape)).reshape(shape)


def npy_members(path: Path) -> Mapping[str, Member]:
    """Return the one array of a `.npy` file, under the empty name."""
    with path.open("rb") as stream:
        header = _Header.read(stream, str(path))
    size = path.stat().st_size
    if header.kind != "O" and size < header.length + header.n_bytes:
        raise FileFormatError(
            f"{path} is truncated: shape {header.shape} needs {header.length + header.n_bytes} bytes but there are "
            f"{size}; write it again"
        )
    return {"": _NpyMember(str(path), header.shape, header.kind, path, header)}


def npz_members(path: Path) -> Mapping[str, Member]:
    """Return the arrays of a `.npz` archive by name; only their headers are read."""
    members: dict[str, Member] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                if not entry.endswith(".npy"):
                    continue
                name = entry.removesuffix(".npy")
                title = f"{path}: {name}"
                with archive.open(entry) as stream:
                    header = _Header.read(stream, title)
                members[name] = _NpzMember(title, header.shape, header.kind, path, entry)
    except _ZIP_ERRORS as error:
        raise FileFormatError(_damaged(str(path), error)) from error
    return members


def _damaged(title: str, error: BaseException) -> str:
    return (
        f"{title} is not a zip archive of arrays, or is damaged ({_one_line(error)}); write it again with numpy.savez"
    )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
