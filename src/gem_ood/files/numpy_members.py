"""NumPy's own files: `.npy` is memory-mapped, `.npz` is streamed out of its zip archive. Neither unpickles."""

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import FileFormatError
from gem_ood.files.sources import Member
from gem_ood.numpy_format import ArrayHeader, archive_headers, naming_archive, read_block

__all__ = ["npy_members", "npz_members"]


@dataclass(frozen=True)
class _NpyMember(Member):
    """The array of a `.npy` file, mapped into memory anew for each reading."""

    path: Path
    header: ArrayHeader

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
        with (
            naming_archive(self.title),
            zipfile.ZipFile(self.path) as archive,
            archive.open(self.entry) as stream,
        ):
            header = ArrayHeader.read(stream, self.title)
            if header.is_fortran:  # rows are scattered over all of its bytes
                whole = read_block(stream, header.dtype, header.shape[::-1], self.title).T
                for start in range(0, self.shape[0], batch_rows):
                    yield whole[start : start + batch_rows]
                return
            for start in range(0, self.shape[0], batch_rows):
                n_rows = min(batch_rows, self.shape[0] - start)
                yield read_block(stream, header.dtype, (n_rows, *header.shape[1:]), self.title)


def npy_members(path: Path) -> Mapping[str, Member]:
    """Return the one array of a `.npy` file, under the empty name."""
    with path.open("rb") as stream:
        header = ArrayHeader.read(stream, str(path))
    size = path.stat().st_size
    if header.kind != "O" and size < header.length + header.n_bytes:
        raise FileFormatError(
            f"{path} is truncated: shape {header.shape} needs {header.length + header.n_bytes} bytes but there are "
            f"{size}; write it again"
        )
    return {"": _NpyMember(str(path), header.shape, header.kind, path, header)}


def npz_members(path: Path) -> Mapping[str, Member]:
    """Return the arrays of a `.npz` archive by name; only their headers are read."""
    return {
        name: _NpzMember(f"{path}: {name}", header.shape, header.kind, path, f"{name}.npy")
        for name, header in archive_headers(path).items()
    }
