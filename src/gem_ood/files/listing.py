"""Which files a directory or a pattern stands for: the Parquet files of a set, in one order everywhere."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from gem_ood.errors import FileFormatError, InputError
from gem_ood.storage import refuse_special

__all__ = ["SET_SUFFIX", "is_file_set", "list_parquet"]

#: The format of the files of a set.
SET_SUFFIX = ".parquet"

#: Names that begin so are markers and leftovers of other programs: `_SUCCESS`, `_metadata`, `.part-0.crc`.
SKIPPED = (".", "_")


def is_file_set(path: Path) -> bool:
    """Return whether a path stands for several files: a directory, or a pattern with * that is no file's own name.

    >>> is_file_set(Path("rows/part-*.parquet")), is_file_set(Path("rows.parquet"))
    (True, False)
    """
    return path.is_dir() or ("*" in str(path) and not path.exists())


def list_parquet(path: Path) -> tuple[Path, tuple[Path, ...]]:
    """Return the directory that names count from, and all Parquet files below it or of the pattern, sorted by name.

    Names that begin with `.` or `_` are skipped. Whatever else is no Parquet file is refused by its name.
    """
    root = path if path.is_dir() else _fixed_part(path)
    # A pattern with ** finds a file both by itself and in each directory above it.
    found = list(set(_below(path, ()) if path.is_dir() else _matched(path)))
    if not found:
        what = "is a directory without .parquet files" if path.is_dir() else "matches no .parquet file"
        raise InputError(f"{path} {what}; pass one file, or a directory of .parquet files")
    found.sort(key=lambda file: file.relative_to(root).parts)
    _refuse_twice(found)
    return root, tuple(found)


def _below(directory: Path, above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    """Yield the Parquet files below a directory; links are followed, but not round in circles."""
    state = directory.stat()
    here = (state.st_dev, state.st_ino)
    if here in above:
        raise InputError(f"{directory} is a link to a directory that it lies in; remove the link")
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        raise InputError(f"{directory} cannot be read ({error.strerror}); allow it, or leave it out") from error
    for name in names:
        if not name.startswith(SKIPPED):
            yield from _one(directory / name, (*above, here))


def _one(path: Path, above: tuple[tuple[int, int], ...] = ()) -> Iterator[Path]:
    if path.is_dir():  # also one named x.parquet, as Spark writes them
        yield from _below(path, above)
        return
    if not path.exists():
        raise InputError(f"{path} is a link to nothing; remove it")
    refuse_special(path)
    if path.suffix.lower() != SET_SUFFIX:
        raise InputError(
            f"{path} is no .parquet file, but a directory of rows holds nothing else; move it away, or let its name "
            f"begin with _ so that it is skipped"
        )
    if path.stat().st_size == 0:
        raise FileFormatError(f"{path} is empty (0 bytes); write it again")
    yield path


def _matched(pattern: Path) -> Iterator[Path]:
    # Only * is special: brackets and question marks stand for themselves, as they do in every other path.
    escaped = glob.escape(str(pattern)).replace("[*]", "*")
    root = _fixed_part(pattern)
    for text in glob.iglob(escaped, recursive=True):
        path = Path(text)
        if not any(part.startswith(SKIPPED) for part in path.relative_to(root).parts):
            yield from _one(path)


def _fixed_part(pattern: Path) -> Path:
    """Return the directory in front of the first *."""
    parts = pattern.parts
    first = next(place for place, part in enumerate(parts) if "*" in part)
    return Path(*parts[:first])


def _refuse_twice(files: list[Path]) -> None:
    """Raise if two names lead to one file: its rows would count twice."""
    met: dict[tuple[int, int], Path] = {}
    for file in files:
        state = file.stat()
        other = met.setdefault((state.st_dev, state.st_ino), file)
        if other is not file:
            raise InputError(f"{other} and {file} are one file, whose rows would count twice; remove one of the two")
