"""Part files: what has come of a download so far, what is known of the whole, and a lock that keeps others off.

The bytes are in `.NAME.part` beside the file that they will become. `.NAME.part.json` says which file of which server
they are of: without it they are worth nothing, since bytes of two files must never be joined.
"""

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from gem_ood.locking import locked
from gem_ood.storage import atomic_path

__all__ = ["PartFile", "Version", "header_text"]

#: Text that a request may carry in a header: printable, on one line, and of ASCII.
_HEADER_TEXT = re.compile(r"[!-~]([ -~]*[!-~])?")


@dataclass(frozen=True)
class Version:
    """What a server says of a file, by which two of its answers are known to be about the same bytes.

    Attributes:
        url: Where it was asked for.
        checksum: The checksum it is to have.
        length: Its number of bytes, None if not told.
        etag: The server's name of this version, None if not told.
        last_modified: When the server's file last changed, in the server's words; None if not told.

    >>> old = Version("http://localhost/a", "md5:0", length=5, etag='"one"')
    >>> old.agrees_with(Version("http://localhost/a", "md5:0", length=5)), old.validator
    (True, '"one"')
    """

    url: str
    checksum: str
    length: int | None = None
    etag: str | None = None
    last_modified: str | None = None

    @property
    def validator(self) -> str | None:
        """What If-Range may carry: a weak ETag may not, since it also names files that differ in some bytes."""
        is_strong = self.etag is not None and not self.etag.startswith("W/")
        return self.etag if is_strong else self.last_modified

    def agrees_with(self, other: "Version") -> bool:
        """Return whether nothing that both of them tell differs."""
        theirs = asdict(other)
        return all(
            value is None or theirs[name] is None or value == theirs[name] for name, value in asdict(self).items()
        )


def header_text(value: str | None) -> str | None:
    r"""Return what a server told, if it can be sent back in a request, otherwise None.

    >>> header_text('"one"'), header_text('"one"\r\nHost: two'), header_text(None)
    ('"one"', None, None)
    """
    return value if value is not None and _HEADER_TEXT.fullmatch(value) else None


class PartFile:
    """The unfinished download of one file. Links in the place of its files are thrown away, never followed.

    Args:
        target: The file that it becomes.
        url: Where it comes from.
        checksum: The checksum it is to have; bytes that were meant for another url or checksum are not gone on with.
    """

    def __init__(self, target: Path, *, url: str, checksum: str) -> None:
        self.path = target.with_name(f".{target.name}.part")
        self._record = target.with_name(f".{target.name}.part.json")
        self._lock = target.with_name(f".{target.name}.lock")
        self._url, self._checksum = url, checksum

    @property
    def size(self) -> int:
        """The number of bytes that have come."""
        return self.path.lstat().st_size if _is_own_file(self.path) else 0

    @property
    def version(self) -> Version | None:
        """What the bytes are of, None if there are none or nobody can tell."""
        if not _is_own_file(self.path) or not _is_own_file(self._record):
            return None
        try:
            version = Version(**json.loads(self._record.read_bytes()))
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        is_length = version.length is None or (type(version.length) is int and version.length >= 0)
        # What a request cannot carry would make each one fail.
        is_sound = all(
            told is None or (isinstance(told, str) and header_text(told) is not None)
            for told in (version.etag, version.last_modified)
        )
        is_ours = (version.url, version.checksum) == (self._url, self._checksum)
        return version if is_length and is_sound and is_ours else None

    def begin(self, version: Version) -> None:
        """Throw away what is there and take down what the bytes to come are of."""
        # In this order: a kill in between leaves a record without bytes, never bytes under a wrong record.
        self.discard()
        with atomic_path(self._record) as temporary:
            temporary.write_text(json.dumps(asdict(version)), encoding="utf-8")
        self.path.touch(exist_ok=False)

    def append(self) -> IO[bytes]:
        """Return the file of the bytes, open for more of them."""
        return open(self.path, "ab", opener=_open_itself)

    def discard(self) -> None:
        """Leave nothing behind."""
        self.path.unlink(missing_ok=True)
        self._record.unlink(missing_ok=True)

    @contextmanager
    def locked(self, on_wait: Callable[[], None]) -> Iterator[None]:
        """Keep other processes and threads off; wait, calling `on_wait` now and then, while one of them is at it."""
        with locked(self._lock, on_wait):
            try:
                yield
            finally:
                if not self.size:
                    self.discard()


def _is_own_file(path: Path) -> bool:
    """Return whether there is a plain file, not a link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _open_itself(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
