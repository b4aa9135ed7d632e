"""Trees of files: a folder, a tar or a zip archive, listed and read alike. Nothing is ever written to disk."""

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Protocol, cast

from gem_ood.errors import FileFormatError, InputError
from gem_ood.numpy_format import ZIP_ERRORS, one_line
from gem_ood.storage import refuse_special

__all__ = [
    "ARCHIVE_SUFFIXES",
    "PICTURE_SUFFIXES",
    "FolderTree",
    "TarTree",
    "Tree",
    "ZipTree",
    "open_archive",
    "read_file",
    "shown",
]

ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")

#: Files that are taken for pictures, as torchvision's ImageFolder does.
PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

#: Files whose absence from an archive, where a link stands in their place, would go unnoticed.
_DATA_SUFFIXES = (*PICTURE_SUFFIXES, ".bin", ".mat", ".npz")

#: No data set has more files, nor one a larger single file; beyond it a header lies or the archive is a bomb.
MOST_FILES = 5_000_000
LARGEST_FILE = 1 << 29

#: Folders deeper than this are no data set.
MOST_LEVELS = 32

#: What reading a damaged archive may raise, whatever compresses it; RecursionError by headers of headers.
_ARCHIVE_ERRORS = (
    *(tarfile.TarError, lzma.LZMAError, EOFError, OSError, ValueError, OverflowError, RecursionError),
    *(*ZIP_ERRORS, struct.error, IndexError, KeyError),
)

#: Files by their names in the tree, and what reads the bytes of each.
Entries = Generator[tuple[str, Callable[[], bytes]], None, None]


class Tree(Protocol):
    """Files below a folder or in an archive; their names are relative, with slashes."""

    @property
    def path(self) -> Path:
        """The folder or the archive."""

    def title(self, name: str) -> str:
        """Return what errors call a file."""

    def names(self) -> list[str]:
        """Return the names of all files, without those that begin with a dot."""

    def read(self, names: Collection[str], *, largest: int = LARGEST_FILE) -> Entries:
        """Yield these files in the order of the tree; each is read when its function is called, or before."""


@dataclass(frozen=True)
class FolderTree:
    """The files of a folder, and of those below it unless `is_deep` is False. Links are followed."""

    path: Path
    is_deep: bool = True

    def title(self, name: str) -> str:
        """Return the path of a file."""
        return shown(self.path / name)

    def names(self) -> list[str]:
        """Return the names of all files; a link to a folder that it lies in is not followed again."""
        names: list[str] = []
        waiting: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", (_identity(self.path),))]
        while waiting:
            inside, above = waiting.pop()
            folder = self.path / inside
            with naming_unreadable(folder), os.scandir(folder) as found:
                for item in found:
                    name = f"{inside}{item.name}"
                    if _is_hidden(item.name):
                        continue
                    if not item.is_dir():
                        names.append(name)
                    elif self.is_deep and len(above) < MOST_LEVELS and (identity := _identity(item)) not in above:
                        waiting.append((f"{name}/", (*above, identity)))
            if len(names) > MOST_FILES:
                raise InputError(f"{shown(self.path)} holds more than {MOST_FILES:,} files; pass the data set's folder")
        return names

    def read(self, names: Collection[str], *, largest: int = LARGEST_FILE) -> Entries:
        """Yield these files in the order of `names`; each is read when its function is called."""
        for name in names:
            yield name, lambda path=self.path / name: read_file(path, largest=largest)  # type: ignore[misc]


@dataclass(frozen=True)
class TarTree:
    """The members of a tar archive, compressed or not. Links are never followed."""

    path: Path

    def title(self, name: str) -> str:
        """Return the archive and the member."""
        return f"{shown(self.path)}: {shown(name)}"

    def names(self) -> list[str]:
        """Return the names of all members; the whole archive is read, so that a truncated one is refused here."""
        return _checked_names(self, (name for name, _ in self._members()))

    def read(self, names: Collection[str], *, largest: int = LARGEST_FILE) -> Entries:
        """Yield these members in the order of the archive."""
        wanted = set(names)
        for name, read in self._members():
            if name in wanted:
                data = read(largest)
                yield name, lambda data=data: data  # type: ignore[misc]
                wanted.discard(name)
                if not wanted:
                    return

    def _members(self) -> Iterator[tuple[str, Callable[[int], bytes]]]:
        with naming_damage(self.path), ExitStack() as stack:
            stream = _Careful(_unpacked(stack.enter_context(self.path.open("rb")), stack), shown(self.path))
            archive = stack.enter_context(tarfile.open(fileobj=stream, mode="r:"))
            for member in archive:
                if member.size < 0:
                    raise FileFormatError(f"{self.title(member.name)} has a negative size; fetch the archive again")
                if member.isdir():
                    continue
                is_plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE) and not member.sparse
                name = _member_name(self, member.name, is_plain=is_plain)
                if name is not None:
                    yield name, lambda largest, member=member: self._read(archive, member, largest)  # type: ignore[misc]
            # tarfile takes a damaged header, or a cut between two members, for the end: only zeros are the end.
            if stream.last_block != bytes(tarfile.BLOCKSIZE):
                raise FileFormatError(
                    f"{shown(self.path)} is truncated or damaged: it ends after {len(archive.getmembers())} members "
                    f"without an end mark; fetch it again"
                )
            while stream.read(1 << 20):  # to the end, where the checksum of the compression is
                pass

    def _read(self, archive: tarfile.TarFile, member: tarfile.TarInfo, largest: int) -> bytes:
        _refuse_large(self.title(member.name), member.size, largest)
        content = archive.extractfile(member)
        if content is None:
            raise FileFormatError(f"{self.title(member.name)} is no file; fetch the archive again")
        with content:
            return content.read()


