"""Directories of many files that appear at once: written under another name, in parts, and published by one rename.

`.NAME.partial` beside the directory holds the parts so far and `_plan.json`, which says what is being written. A later
run with the same plan goes on with the parts that are missing; any other begins anew. One run at a time holds the lock
`.NAME.partial.lock`.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from gem_ood._version import __version__
from gem_ood.errors import InputError
from gem_ood.locking import locked_at_once
from gem_ood.storage import atomic_path, naming

__all__ = ["PartDirectory", "part_directory", "refuse_taken_directory", "unfinished"]

#: Readers of directories skip names that begin with an underscore, should one see it.
PLAN = "_plan.json"


@dataclass(frozen=True)
class PartDirectory:
    """A directory that is being written, in parts, by this process or by many.

    Attributes:
        out: What it will be called.
        folder: Where its parts are until then.
        names: All parts, by their paths within the directory, with slashes.
    """

    out: Path
    folder: Path
    names: tuple[str, ...]

    def path_of(self, name: str) -> Path:
        """Return where to write a part, all or nothing: with `write_columns`, or `storage.atomic_path`."""
        return self.folder / name

    def missing(self) -> tuple[str, ...]:
        """Return the parts that are not written yet."""
        return tuple(name for name in self.names if not self.path_of(name).is_file())


@contextmanager
def part_directory(
    out: str | os.PathLike[str], *, names: Sequence[str], plan: Mapping[str, Any]
) -> Iterator[PartDirectory]:
    """Yield the parts of a directory to write, and publish it under its name once the block has written them all.

    If the block fails, what it wrote stays for the next run with the same plan, and the directory does not appear.

    Args:
        out: The directory, which must not be there yet, or be empty.
        names: The parts, by their paths within the directory, with slashes.
        plan: What decides the content, in JSON values: the inputs, the detector, the columns.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     out = Path(place) / "scores"
        ...     with part_directory(out, names=["a.txt", "b.txt"], plan={"input": 1}) as parts:
        ...         for name in parts.missing():
        ...             _ = parts.path_of(name).write_text("done")
        ...         out.exists()
        ...     sorted(path.name for path in out.iterdir())
        False
        ['a.txt', 'b.txt']
    """
    target = _followed(out)
    refuse_taken_directory(target)
    folder = _folder(target)
    with ExitStack() as held:
        with naming(target):
            is_ours = held.enter_context(locked_at_once(folder.with_name(f"{folder.name}.lock")))
        if not is_ours:
            raise InputError(f"another run is writing {target}; wait for it to end, or name another directory")
        refuse_taken_directory(target)  # a run that has just ended may have published it
        with naming(target):
            _prepare(folder, _checked(names), {"library": __version__, "names": [*names], **plan})
        parts = PartDirectory(target, folder, tuple(names))
        yield parts
        missing = parts.missing()
        if missing:
            raise InputError(
                f"{len(missing)} of {len(names)} files for {target} are not there, the first is {missing[0]}; run the "
                f"same again to write them"
            )
        with naming(target):
            _publish(parts)


def refuse_taken_directory(out: str | os.PathLike[str]) -> None:
    """Raise now rather than after long work if no directory of parts can take this name."""
    target = _followed(out)
    if target.is_dir() and any(target.iterdir()):
        raise InputError(f"{target} is a directory that is not empty; remove it, or name another")
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file, where a directory is to be written; remove it, or name another")
    if target.is_dir() and os.path.ismount(target):
        raise InputError(f"{target} is where a disk is mounted, which nothing can replace; name a directory in it")
    if not target.parent.is_dir():
        raise InputError(f"the directory {target.parent} does not exist; create it first")


def unfinished(out: str | os.PathLike[str]) -> Path | None:
    """Return where the parts of a directory are that is not published yet, or None if there are none."""
    folder = _folder(_followed(out))
    return folder if folder.is_dir() else None


def _folder(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial")


def _followed(out: str | os.PathLike[str]) -> Path:
    return Path(os.path.realpath(out))


def _checked(names: Sequence[str]) -> Sequence[str]:
    for name in names:
        parts = PurePosixPath(name).parts
        if not parts or PurePosixPath(name).is_absolute() or any(part.startswith((".", "_")) for part in parts):
            raise InputError(f"a part is named {name!r}; name it by a path within the directory, without . or _ first")
    if len(set(names)) < len(names):
        raise InputError("two parts have one name; give each its own")
    return names


def _prepare(folder: Path, names: Sequence[str], plan: Mapping[str, Any]) -> None:
    """Leave a folder that holds this plan and nothing but parts of it."""
    text = json.dumps(plan, indent=1, sort_keys=True)
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InputError(f"{folder} is in the way; remove it")
    if folder.is_dir() and _plan_text(folder) != text:
        if _plan_text(folder) is None and any(folder.iterdir()):
            raise InputError(f"{folder} holds files of others, where parts are to be written; remove it")
        shutil.rmtree(folder)
    if not folder.is_dir():
        folder.mkdir()
        with atomic_path(folder / PLAN) as temporary:
            temporary.write_text(text, encoding="utf-8")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)


def _plan_text(folder: Path) -> str | None:
    try:
        return (folder / PLAN).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _publish(parts: PartDirectory) -> None:
    kept = {parts.path_of(name) for name in (*parts.names, PLAN)}
    for path in parts.folder.rglob("*"):  # what a writer that was killed has left
        if path not in kept and not path.is_dir():
            path.unlink()
    if parts.out.is_dir():
        parts.out.rmdir()
    os.rename(parts.folder, parts.out)
    (parts.out / PLAN).unlink()
