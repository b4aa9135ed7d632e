"""Finding: where, in a folder of the user's, a data set is kept, in whichever of its usual layouts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path, PurePosixPath

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments.data_sets.arrays import array_headers, picture_array
from gem_ood.experiments.data_sets.batches import FORMS, batch_files, find_batches, missing_files
from gem_ood.experiments.data_sets.catalogue import CATALOGUE, SPLITS, DataSet, entry, file_split, plain_name
from gem_ood.experiments.data_sets.picture_files import inside, picture_names, refuse_foreign
from gem_ood.experiments.data_sets.trees import ARCHIVE_SUFFIXES, FolderTree, naming_unreadable, shown
from gem_ood.experiments.sources import ARCHIVES
from gem_ood.storage import refuse_special

__all__ = [
    "Found",
    "Place",
    "candidates",
    "file_form",
    "find",
    "is_split_told",
    "missing",
    "places_of",
    "select_pictures",
]

#: Folders in which data sets are gathered.
CONTAINERS = (
    *("data", "dataset", "datasets", "raw", "torchvision", "cifar", "cifarpy"),
    *("images", "ood", "ooddata", "ooddataset", "ooddatasets"),
)

#: How deep below the given folder a data set's own folder may lie.
DEEPEST = 3


@dataclass(frozen=True)
class Place:
    """A folder that is looked into, and whether its name is the data set's own."""

    path: Path
    is_own: bool


@dataclass(frozen=True)
class Found:
    """What a data set is read from.

    Attributes:
        path: A file or a folder.
        form: A version of `FORMS`, "npz", "pictures" or "archive".
        names: The files in a folder, in their order.
    """

    path: Path
    form: str
    names: tuple[str, ...] = ()

    @property
    def source(self) -> Path:
        """The file, where one holds all, and the folder otherwise."""
        return self.path / self.names[0] if self.form in FORMS and len(self.names) == 1 else self.path


def find(
    name: str, folder: str | PathLike[str], *, split: str = "test", is_own: bool = False, is_whole: bool = False
) -> Path | None:
    """Return the file or folder that a data set would be read from, None if there is none; nothing is decoded.

    Arguments are those of `load`. Archives are not opened, so that one may turn out to hold something else; an official
    version that lacks files, which `load` then names, is returned only where there is nothing else, and not at all if
    `is_whole` is asked for.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "test_32x32.mat").write_bytes(b"")
    ...     find("svhn", folder).name, find("svhn", folder, split="train"), find("isun", folder)
    ('test_32x32.mat', None, None)
    """
    known = entry(name)
    if is_own and Path(folder).is_file():
        return Path(folder) if file_form(known, Path(folder), split) else None
    found = next(candidates(known, places_of(known, folder, is_own=is_own), split), None)
    if found is None or (is_whole and found.form in FORMS and missing_files(found.names, known, split, found.form)):
        return None
    return found.source


def file_form(known: DataSet, path: Path, split: str) -> Found | None:
    """Return a file as what a data set is read from, None if it is of no kind that holds one."""
    lower = path.name.lower()
    if lower.endswith(".npz"):
        return Found(path, "npz")
    if lower.endswith(ARCHIVE_SUFFIXES):
        return Found(path, "archive")
    forms = [form for form in FORMS if find_batches([path.name], known, split, form)]
    return Found(path.parent, forms[0], (path.name,)) if forms else None


def places_of(known: DataSet, folder: str | PathLike[str], *, is_own: bool = False) -> list[Place]:
    """Return the folders in which a data set may be, the given one first, which may be its own whatever its name."""
    root = Path(folder)
    if not root.exists():
        raise InputError(f"{shown(root)} does not exist; pass the folder that holds {known.title}")
    refuse_special(root)
    if not root.is_dir():
        raise InputError(f"{shown(root)} is a file where a folder must be; pass the folder that it is in")
    whole = root.absolute()
    is_inner = whole.name.lower() in known.inner and _is_own(known, whole.parent.name)
    places = [Place(root, is_own or is_inner or _is_own(known, whole.name))]
    level = places
    for _ in range(DEEPEST):
        level = [below for place in level for below in _below(known, place.path)]
        places += level
    return places


def candidates(known: DataSet, places: Sequence[Place], split: str) -> Iterator[Found]:
    """Yield what a split may be read from: folders and files before archives, the simplest version first.

    Official versions that lack files come last.
    """
    if split not in SPLITS:
        raise InputError(f"split is {split!r}; pass 'train' or 'test'")
    batches = list(_batches(known, places, split))
    incomplete = [found for found in batches if missing_files(found.names, known, split, found.form)]
    yield from (found for found in batches if found not in incomplete)
    yield from _npz(known, places, split)
    # The deepest folder of the set's own name is the one that holds it, such as LSUN/LSUN_C.
    yield from _pictures(known, places[::-1], split)
    yield from _archives(known, places, split)
    yield from incomplete


def select_pictures(known: DataSet, names: Sequence[str], split: str, title: str) -> tuple[str, list[str]]:
    """Return the folder (with its slash, or "") in a tree that holds a split's pictures, and their names in order."""
    foreign = {folder for folder in {name.rpartition("/")[0] for name in names} if _is_of_another(known, folder)}
    own = [name for name in names if name.rpartition("/")[0] not in foreign]
    pictures = picture_names(own)
    wanted = SPLITS[split] if known.has_splits else known.inner
    others = SPLITS["train" if split == "test" else "test"] if known.has_splits else ()
    root = inside(pictures, wanted, others=others) or ""
    # CIFAR's classes, or the pictures of the other split, must not be taken for this one.
    if not root and (known.name.startswith("cifar") or inside(pictures, others) is not None):
        return "", []
    refuse_foreign([name for name in own if name.startswith(root)], title)
    return root, [name for name in pictures if name.startswith(root)]


