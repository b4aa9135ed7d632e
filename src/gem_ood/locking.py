"""Locks on files: one process or thread at a time, and never a stale one, since the system lifts a dead holder's."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["locked", "locked_at_once"]

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


@contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Keep others off; wait, calling `on_wait` now and then, while one of them is at it.

    Args:
        path: The file of the lock, which is made, and removed in the end; what it is a link to is left alone.
        on_wait: Called at each look at a lock that another holds.
    """
    while (descriptor := _taken(path)) is None:
        on_wait()
        time.sleep(LOOK_SECONDS)
    try:
        yield
    finally:
        _release(path, descriptor)


@contextmanager
def locked_at_once(path: Path) -> Iterator[bool]:
    """Keep others off and yield True, or yield False at once if one of them is at it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with locked_at_once(Path(folder, "lock")) as first, locked_at_once(Path(folder, "lock")) as second:
    ...         first, second
    (True, False)
    """
    descriptor = _taken(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            _release(path, descriptor)


def _taken(path: Path) -> int | None:
    """Return the open file of a lock that is ours now, None if another holds it."""
    with suppress(FileNotFoundError):
        if path.is_symlink():
            path.unlink()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        if _is_held(descriptor, path):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _is_held(descriptor: int, path: Path) -> bool:
    try:
        _lock(descriptor)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True  # a file system without locks: nothing can be kept off
    # Its last holder may have removed the file between our opening and our locking it: then it locks nothing.
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    return False


def _release(path: Path, descriptor: int) -> None:
    with suppress(OSError):  # an open file cannot be removed everywhere; an empty lock file does no harm
        path.unlink()
    os.close(descriptor)
