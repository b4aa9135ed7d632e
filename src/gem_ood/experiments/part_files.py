"""Part files: what has come of a download so far, what is known of the whole, and a lock that keeps others off.

The bytes are in `.NAME.part` beside the file that they will become. `.NAME.part.json` says which file of which server
they are of: without it they are worth nothing, since bytes of two files must never be joined.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from gem_ood.storage import atomic_path

__all__ = ["PartFile", "Version"]

#: Seconds between two looks at a lock that another process holds.
LOOK_SECONDS = 0.1

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


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


class PartFile:
    """The unfinished download of one file.

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
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    @property
    def version(self) -> Version | None:
        """What the bytes are of, None if there are none or nobody can tell."""
        if not self.path.is_file():
            return None
        try:
            version = Version(**json.loads(self._record.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
        is_sound = isinstance(version.length, int | None) and all(
            isinstance(value, str | None) for value in (version.etag, version.last_modified)
        )
        is_ours = (version.url, version.checksum) == (self._url, self._checksum)
        return version if is_sound and is_ours else None

    def begin(self, version: Version) -> None:
        """Throw away what is there and take down what the bytes to come are of."""
        # In this order: a kill in between leaves a record without bytes, never bytes under a wrong record.
        self.path.unlink(missing_ok=True)
        with atomic_path(self._record) as temporary:
            temporary.write_text(json.dumps(asdict(version)), encoding="utf-8")
        self.path.touch()

    def discard(self) -> None:
        """Leave nothing behind."""
        self.path.unlink(missing_ok=True)
        self._record.unlink(missing_ok=True)

    @contextmanager
    def locked(self, on_wait: Callable[[], None]) -> Iterator[None]:
        """Keep other processes and threads off; wait, calling `on_wait` now and then, while one of them is at it.

        The system lifts the lock when its holder dies, so none is ever stale.
        """
        descriptor = self._locked_descriptor(on_wait)
        try:
            yield
        finally:
            if not self.size:
                self.discard()
            with suppress(OSError):  # an open file cannot be removed everywhere; an empty lock file does no harm
                self._lock.unlink()
            os.close(descriptor)

    def _locked_descriptor(self, on_wait: Callable[[], None]) -> int:
        while True:
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                if self._is_held(descriptor):
                    return descriptor
                on_wait()
                time.sleep(LOOK_SECONDS)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _is_held(self, descriptor: int) -> bool:
        try:
            _lock(descriptor)
        except (BlockingIOError, PermissionError):
            return False
        except OSError:
            return True  # a file system without locks: the checksum alone must do
        # Its last holder may have removed the file between our opening and our locking it: then it locks nothing.
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(descriptor), self._lock.stat())
        return False
