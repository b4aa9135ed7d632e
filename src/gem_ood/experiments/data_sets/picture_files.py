"""Picture files: one image each, in a folder or an archive, decoded by a few threads in a fixed order."""

import io
import os
import warnings
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments.data_sets.trees import PICTURE_SUFFIXES, Tree, shown
from gem_ood.extras import require_extra
from gem_ood.pictures import naming_picture, refuse_many_pixels

__all__ = [
    "OnImages",
    "fit_array",
    "inside",
    "picture_names",
    "read_pictures",
    "refuse_foreign",
    "refuse_side",
]

#: The formats that Pillow may find in files that are taken for pictures.
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")

#: Pictures that are not read: passing over them in silence would make another set.
FOREIGN_SUFFIXES = (".gif", ".avif", ".heic", ".heif", ".jp2", ".tga")

#: Bytes of one file; a picture of a data set has a thousandth of it.
LARGEST_PICTURE = 1 << 25

#: Sides of pictures that are taken as they are: LSUN-Crop's 36 is the largest that is published.
SMALLEST_SIDE, LARGEST_SIDE = 32, 64

MOST_THREADS = 8

#: What pictures are read for, as errors say it.
USE = "a data set"

#: Told how many pictures are read, and of how many.
OnImages = Callable[[int, int], None]


def picture_names(names: Sequence[str]) -> list[str]:
    """Return the names of pictures among those of files, in the order of torchvision's ImageFolder.

    That is by the first folder, then by the whole folder, then by name.

    >>> picture_names(["b/1.png", "a-b/2.jpg", "a/c/3.jpg", "a/read.me", "a/9.JPG"])
    ['a/9.JPG', 'a/c/3.jpg', 'a-b/2.jpg', 'b/1.png']
    """

    def place(name: str) -> tuple[str, str, str]:
        folder, _, file = name.rpartition("/")
        return folder.partition("/")[0], folder, file

    return sorted((name for name in names if name.lower().endswith(PICTURE_SUFFIXES)), key=place)


def refuse_foreign(names: Sequence[str], title: str) -> None:
    """Raise if there are pictures among these files that are not read."""
    foreign = [name for name in names if name.lower().endswith(FOREIGN_SUFFIXES)]
    if foreign:
        raise InputError(
            f"{title} holds {len(foreign):,} pictures that are not read, such as {shown(min(foreign))}; convert them "
            f"to .png, or move them elsewhere"
        )


def inside(names: Sequence[str], folders: Sequence[str], *, others: Sequence[str] = ()) -> str | None:
    """Return the folder, with its slash, of the first of these names that files lie in; None if they lie in none.

    Of several folders of one name it is the one that is least deep. What lies in one of the `folders` or `others`
    counts for that one only: CIFAR-100's class "train" in the folder "test" is no split.

    >>> inside(["dtd/images/a/1.jpg", "dtd/labels/a.jpg"], ["images"])
    'dtd/images/'
    >>> inside(["test/train/1.png"], ["train"], others=["test"]) is None
    True
    """
    found: dict[str, set[str]] = {}
    for path in {PurePosixPath(name).parent for name in names}:
        depth = next((depth for depth, part in enumerate(path.parts) if part.lower() in (*folders, *others)), None)
        if depth is not None:
            found.setdefault(path.parts[depth].lower(), set()).add("/".join(path.parts[: depth + 1]) + "/")
    for folder in folders:
        if folder in found:
            return min(found[folder], key=lambda path: (path.count("/"), path))
    return None


def read_pictures(
    tree: Tree, names: Sequence[str], *, size: int | None, side: int | None = None, on_images: OnImages | None = None
) -> NDArray[np.uint8]:
    """Return the pictures of these files of a tree, in the order of `names`, as red, green and blue.

    They are resized to `size` on the shorter side and cropped about the centre; with None they are taken as they are,
    and must all have one size (`side`, if that is given).
    """
    require_extra("data", "PIL.Image", purpose="images")
    row_by_name = {name: row for row, name in enumerate(names)}
    images: NDArray[np.uint8] | None = None
    first, n_done = "", 0
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())  # here, not in the threads, which share the filters
        warnings.simplefilter("ignore")
        decoded = stack.enter_context(closing(_decoded_in_turn(tree, names, size)))
        for n_done, (name, picture) in enumerate(decoded, start=1):
            if images is None:
                if size is None:
                    refuse_side(picture.shape, side, tree.title(name))
                images, first = np.empty((len(names), *picture.shape), dtype=np.uint8), name
            if picture.shape != images.shape[1:]:
                raise InputError(
                    f"{tree.title(name)} is {_sides(picture.shape)} pixels but {shown(first)} is "
                    f"{_sides(images.shape[1:])}; this set is taken as it is: pass pictures of one size, or pass it by "
                    f"load_images (--ood NAME=DIR), which resizes"
                )
            images[row_by_name[name]] = picture
            if on_images is not None:
                on_images(n_done, len(names))
    if images is None or n_done < len(names):
        raise FileFormatError(
            f"{shown(tree.path)} gave {n_done:,} of {len(names):,} pictures: it was changed while it was read; read it "
            f"again"
        )
    return images