@dataclass(frozen=True)
class ZipTree:
    """The members of a zip archive. Links are never followed."""

    path: Path

    def title(self, name: str) -> str:
        """Return the archive and the member."""
        return f"{shown(self.path)}: {shown(name)}"

    def names(self) -> list[str]:
        """Return the names of all members."""
        with naming_damage(self.path), zipfile.ZipFile(self.path) as archive:
            return _checked_names(self, (name for name, _ in self._members(archive)))

    def read(self, names: Collection[str], *, largest: int = LARGEST_FILE) -> Entries:
        """Yield these members in the order of the archive."""
        wanted = set(names)
        with naming_damage(self.path), zipfile.ZipFile(self.path) as archive:
            for name, member in self._members(archive):
                if name in wanted:
                    _refuse_large(self.title(name), member.file_size, largest)
                    with archive.open(member) as stream:  # which may inflate to more than its directory says
                        data = stream.read(member.file_size + 1)
                    if len(data) != member.file_size:
                        raise FileFormatError(
                            f"{self.title(name)} has other bytes than the {member.file_size:,} that the archive says; "
                            f"fetch it again"
                        )
                    yield name, lambda data=data: data  # type: ignore[misc]

    def _members(self, archive: zipfile.ZipFile) -> Iterator[tuple[str, zipfile.ZipInfo]]:
        for member in archive.infolist():
            if not member.is_dir():
                is_link = stat.S_ISLNK(member.external_attr >> 16)
                name = _member_name(self, member.filename, is_plain=not is_link)
                if name is not None:
                    yield name, member


def open_archive(path: Path) -> Tree:
    """Return the tree of a tar or zip archive, told by its first bytes and not by its name."""
    refuse_special(path)
    with naming_unreadable(path), path.open("rb") as stream:
        return ZipTree(path) if stream.read(2) == b"PK" else TarTree(path)


def read_file(path: Path, *, largest: int = LARGEST_FILE) -> bytes:
    """Return the bytes of a regular file of at most this size."""
    with naming_unreadable(path):
        size = path.stat().st_size
        refuse_special(path)
        _refuse_large(shown(path), size, largest)
        return path.read_bytes()


@contextmanager
def naming_unreadable(path: Path) -> Iterator[None]:
    """Say of a file or folder that cannot be read that it is so, and name it."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{shown(path)} cannot be read ({error.strerror or one_line(error)}); pass files that are there and that "
            f"you may read"
        ) from error


@contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Say of an archive that cannot be read that it is damaged, and name it."""
    try:
        yield
    except InputError:  # a ValueError, but one that names the file already
        raise
    except _ARCHIVE_ERRORS as error:
        raise FileFormatError(
            f"{shown(path)} is no tar or zip archive, or is truncated or damaged ({one_line(error)}); fetch it again"
        ) from error


def shown(name: str | Path) -> str:
    """Return a name that can be printed anywhere, though the disk may hold bytes that are no text."""
    return str(name).encode("utf-8", "backslashreplace").decode("utf-8")


class _Careful(io.RawIOBase):
    """A stream that gives no more at once than a data set's largest file: a tar's headers may lie about their size."""

    def __init__(self, stream: IO[bytes], title: str) -> None:
        self._stream, self._title = stream, title
        self.last_block = b""

    def read(self, size: int | None = -1, /) -> bytes:
        size = -1 if size is None else size
        if not 0 <= size <= LARGEST_FILE:
            raise FileFormatError(
                f"{self._title} has a header that asks for {size:,} bytes, more than any data set's file has "
                f"({LARGEST_FILE:,}); it is damaged: fetch it again"
            )
        self.last_block = self._stream.read(size)
        return self.last_block

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def _unpacked(stream: IO[bytes], stack: ExitStack) -> IO[bytes]:
    start = stream.read(6)
    stream.seek(0)
    if start.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=stream)))
    if start.startswith(b"BZh"):
        return stack.enter_context(bz2.BZ2File(stream))
    if start.startswith(b"\xfd7zXZ\0"):
        return stack.enter_context(lzma.LZMAFile(stream))
    return stream


def _member_name(tree: Tree, name: str, *, is_plain: bool) -> str | None:
    """Return a member's name without "./", None for one that does not count; raise for names and links that mislead."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts:
        raise FileFormatError(f"{tree.title(name)} has a path that leads out of the archive; fetch it from its source")
    if any(map(_is_hidden, pure.parts)):
        return None
    if is_plain:
        return str(pure)
    if pure.suffix.lower() in _DATA_SUFFIXES:
        raise FileFormatError(
            f"{tree.title(name)} is a link or a special file, which is never followed; pack the file itself"
        )
    return None


def _checked_names(tree: Tree, found: Iterator[str]) -> list[str]:
    names: dict[str, None] = {}
    for name in found:
        if name in names:
            raise FileFormatError(f"{tree.title(name)} is in the archive twice; pack each file once")
        if len(names) >= MOST_FILES:
            raise FileFormatError(f"{shown(tree.path)} holds more than {MOST_FILES:,} files; pass a data set's archive")
        names[name] = None
    return list(names)


def _is_hidden(name: str) -> bool:
    """Say whether a name is one that file managers leave behind, such as ._a.jpg beside a.jpg."""
    return name.startswith(".") or name == "__MACOSX"


def _identity(found: Path | os.DirEntry[str]) -> tuple[int, int]:
    with naming_unreadable(Path(found)):
        known = found.stat() if isinstance(found, Path) else os.stat(found.path)
    return known.st_dev, known.st_ino


def _refuse_large(title: str, size: int, largest: int) -> None:
    if size > largest:
        raise FileFormatError(
            f"{title} has {size:,} bytes, more than a file of its kind may have ({largest:,}); fetch it again"
        )
