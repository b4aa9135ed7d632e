"""Pictures of rows: opened lazily from an array, a NumPy file or image files, and shown as small PNG data URIs."""

import base64
import io
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import FileFormatError, InputError
from gem_ood.extras import require_extra
from gem_ood.features import is_count

__all__ = ["SUFFIXES", "Images", "open_images"]

#: Files of one picture each, and the formats that Pillow may take them for.
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")

#: Rounding may carry a float a little beyond [0, 1].
SLACK = 1e-3

#: Thumbnails larger than this are no thumbnails, and swell a report.
LARGEST_SIDE = 1024

#: What reading a damaged zip archive may raise; RuntimeError and NotImplementedError mean encryption.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError)

#: What Pillow raises on damaged files.
_PICTURE_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error)

#: A path as callers write it.
AnyPath = str | os.PathLike[str]

#: Shape, whether in Fortran's order, and type: the first bytes of an array in NumPy's format.
_Header = tuple[tuple[int, ...], bool, np.dtype[Any]]


class _Pictures(Protocol):
    """Pictures by place: what an `Images` reads from."""

    @property
    def n_pictures(self) -> int: ...

    def read(self, places: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        """Yield the pictures at these ascending places, each h×w (grey), h×w×3 or h×w×4."""


@dataclass(frozen=True, eq=False)
class Images:
    """The pictures of a set's rows; each is read when its thumbnail is asked for.

    `rows` holds the row number of each picture, or None where the pictures are those of all rows, in order.
    """

    pictures: _Pictures
    rows: NDArray[np.int64] | None = None

    @property
    def n_images(self) -> int:
        """How many pictures there are."""
        return self.pictures.n_pictures

    def thumbnail(self, row: int, *, side: int = 64) -> str | None:
        """Return the picture of a row as a PNG data URI of at most `side` pixels, or None where there is none.

        Small pictures are enlarged by a whole factor and stay sharp.

        >>> images = open_images(np.zeros((5, 8, 8), dtype=np.uint8))
        >>> images.thumbnail(4)[:22]
        'data:image/png;base64,'
        >>> images.thumbnail(5) is None
        True
        """
        return self.thumbnails([row], side=side).get(row)

    def thumbnails(self, rows: Iterable[int], *, side: int = 64) -> dict[int, str]:
        """Return the thumbnails of those of these rows that have a picture, by row, in one pass over the file.

        >>> images = open_images(np.zeros((5, 8, 8), dtype=np.uint8))
        >>> sorted(images.thumbnails([4, 2, 9]))
        [2, 4]
        """
        if not is_count(side) or side > LARGEST_SIDE:
            raise InputError(f"side is {side!r}; pass a whole number of pixels from 1 to {LARGEST_SIDE}")
        row_by_place = {}
        for row in rows:
            if not is_count(row, least=0):
                raise InputError(f"row is {row!r}; pass the whole number of a row, counted from 0")
            place = self._place(int(row))
            if place is not None:
                row_by_place[place] = int(row)
        places = sorted(row_by_place)
        pictures = self.pictures.read(places)
        return {row_by_place[place]: _data_uri(picture, side) for place, picture in zip(places, pictures, strict=True)}

    def refuse_other_length(self, n_rows: int, name: str) -> None:
        """Raise if these cannot be the pictures of a set of this name with so many rows.

        >>> open_images(np.zeros((5, 8, 8), dtype=np.uint8)).refuse_other_length(6, "photographs")
        Traceback (most recent call last):
            ...
        gem_ood.errors.InputError: photographs has 6 rows but 5 images; pass one image per row in the rows' order, or an
        .npz file with the row number of each image in an array "rows"
        """
        if self.rows is None and self.n_images != n_rows:
            raise InputError(
                f"{name} has {n_rows} rows but {self.n_images} images; pass one image per row in the rows' order, or "
                f'an .npz file with the row number of each image in an array "rows"'
            )
        if self.rows is not None and self.rows.max() >= n_rows:
            raise InputError(
                f'{name} has {n_rows} rows but its images\' array "rows" names row {self.rows.max()}; rows are counted '
                f"from 0: pass the images of this set"
            )

    def _place(self, row: int) -> int | None:
        if self.rows is None:
            return row if row < self.n_images else None
        places = np.flatnonzero(self.rows == row)
        return int(places[0]) if len(places) else None


def open_images(source: Images | ArrayLike | AnyPath | Sequence[AnyPath]) -> Images:
    """Return the pictures in an array, a `.npy` or `.npz` file, a directory, or files named one by one.

    An array is n×h×w, n×h×w×c or n×c×h×w with 1, 3 or 4 channels: bytes, or floats from 0 to 1. An `.npz` file holds
    it as `images` (or as its only array of that many dimensions), and may hold whole numbers `rows`: the row of each
    picture. A directory's image files are taken in the order of their names.

    Example:
        >>> images = open_images(np.zeros((5, 3, 32, 32)))
        >>> images.n_images
        5
    """
    if isinstance(source, Images):
        return source
    require_extra("report", "PIL.Image", purpose="thumbnails")
    try:
        if isinstance(source, str | os.PathLike):
            return _open_path(Path(source))
        if _is_paths(source):
            return Images(_Files.of([Path(path) for path in source], "images"))  # type: ignore[union-attr, arg-type]
    except OSError as error:
        raise InputError(f"images cannot be read ({_one_line(error)}); pass files that you may read") from error
    array = _as_array(source)
    layout = _Layout.of(array.shape, array.dtype, "images")
    layout.refuse_values(array, "images")
    return Images(_Array(array, layout, "images", len(array)))


def _is_paths(source: object) -> bool:
    return (
        isinstance(source, Sequence) and len(source) > 0 and all(isinstance(path, str | os.PathLike) for path in source)
    )


def _as_array(source: Any) -> NDArray[Any]:
    if callable(getattr(source, "detach", None)):  # a torch tensor that may track gradients
        source = source.detach()
    try:
        return np.asarray(source)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"images of type {type(source).__name__} cannot be read as one array ({_one_line(error)}); pass pictures "
            f"of one size, or a list of files"
        ) from error