def fit_array(
    pictures: NDArray[np.uint8], size: int, title: str, on_images: OnImages | None = None
) -> NDArray[np.uint8]:
    """Return the pictures of an array resized and cropped as files are; the array itself if they have that size."""
    if pictures.shape[1:3] == (size, size):
        return pictures
    require_extra("data", "PIL.Image", purpose="images")
    from PIL import Image

    fitted = np.empty((len(pictures), size, size, 3), dtype=np.uint8)
    for row, picture in enumerate(pictures):
        fitted[row] = np.asarray(_fitted(Image.fromarray(picture), size, title))
        if on_images is not None:
            on_images(row + 1, len(pictures))
    return fitted


def _decoded_in_turn(
    tree: Tree, names: Sequence[str], size: int | None
) -> Generator[tuple[str, NDArray[np.uint8]], None, None]:
    """Yield each file's picture in the order of the tree, with only a few of them in memory."""
    n_threads = min(MOST_THREADS, os.cpu_count() or 1)
    pool = ThreadPoolExecutor(n_threads)
    waiting: deque[tuple[str, Future[NDArray[np.uint8]]]] = deque()
    try:
        with closing(tree.read(names, largest=LARGEST_PICTURE)) as entries:
            for name, read in entries:
                waiting.append((name, pool.submit(_decoded, read, tree.title(name), size)))
                if len(waiting) > 2 * n_threads:
                    done, future = waiting.popleft()
                    yield done, future.result()
        while waiting:
            done, future = waiting.popleft()
            yield done, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _decoded(read: Callable[[], bytes], title: str, size: int | None) -> NDArray[np.uint8]:
    """Return one picture as the protocol's loader does: no rotation by EXIF, no reduced decoding."""
    from PIL import Image

    data = read()
    with naming_picture(title, use=USE), Image.open(io.BytesIO(data), formats=FORMATS) as picture:
        refuse_many_pixels(picture.width * picture.height, f"{title} is {picture.width}×{picture.height}", use=USE)
        _refuse_deep(picture.mode, title)
        colours = picture.convert("RGB")
        return np.asarray(colours if size is None else _fitted(colours, size, title))


def _refuse_deep(mode: str, title: str) -> None:
    """Raise if Pillow would cut a grey picture's values at 255, which makes it nearly white, or black.

    Colours of 16 bits are no such case: Pillow reads their upper halves.
    """
    if mode in ("I", "F") or mode.startswith("I;"):
        found = "16 bits" if mode.startswith("I;16") else "a fraction" if mode == "F" else "more than 8 bits"
        raise InputError(f"{title} has {found} per colour (Pillow's mode {mode}); save it with 8 bits, from 0 to 255")


def _fitted(picture: Any, size: int, title: str) -> Any:
    """Return a picture as torchvision's Resize(size) and CenterCrop(size) make it of a Pillow image."""
    from PIL import Image

    width, height = picture.size
    short, long = min(width, height), max(width, height)
    longer = int(size * long / short)
    refuse_many_pixels(size * longer, f"{title} is {width}×{height} and would be {size}×{longer}", use=USE)
    new_width, new_height = (size, longer) if width <= height else (longer, size)
    if (width, height) != (new_width, new_height):
        picture = picture.resize((new_width, new_height), Image.Resampling.BILINEAR)
    left, top = round((new_width - size) / 2), round((new_height - size) / 2)
    return picture.crop((left, top, left + size, top + size))


def refuse_side(shape: tuple[int, ...], side: int | None, title: str) -> None:
    """Raise if a picture that is taken as it is has not the side that its set has."""
    smallest, largest = (side, side) if side is not None else (SMALLEST_SIDE, LARGEST_SIDE)
    if not smallest <= min(shape[:2]) <= max(shape[:2]) <= largest:
        wanted = f"{side}×{side}" if side is not None else f"{smallest}×{smallest} to {largest}×{largest}"
        raise InputError(
            f"{title} is {_sides(shape)} pixels but this set's pictures are {wanted}, and taken as they are; pass the "
            f"published pictures, or pass yours by load_images (--ood NAME=DIR), which resizes"
        )


def _sides(shape: tuple[int, ...]) -> str:
    return f"{shape[1]}×{shape[0]}"