def is_split_told(known: DataSet, path: Path, split: str) -> bool:
    """Say whether a file's name tells that it holds this split; SVHN is its test split where nothing is said."""
    told = file_split(known, path.stem)
    return not known.has_splits or told == split or (known.name == "svhn" and split == "test" and told == "")


def missing(known: DataSet, places: Sequence[Place], split: str) -> InputError:
    """Return the error that says what was looked for and where."""
    versions = (batch_files(known, split, form) for form in FORMS)
    files = [f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0] for names in versions if names]
    folder = f"{known.folders[0]}/{SPLITS[split][0]}" if known.has_splits else known.folders[0]
    archive = [] if known.name == "svhn" else [ARCHIVES[known.name].file_name]  # whose archive is a file of above
    looked = [*files, *archive, f"{known.folders[0]}*.npz", f"a folder {folder} of pictures"]
    where = ", ".join(shown(place.path) for place in places)
    of_split = f"the {split} split of {known.title}" if known.has_splits else known.title
    npz = [
        path for place in places for path in _files(place.path, (".npz",)) if file_split(known, path.stem) is not None
    ]
    passed = f"; {shown(npz[0])} is not it, having no array 'images' (n, height, width, 3) of it" if npz else ""
    return InputError(
        f"{of_split} was not found in {shown(places[0].path)}{passed}; looked for {', '.join(looked)} (the set's "
        f"folder may also be called {', '.join(known.folders[1:5])}, in any case and with any signs between) in "
        f"{where}; pass the folder that holds it, or let it be downloaded with download=True (--download)"
    )


def _is_own(known: DataSet, folder: str) -> bool:
    return file_split(known, folder) == ""


def _below(known: DataSet, folder: Path) -> list[Place]:
    found = []
    with naming_unreadable(folder):
        for path in sorted(folder.iterdir()):
            is_own = _is_own(known, path.name)
            if (is_own or plain_name(path.name) in CONTAINERS) and path.is_dir():
                found.append(Place(path, is_own))
    return found


def _batches(known: DataSet, places: Sequence[Place], split: str) -> Iterator[Found]:
    for form in FORMS:
        for place in places:
            # CIFAR-100's files are called "test" and "train", which says nothing in a folder of another name.
            if not batch_files(known, split, form) or (known.name == "cifar100" and not place.is_own):
                continue
            names = find_batches(FolderTree(place.path, is_deep=False).names(), known, split, form)
            if names:
                yield Found(place.path, form, tuple(names))


def _npz(known: DataSet, places: Sequence[Place], split: str) -> Iterator[Found]:
    for place in places:
        for path in _files(place.path, (".npz",)):
            if file_split(known, path.stem) not in ("", split) and known.has_splits:
                continue
            if file_split(known, path.stem) is not None and _has_pictures(known, path, split):
                yield Found(path, "npz")


def _has_pictures(known: DataSet, path: Path, split: str) -> bool:
    """Say whether an `.npz` file holds pictures and not, say, features; a damaged one is told when it is read."""
    try:
        return picture_array(array_headers(path), split, is_told=is_split_told(known, path, split)) is not None
    except FileFormatError:
        return True


def _pictures(known: DataSet, places: Sequence[Place], split: str) -> Iterator[Found]:
    for place in places:
        if place.is_own:
            root, names = select_pictures(known, FolderTree(place.path).names(), split, shown(place.path))
            if names:
                yield Found(place.path / root, "pictures", tuple(name.removeprefix(root) for name in names))


def _archives(known: DataSet, places: Sequence[Place], split: str) -> Iterator[Found]:
    found = []
    for place in places:
        for path in _files(place.path, ARCHIVE_SUFFIXES):
            told = file_split(known, _archive_stem(path))
            if told is not None and (not known.has_splits or told in ("", split)):
                versions = [version for version in FORMS if version in path.name.lower()]
                rank = list(FORMS).index(versions[0]) if versions else len(FORMS)
                found.append((rank, Found(path, "archive")))
    yield from (archive for _, archive in sorted(found, key=lambda ranked: ranked[0]))


def _files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return the regular files of these suffixes in a folder, those of short names first."""
    names = [name for name in FolderTree(folder, is_deep=False).names() if name.lower().endswith(tuple(suffixes))]
    paths = (folder / name for name in sorted(names, key=lambda name: (len(name), name)))
    return [path for path in paths if path.is_file()]


def _archive_stem(path: Path) -> str:
    lower = path.name.lower()
    suffix = max((suffix for suffix in ARCHIVE_SUFFIXES if lower.endswith(suffix)), key=len)
    return path.name[: -len(suffix)]


def _is_of_another(known: DataSet, folder: str) -> bool:
    """Say whether a folder lies in one of another data set, such as LSUN/LSUN_resize for LSUN-Crop."""
    parts = PurePosixPath(folder).parts
    return not any(_is_own(known, part) for part in parts) and any(
        _is_own(other, part) for other in CATALOGUE.values() if other is not known for part in parts
    )