def _open_path(path: Path) -> Images:
    if path.is_dir():
        return Images(_Files.of(_listed(path), str(path)))
    if not path.exists():
        raise InputError(f"{path} does not exist; pass a .npy or .npz file, or a directory of images")
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return Images(_open_npy(path))
    if suffix == ".npz":
        return _open_npz(path)
    if suffix in SUFFIXES:
        return Images(_Files.of([path], str(path)))
    raise InputError(
        f"{path} has the suffix {suffix or '(none)'!r}; pass a .npy or .npz file, or a directory of "
        f"{' '.join(SUFFIXES)} files"
    )


def _listed(directory: Path) -> list[Path]:
    names = sorted(path.name for path in directory.iterdir() if path.suffix.lower() in SUFFIXES)
    paths = [directory / name for name in names if not name.startswith(".")]
    if not paths:
        raise InputError(f"{directory} holds no {' '.join(SUFFIXES)} file; pass the directory that holds the images")
    return paths


@dataclass(frozen=True)
class _Layout:
    """Where the height, the width and the channels of a picture lie in an array of pictures."""

    is_channels_first: bool
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: np.dtype[Any], title: str) -> "_Layout":
        is_last = len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3, 4))
        is_first = not is_last and len(shape) == 4 and shape[1] in (1, 3, 4)
        if not (is_last or is_first):
            raise InputError(
                f"{title} has shape {shape}; pass pictures of one size as n×height×width, n×height×width×channels or "
                f"n×channels×height×width with 1, 3 or 4 channels"
            )
        if min(shape) < 1:
            raise InputError(f"{title} has shape {shape}, which holds no picture; pass at least one of one pixel")
        if dtype.hasobject or (dtype != np.uint8 and dtype.kind not in "fb"):
            raise InputError(
                f"{title} has dtype {dtype}; pass numpy.uint8 from 0 to 255, or floats from 0 to 1 (divide by the "
                f"largest possible value)"
            )
        return cls(is_first, dtype)

    def refuse_values(self, values: NDArray[Any], title: str) -> None:
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
        self.refuse_values(values, title)
        if self.is_channels_first:
            values = np.moveaxis(values, 0, -1)
        if values.ndim == 3 and values.shape[2] == 1:
            values = values[:, :, 0]
        if self.dtype == np.uint8:
            return np.ascontiguousarray(values, dtype=np.uint8)
        return np.rint(255.0 * np.clip(values.astype(np.float64), 0.0, 1.0)).astype(np.uint8)


