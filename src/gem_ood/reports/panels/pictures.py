"""Pictures by place: read one at a time from an array, a member of an `.npz` archive or image files."""

import warnings
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.numpy_format import ArrayHeader, naming_archive, read_block
from gem_ood.pictures import naming_picture, refuse_many_pixels

__all__ = [
    "LARGEST_SIDE",
    "SUFFIXES",
    "ArrayPictures",
    "FilePictures",
    "Layout",
    "MemberPictures",
    "Pictures",
]

#: Files of one picture each, and the formats that Pillow may take them for.
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")

#: Rounding may carry a float a little beyond [0, 1].
SLACK = 1e-3

#: Thumbnails larger than this are no thumbnails, and swell a report.
LARGEST_SIDE = 1024

#: What a picture is read for, as errors say it.
USE = "a thumbnail"


class Pictures(Protocol):
    """Pictures by place: what an `Images` reads from."""

    @property
    def n_pictures(self) -> int:
        """How many there are."""

    def read(self, places: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        """Yield the pictures at these ascending places, each h×w (grey), h×w×3 or h×w×4."""


@dataclass(frozen=True)
class Layout:
    """Where the height, the width and the channels of a picture lie in an array of pictures."""

    is_channels_first: bool
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: np.dtype[Any], title: str) -> "Layout":
        """Return the layout of an array of this shape, which errors call by this title."""
        is_last = len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3, 4))
        is_first = not is_last and len(shape) == 4 and shape[1] in (1, 3, 4)
        if not (is_last or is_first):
            raise InputError(
                f"{title} has shape {shape}; pass pictures of one size as n×height×width, n×height×width×channels or "
                f"n×channels×height×width with 1, 3 or 4 channels"
            )
        if min(shape) < 1:
            raise InputError(f"{title} has shape {shape}, which holds no picture; pass at least one of one pixel")
        refuse_many_pixels(prod(shape[2:4] if is_first else shape[1:3]), f"{title} has shape {shape}", use=USE)
        if dtype.hasobject or (dtype != np.uint8 and dtype.kind not in "fb"):
            raise InputError(
                f"{title} has dtype {dtype}; pass numpy.uint8 from 0 to 255, or floats from 0 to 1 (divide by the "
                f"largest possible value)"
            )
        return cls(is_first, dtype)

    def refuse_values(self, values: NDArray[Any], title: str) -> None:
        """Raise if floats are not those of pixels."""
        if self.dtype.kind != "f":
            return
        low, high = float(values.min()), float(values.max())
        if np.isnan(low):
            raise InputError(f"{title} holds NaN; every pixel must be a number from 0 to 1")
        if low < -SLACK or high > 1.0 + SLACK:
            raise InputError(
                f"{title} holds values from {low:.4g} to {high:.4g}, but floats must lie from 0 to 1; undo a "
                f"normalisation or divide by the largest possible value, or pass numpy.uint8"
            )

    def picture(self, values: NDArray[Any], title: str) -> NDArray[np.uint8]:
        """Return one picture as bytes, its channels last."""
        self.refuse_values(values, title)
        if self.is_channels_first:
            values = np.moveaxis(values, 0, -1)
        if values.ndim == 3 and values.shape[2] == 1:
            values = values[:, :, 0]
        if self.dtype == np.uint8:
            return np.ascontiguousarray(values, dtype=np.uint8)
        return np.rint(255.0 * np.clip(values.astype(np.float64), 0.0, 1.0)).astype(np.uint8)


@dataclass(frozen=True, eq=False)
class ArrayPictures:
    """Pictures of an array, in memory or mapped into it."""

    values: NDArray[Any]
    layout: Layout
    title: str
    n_pictures: int

    def read(self, places: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        """Yield the pictures at these ascending places."""
        for place in places:
            yield self.layout.picture(np.asarray(self.values[place]), f"{self.title} {place}")


@dataclass(frozen=True, eq=False)
class MemberPictures:
    """Pictures of one array of an `.npz` archive, decompressed up to the last one that is wanted."""

    path: Path
    entry: str
    layout: Layout
    n_pictures: int

    def read(self, places: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        """Yield the pictures at these ascending places."""
        title = f"{self.path}: image"
        if not places:
            return
        try:
            with (
                naming_archive(str(self.path)),
                zipfile.ZipFile(self.path) as archive,
                archive.open(self.entry) as stream,
            ):
                header = ArrayHeader.read(stream, title)
                if header.is_fortran:  # each picture is scattered over all of its bytes
                    whole = read_block(stream, header.dtype, header.shape[::-1], str(self.path)).T
                    for place in places:
                        yield self.layout.picture(whole[place], f"{title} {place}")
                    return
                n_bytes = prod(header.shape[1:]) * header.dtype.itemsize
                for place in places:
                    stream.seek(header.length + place * n_bytes)
                    values = read_block(stream, header.dtype, header.shape[1:], str(self.path))
                    yield self.layout.picture(values, f"{title} {place}")
        except OSError as error:
            raise InputError(f"{self.path} cannot be read ({error.strerror or error}); pass it again") from error


@dataclass(frozen=True, eq=False)
class FilePictures:
    """Pictures of one file each."""

    paths: tuple[Path, ...]
    n_pictures: int

    @classmethod
    def of(cls, paths: Sequence[Path], title: str) -> "FilePictures":
        """Return the pictures of these files, each checked to be there."""
        for path in paths:
            if path.suffix.lower() not in SUFFIXES:
                raise InputError(f"{title} names {path}, which is no {' '.join(SUFFIXES)} file; pass such files only")
            if not path.is_file():
                raise InputError(f"{title} names {path}, which is not a file; pass files that exist")
        return cls(tuple(paths), len(paths))

    def read(self, places: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        """Yield the pictures at these ascending places."""
        for place in places:
            yield _decoded(self.paths[place])


def _decoded(path: Path) -> NDArray[np.uint8]:
    """Return the picture as it is meant to be seen: turned as the camera was held, of 8 bits, without its notes."""
    from PIL import Image, ImageOps

    with naming_picture(str(path), use=USE), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(path, formats=FORMATS) as picture:
            picture.draft("RGB", (LARGEST_SIDE, LARGEST_SIDE))  # a large JPEG is read at a fraction of its size
            picture.load()
            upright = ImageOps.exif_transpose(picture)
        if upright.mode.startswith("I"):  # grey of 16 bits, which Pillow would cut at 255
            return np.asarray(np.clip(np.asarray(upright) // 257, 0, 255), dtype=np.uint8)
        is_clear = "A" in upright.getbands() or "transparency" in upright.info
        grey = "L" if upright.mode in ("1", "L") else "RGB"
        return np.asarray(upright.convert("RGBA" if is_clear else grey))
