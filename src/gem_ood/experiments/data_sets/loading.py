"""Loading: a data set of the paper, or any other pictures, as an `ImageSet` in memory."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments.data_sets.arrays import read_npy, read_npz
from gem_ood.experiments.data_sets.batches import (
    FORMS,
    find_batches,
    label_checked,
    lacking,
    missing_files,
    read_batches,
)
from gem_ood.experiments.data_sets.catalogue import DEFAULT_LIMITS, DataSet, entry
from gem_ood.experiments.data_sets.class_names import CLASS_NAMES, folder_labels
from gem_ood.experiments.data_sets.finding import (
    Found,
    candidates,
    file_form,
    is_split_told,
    missing,
    places_of,
    select_pictures,
)
from gem_ood.experiments.data_sets.picture_files import (
    OnImages,
    fit_array,
    picture_names,
    read_pictures,
    refuse_foreign,
    refuse_side,
)
from gem_ood.experiments.data_sets.trees import (
    ARCHIVE_SUFFIXES,
    PICTURE_SUFFIXES,
    FolderTree,
    Tree,
    open_archive,
    shown,
)
from gem_ood.experiments.image_sets import ImageSet
from gem_ood.features import is_count
from gem_ood.storage import refuse_special

__all__ = ["check_images", "load", "load_images"]

#: The largest side to which pictures may be resized.
LARGEST_SIZE = 1024


def load(
    name: str,
    folder: str | PathLike[str],
    *,
    split: str = "test",
    limit: int | None = None,
    seed: int = 0,
    is_own: bool = False,
    on_images: OnImages | None = None,
) -> ImageSet:
    """Return a data set of the paper, read from whichever of its usual layouts is in a folder.

    The name comes first, since it says what is looked for in the folder; `load_images` takes a path first, whose
    pictures it only names. Of several layouts the first is taken that lacks no file.

    Args:
        name: One of `DATA_SETS`.
        folder: The folder that holds it, itself or in a subfolder of its usual name.
        split: "train" or "test"; matters for CIFAR and SVHN, the other sets have one.
        limit: At most so many pictures, drawn without replacement and kept in their order; 0 is all of them, and None
            is what the protocol takes: 10,000 of Places365 (`DEFAULT_LIMITS`), all of the others.
        seed: Of the draw.
        is_own: Say that `folder` is the set's own, whatever its name: all pictures in it are taken for the set's. It
            may then also be one file: an archive, an `.npz` file or an official one.
        on_images: Called with how many pictures are read, and of how many.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = np.zeros((3, 3073), dtype=np.uint8)
    ...     records[:, 0] = [7, 1, 4]
    ...     _ = Path(folder, "test_batch.bin").write_bytes(records.tobytes())
    ...     cifar = load("cifar10", folder)
    >>> cifar.name, cifar.images.shape, cifar.labels
    ('CIFAR-10', (3, 32, 32, 3), array([7, 1, 4]))

    Raises:
        InputError: The set is not there, or files of it are not; the message names what was looked for, where, and
            the remedy.
        FileFormatError: A file of it is damaged, truncated or of another kind.
    """
    known = entry(name)
    draw = _Draw(DEFAULT_LIMITS.get(name, 0) if limit is None else limit, seed, on_images)
    if is_own and Path(folder).is_file():
        file = file_form(known, Path(folder), split)
        if file is None:
            raise InputError(
                f"{shown(Path(folder))} is a file of another kind; pass a folder of pictures of {known.title}, an "
                f"archive of them ({' '.join(ARCHIVE_SUFFIXES)}), an .npz file, or an official one"
            )
        return _of_first(known, [file], split, draw, is_own=True)
    places = places_of(known, folder, is_own=is_own)
    several = candidates(known, places, split)
    first = next(several, None)
    if first is None:
        raise missing(known, places, split)
    return _of_first(known, chain([first], several), split, draw, is_own=is_own)


def load_images(
    path: str | PathLike[str],
    name: str,
    *,
    size: int = 32,
    limit: int | None = 10_000,
    seed: int = 0,
    on_images: OnImages | None = None,
) -> ImageSet:
    """Return the pictures of a folder (and those below it), a tar or zip archive, or an `.npz` or `.npy` file.

    The name is what the set is to be called, any text: nothing is looked for by it, as `load` does by its own.

    Each picture is resized to `size` pixels on its shorter side and cropped about its centre, which leaves those of
    that size as they are. At most `limit` are drawn by `seed` without replacement and kept in their order; None or 0 is
    all. Grey pictures of more than 8 bits are refused.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/noise.npy", np.random.default_rng(0).integers(0, 256, (5, 48, 40, 3), dtype=np.uint8))
    ...     load_images(f"{folder}/noise.npy", "noise", limit=3).images.shape
    (3, 32, 32, 3)
    """
    if not isinstance(name, str):
        raise InputError(f"name is {name!r}; pass the path first, then what the set is to be called, as text")
    if not is_count(size) or size > LARGEST_SIZE:
        raise InputError(f"size is {size!r}; pass a whole number of pixels from 1 to {LARGEST_SIZE}")
    draw = _Draw(limit or 0, seed, on_images)
    source = Path(path)
    check_images(source, name)
    lower = source.name.lower()
    if source.is_file() and lower.endswith((".npz", ".npy")):
        images = read_npy(source) if lower.endswith(".npy") else read_npz(source, "test")[0]
        drawn = images[draw.rows(len(images))]
        return draw.of(ImageSet(name, fit_array(drawn, size, shown(source)), source=shown(source)))
    tree: Tree = FolderTree(source) if source.is_dir() else open_archive(source)
    files = tree.names()
    refuse_foreign(files, shown(source))
    names = picture_names(files)
    if not names:
        raise InputError(f"{shown(source)} holds no picture; pass one that has {' '.join(PICTURE_SUFFIXES)} files")
    chosen = [names[row] for row in draw.rows(len(names))]
    return ImageSet(name, read_pictures(tree, chosen, size=size, on_images=on_images), source=shown(source))


def check_images(path: Path, name: str) -> None:
    """Raise, before long work, if this is nothing that pictures can be read from; archives are not opened."""
    if not path.exists():
        raise InputError(f"{shown(path)} does not exist; pass a folder or an archive of pictures for {name!r}")
    refuse_special(path)
    if path.is_file() and not path.name.lower().endswith((".npz", ".npy", *ARCHIVE_SUFFIXES)):
        raise InputError(
            f"{shown(path)} is a file of another kind; pass a folder of pictures ({' '.join(PICTURE_SUFFIXES)}), an "
            f"archive of them ({' '.join(ARCHIVE_SUFFIXES)}), or an .npz or .npy file"
        )
    if path.is_dir() and not picture_names(FolderTree(path).names()):
        raise InputError(f"{shown(path)} holds no picture; pass one that has {' '.join(PICTURE_SUFFIXES)} files")


@dataclass(frozen=True)
class _Draw:
    """How many pictures are drawn, by which seed, and who is told of them."""

    limit: int
    seed: int
    on_images: OnImages | None

    def __post_init__(self) -> None:
        for what, value in (("limit", self.limit), ("seed", self.seed)):
            if not is_count(value, least=0):
                raise InputError(f"{what} is {value!r}; pass a whole number, at least 0 (limit 0 is all pictures)")

    def rows(self, n_pictures: int) -> NDArray[np.int64]:
        """Return the rows that are drawn, ascending."""
        if not self.limit or self.limit >= n_pictures:
            return np.arange(n_pictures)
        drawn = np.random.default_rng(self.seed).choice(n_pictures, self.limit, replace=False)
        return np.sort(drawn)

    def of(self, pictures: ImageSet) -> ImageSet:
        """Return the drawn rows of a set that was read at once."""
        drawn = pictures.take(self.rows(len(pictures))) if 0 < self.limit < len(pictures) else pictures
        if self.on_images is not None:
            self.on_images(len(drawn), len(drawn))
        return drawn


def _of_first(known: DataSet, several: Iterable[Found], split: str, draw: _Draw, *, is_own: bool) -> ImageSet:
    """Return the split from the first of these that lacks no file; raise for the one that lacks the fewest."""
    errors: list[tuple[float, InputError]] = []
    for found in several:
        if found.form == "npz":
            is_told = is_own or is_split_told(known, found.path, split)
            return _of_arrays(known, found.path, split, draw, is_told=is_told)
        if found.form == "pictures":
            return _of_pictures(known, FolderTree(found.path), found.names, "", draw)
        tree: Tree = FolderTree(found.path, is_deep=False) if found.form in FORMS else open_archive(found.path)
        names = found.names or tree.names()
        there = {form: files for form in FORMS if (files := find_batches(names, known, split, form))}
        for form, files in there.items():
            n_missing = len(missing_files(files, known, split, form))
            if not n_missing:
                images, labels = read_batches(tree, files, known, form)
                source = f"{shown(found.source)} ({form} version)"
                return draw.of(ImageSet(known.title, images, labels, source=source))
            errors.append((n_missing, lacking(found.path, files, known, split, form)))
        if not there:
            root, pictures = select_pictures(known, names, split, shown(found.path))
            if pictures:
                return _of_pictures(known, tree, pictures, root, draw)
            nothing = FileFormatError(
                f"{shown(found.path)} holds neither the files nor the pictures of {known.title}'s split; fetch it "
                f"again or pass the folder that holds them"
            )
            errors.append((math.inf, nothing))
    raise min(errors, key=lambda ranked: ranked[0])[1]


def _of_arrays(known: DataSet, path: Path, split: str, draw: _Draw, *, is_told: bool) -> ImageSet:
    title = shown(path)
    images, labels = read_npz(path, split, known=known, is_told=is_told)
    if known.size is None:
        refuse_side(images.shape[1:], known.side, title)
    if known.n_classes and labels is not None:
        labels = label_checked(labels, len(images), known, title)
    elif known.name.startswith("cifar"):
        raise FileFormatError(f'{title} holds no labels of {known.title}; add an array "labels"')
    elif not known.n_classes:
        labels = None  # nobody reads them
    if 0 < draw.limit < len(images):
        rows = draw.rows(len(images))
        images, labels = images[rows], None if labels is None else labels[rows]
    if known.size is not None:
        images = fit_array(images, known.size, title)
    return draw.of(ImageSet(known.title, images, labels, source=title))


def _of_pictures(known: DataSet, tree: Tree, names: Sequence[str], root: str, draw: _Draw) -> ImageSet:
    """Return the pictures of these names; those of a class lie in one folder below `root`, which ends with a slash."""
    title = shown(tree.path / root)
    labels = _labels(known, [name.removeprefix(root) for name in names], title)
    rows = draw.rows(len(names))
    chosen = [names[row] for row in rows]
    images = read_pictures(tree, chosen, size=known.size, side=known.side, on_images=draw.on_images)
    return ImageSet(known.title, images, None if labels is None else labels[rows], source=title)


def _labels(known: DataSet, names: Sequence[str], title: str) -> NDArray[np.int64] | None:
    """Return the labels that CIFAR's class folders give; those of other sets' are of no use."""
    if not known.name.startswith("cifar"):
        return None
    loose = [name for name in names if "/" not in name]
    if loose:
        raise InputError(
            f"{title} holds {len(loose):,} pictures outside class folders, such as {shown(loose[0])}; put each into "
            f"the folder of its class, such as {CLASS_NAMES[known.name][0]}/"
        )
    folders = [name.partition("/")[0] for name in names]
    label_by_folder = folder_labels(known, sorted(set(folders)), title)
    return np.array([label_by_folder[folder] for folder in folders], dtype=np.int64)