@dataclass(frozen=True, eq=False)
class _Array:
    """Pictures of an array, in memory or mapped into it."""

    values: NDArray[Any]
    layout: _Layout
    title: str
    n_pictures: int

    def read(self, places: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        for place in places:
            yield self.layout.picture(np.asarray(self.values[place]), f"{self.title} {place}")


@dataclass(frozen=True, eq=False)
class _Member:
    """Pictures of one array of an `.npz` archive, decompressed up to the last one that is wanted."""

    path: Path
    entry: str
    shape: tuple[int, ...]
    is_fortran: bool
    layout: _Layout
    n_pictures: int

    def read(self, places: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        title = f"{self.path}: image"
        if not places:
            return
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(self.entry) as stream:
                _header(stream, title)
                if self.is_fortran:  # each picture is scattered over all of its bytes
                    whole = self._block(stream, self.shape[::-1]).T
                    for place in places:
                        yield self.layout.picture(whole[place], f"{title} {place}")
                    return
                start, n_bytes = stream.tell(), prod(self.shape[1:]) * self.layout.dtype.itemsize
                for place in places:
                    stream.seek(start + place * n_bytes)
                    yield self.layout.picture(self._block(stream, self.shape[1:]), f"{title} {place}")
        except OSError as error:
            raise InputError(f"{self.path} cannot be read ({error.strerror or error}); pass it again") from error
        except _ZIP_ERRORS as error:
            raise FileFormatError(_damaged(self.path, error)) from error

    def _block(self, stream: IO[bytes], shape: tuple[int, ...]) -> NDArray[Any]:
        wanted = prod(shape) * self.layout.dtype.itemsize
        data = stream.read(wanted)
        if len(data) < wanted:
            raise FileFormatError(f"{self.path} ends before its last image; write the file again")
        return np.frombuffer(data, self.layout.dtype).reshape(shape)


@dataclass(frozen=True, eq=False)
class _Files:
    """Pictures of one file each."""

    paths: tuple[Path, ...]
    n_pictures: int

    @classmethod
    def of(cls, paths: Sequence[Path], title: str) -> "_Files":
        for path in paths:
            if path.suffix.lower() not in SUFFIXES:
                raise InputError(f"{title} names {path}, which is no {' '.join(SUFFIXES)} file; pass such files only")
            if not path.is_file():
                raise InputError(f"{title} names {path}, which is not a file; pass files that exist")
        return cls(tuple(paths), len(paths))

    def read(self, places: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        for place in places:
            yield _decoded(self.paths[place])


def _decoded(path: Path) -> NDArray[np.uint8]:
    """Return the picture as it is meant to be seen: turned as the camera was held, of 8 bits, without its notes."""
    from PIL import Image, ImageOps

    bombs = (Image.DecompressionBombError, Image.DecompressionBombWarning)
    try:
        with warnings.catch_warnings():
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
    except bombs as error:
        raise InputError(
            f"{path} has more pixels than a thumbnail is worth ({_one_line(error)}); pass smaller images"
        ) from error
    except _PICTURE_ERRORS as error:
        raise FileFormatError(
            f"{path} is no image, or a damaged or truncated one ({_one_line(error)}); write it again or leave it out"
        ) from error


def _open_npy(path: Path) -> _Pictures:
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FileFormatError(
            f"{path} is not an array of numbers in NumPy's format, or is damaged ({_one_line(error)}); write it again "
            f"with numpy.save"
        ) from error
    layout = _Layout.of(values.shape, values.dtype, str(path))
    opened = _Array(values, layout, f"{path}: image", len(values))
    next(opened.read([0]))  # floats of another range are told now, not after the work
    return opened


def _open_npz(path: Path) -> Images:
    headers = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                if entry.endswith(".npy"):
                    with archive.open(entry) as stream:
                        headers[entry.removesuffix(".npy")] = _header(stream, f"{path}: {entry.removesuffix('.npy')}")
    except _ZIP_ERRORS as error:
        raise FileFormatError(_damaged(path, error)) from error
    name = _named_images(path, {name: shape for name, (shape, _, _) in headers.items()})
    shape, is_fortran, dtype = headers[name]
    layout = _Layout.of(shape, dtype, f"{path}: {name}")
    opened = _Member(path, f"{name}.npy", shape, is_fortran, layout, shape[0])
    next(opened.read([0]))
    return Images(opened, _rows(path, headers["rows"], shape[0]) if "rows" in headers else None)


def _header(stream: IO[bytes], title: str) -> _Header:
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        return read(stream)
    except (ValueError, EOFError) as error:
        raise FileFormatError(
            f"{title} is not an array in NumPy's format, or is damaged ({_one_line(error)}); write it again with "
            f"numpy.savez"
        ) from error


def _named_images(path: Path, shapes: dict[str, tuple[int, ...]]) -> str:
    candidates = [name for name, shape in shapes.items() if len(shape) in (3, 4)]
    if "images" in shapes:
        return "images"
    if len(candidates) != 1:
        found = ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "nothing"
        raise InputError(f'{path} holds {found}, but no array "images"; name the array of pictures so')
    return candidates[0]


def _rows(path: Path, header: _Header, n_images: int) -> NDArray[np.int64]:
    shape, _, dtype = header
    if shape != (n_images,) or dtype.kind not in "iu":
        raise InputError(
            f'{path}: "rows" has shape {shape} and dtype {dtype} for {n_images} images; pass one whole number per '
            f"image, that of its row"
        )
    try:
        with np.load(path, allow_pickle=False) as arrays:
            rows = arrays["rows"]
    except (ValueError, *_ZIP_ERRORS) as error:
        raise FileFormatError(_damaged(path, error)) from error
    if rows.min() < 0 or len(np.unique(rows)) < n_images:
        raise InputError(f'{path}: "rows" holds a negative number or one twice; each image has a row of its own')
    return np.asarray(rows, dtype=np.int64)


def _data_uri(picture: NDArray[np.uint8], side: int) -> str:
    from PIL import Image

    image = Image.fromarray(picture)
    longest = max(image.size)
    if longest > side:
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
    elif side // longest > 1:
        factor = side // longest
        image = image.resize((factor * image.width, factor * image.height), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _damaged(path: Path, error: BaseException) -> str:
    return f"{path} is not a zip archive of arrays, or is damaged ({_one_line(error)}); write it again with numpy.savez"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
