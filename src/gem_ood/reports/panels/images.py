"""Pictures of rows: opened lazily from an array, a NumPy file or image files, and shown as small PNG data URIs."""

import base64
import io
import os
import re
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import FileFormatError, InputError
from gem_ood.extras import require_extra
from gem_ood.features import is_count
from gem_ood.numpy_format import ArrayHeader, archive_headers, naming_archive, one_line, read_block
from gem_ood.reports.panels.pictures import (
    LARGEST_SIDE,
    SUFFIXES,
    ArrayPictures,
    FilePictures,
    Layout,
    MemberPictures,
    Pictures,
)

__all__ = ["SUFFIXES", "Images", "open_images"]

#: A path as callers write it.
AnyPath = str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class Images:
    """The pictures of a set's rows; each is read when its thumbnail is asked for.

    `rows` holds the row number of each picture, or None where the pictures are those of all rows, in order.
    """

    pictures: Pictures
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
    picture. A directory's image files are taken in the order of their names, digits in them as numbers: `2.png` comes
    before `10.png`.

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
            return Images(FilePictures.of([Path(path) for path in source], "images"))  # type: ignore[union-attr, arg-type]
    except OSError as error:
        raise InputError(f"images cannot be read ({one_line(error)}); pass files that you may read") from error
    array = _as_array(source)
    layout = Layout.of(array.shape, array.dtype, "images")
    layout.refuse_values(array, "images")
    return Images(ArrayPictures(array, layout, "images", len(array)))


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
            f"images of type {type(source).__name__} cannot be read as one array ({one_line(error)}); pass pictures "
            f"of one size, or a list of files"
        ) from error


def _open_path(path: Path) -> Images:
    if path.is_dir():
        return Images(FilePictures.of(_listed(path), str(path)))
    if not path.exists():
        raise InputError(f"{path} does not exist; pass a .npy or .npz file, or a directory of images")
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return Images(_open_npy(path))
    if suffix == ".npz":
        return _open_npz(path)
    if suffix in SUFFIXES:
        return Images(FilePictures.of([path], str(path)))
    raise InputError(
        f"{path} has the suffix {suffix or '(none)'!r}; pass a .npy or .npz file, or a directory of "
        f"{' '.join(SUFFIXES)} files"
    )


def _listed(directory: Path) -> list[Path]:
    found = (path.name for path in directory.iterdir() if path.suffix.lower() in SUFFIXES)
    names = sorted(found, key=_by_numbers)
    paths = [directory / name for name in names if not name.startswith(".")]
    if not paths:
        raise InputError(f"{directory} holds no {' '.join(SUFFIXES)} file; pass the directory that holds the images")
    return paths


def _by_numbers(name: str) -> tuple[list[str | int], str]:
    """Return by what to sort names of files so that runs of digits count as numbers.

    >>> sorted(["10.png", "2.png", "row 10b.png", "row 9.png", "row .png"], key=_by_numbers)
    ['2.png', '10.png', 'row .png', 'row 9.png', 'row 10b.png']
    """
    # Text and digits take turns, text first, so that no text meets a number.
    parts = re.split(r"([0-9]+)", Path(name).stem)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], name


def _open_npy(path: Path) -> Pictures:
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FileFormatError(
            f"{path} is not an array of numbers in NumPy's format, or is damaged ({one_line(error)}); write it again "
            f"with numpy.save"
        ) from error
    layout = Layout.of(values.shape, values.dtype, str(path))
    opened = ArrayPictures(values, layout, f"{path}: image", len(values))
    next(opened.read([0]))  # floats of another range are told now, not after the work
    return opened


def _open_npz(path: Path) -> Images:
    headers = archive_headers(path)
    name = _named_images(path, {name: header.shape for name, header in headers.items()})
    header = headers[name]
    layout = Layout.of(header.shape, header.dtype, f"{path}: {name}")
    opened = MemberPictures(path, f"{name}.npy", layout, header.shape[0])
    next(opened.read([0]))
    return Images(opened, _rows(path, headers["rows"], header.shape[0]) if "rows" in headers else None)


def _named_images(path: Path, shapes: dict[str, tuple[int, ...]]) -> str:
    candidates = [name for name, shape in shapes.items() if len(shape) in (3, 4)]
    if "images" in shapes:
        return "images"
    if len(candidates) != 1:
        found = ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "nothing"
        raise InputError(f'{path} holds {found}, but no array "images"; name the array of pictures so')
    return candidates[0]


def _rows(path: Path, header: ArrayHeader, n_images: int) -> NDArray[np.int64]:
    shape, dtype = header.shape, header.dtype
    if shape != (n_images,) or dtype.kind not in "iu":
        raise InputError(
            f'{path}: "rows" has shape {shape} and dtype {dtype} for {n_images} images; pass one whole number per '
            f"image, that of its row"
        )
    with naming_archive(str(path)), zipfile.ZipFile(path) as archive, archive.open("rows.npy") as stream:
        stream.seek(header.length)
        rows = read_block(stream, dtype, shape, f"{path}: rows")
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
