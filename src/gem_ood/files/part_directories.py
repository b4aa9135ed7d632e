"""Directories of many files that appear at once: written under another name, in parts, and published by one rename.

`.NAME.partial` beside the directory holds `_plan.json`, which says what is being written, and the parts so far, in a
folder named by the digest of that plan; the name of each part has the digest of its own input. A later run with the
same plan goes on with the parts that are missing, or whose input has changed. Any other removes them and has a folder
of its own, so that a worker of the dead run, should it live on for a moment, finds none to write to. In the end the
parts move into one folder, to which no worker has written, and that takes the name. One run at a time holds the lock
`.NAME.partial.lock`.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from gem_ood._version import __version__
from gem_ood.errors import InputError
from gem_ood.locking import locked_at_once
from gem_ood.storage import atomic_path, naming

__all__ = ["PartDirectory", "held_folder", "part_directory", "publish", "refuse_taken_directory", "remove_partial"]

#: Says that a folder is ours. Readers of directories skip names that begin with an underscore, should one see it.
PLAN = "_plan.json"

#: How a plan begins that was being written when its run was killed.
HALF_A_PLAN = "._plan."

#: Sixty-four bits of a digest: few enough for short paths, and no two share them by chance.
DIGITS = 16


@dataclass(frozen=True)
class PartDirectory:
    """A directory that is being written, in parts, by this process or by many.

    Attributes:
        out: What it will be called.
        folder: Where its parts are until then.
        digests: All parts, by their paths within the directory, with slashes; each with the digest of its input.
    """

    out: Path
    folder: Path
    digests: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """All parts."""
        return tuple(self.digests)

    def path_of(self, name: str) -> Path:
        """Return where to write a part, all or nothing: with `write_columns`, or `storage.atomic_path`."""
        path = self.folder / name
        return path.with_name(f"{self.digests[name]}-{path.name}")

    def missing(self) -> tuple[str, ...]:
        """Return the parts that are not written yet."""
        return tuple(name for name in self.names if not self.path_of(name).is_file())

    @property
    def _whole(self) -> Path:
        """Where the parts are gathered before they are published."""
        return self.folder / f"_{_digest([*self.digests.items()])}"

    def _gather(self) -> Path:
        """Move all parts to where they are published from, under their names."""
        whole = self._whole
        for name in self.names:
            path = whole / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self.path_of(name).rename(path)
        return whole

    def _scatter(self) -> None:
        """Move back what a run that was killed had gathered."""
        whole = self._whole
        for name in self.names if whole.is_dir() else ():
            if (whole / name).is_file():
                (whole / name).rename(self.path_of(name))


@contextmanager
def part_directory(
    out: str | os.PathLike[str], *, parts: Mapping[str, Any], plan: Mapping[str, Any]
) -> Iterator[PartDirectory]:
    """Yield the parts of a directory to write, and publish it under its name once the block has written them all.

    If the block fails, what it wrote stays for the next run with the same plan, a note on the error says where, and the
    directory does not appear.

    Args:
        out: The directory, which must not be there yet, or be empty.
        parts: The parts, by their paths within the directory, with slashes; each with what decides its content alone,
            in JSON values, such as the state of its input.
        plan: What decides the content of all, in JSON values: the detector, the columns.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     out = Path(place) / "scores"
        ...     with part_directory(out, parts={"a.txt": 1, "b.txt": 2}, plan={"detector": 3}) as parts:
        ...         for name in parts.missing():
        ...             _ = parts.path_of(name).write_text("done")
        ...         out.exists()
        ...     sorted(path.name for path in out.iterdir())
        False
        ['a.txt', 'b.txt']
    """
    _refuse_bad(parts)
    target = _followed(out)
    with held_folder(target, {"library": __version__, **plan}) as folder:
        opened = PartDirectory(target, folder, {name: _digest(own) for name, own in parts.items()})
        with naming(target):
            for place in sorted({opened.path_of(name).parent for name in opened.names}):
                place.mkdir(parents=True, exist_ok=True)
            opened._scatter()
        try:
            yield opened
            _refuse_missing(opened)
        except BaseException as error:
            if len(opened.missing()) < len(parts):
                error.add_note(
                    f"the files that are complete are kept in {folder.parent}; run the same again to go on from there"
                )
            else:
                with suppress(OSError):
                    remove_partial(folder)
            raise
        with naming(target):
            publish(opened._gather(), target)


@contextmanager
def held_folder(target: Path, plan: Mapping[str, Any]) -> Iterator[Path]:
    """Yield a folder for what is to be published under a name, and keep other runs off until the block ends.

    It holds what an earlier run with the same plan left there, and is empty for any other plan.
    """
    refuse_taken_directory(target)
    partial = target.with_name(f".{target.name}.partial")
    folder = partial / _digest(plan)
    with ExitStack() as held:
        with naming(target):
            is_ours = held.enter_context(locked_at_once(partial.with_name(f"{partial.name}.lock")))
        if not is_ours:
            raise InputError(f"another run is writing {target}; wait for it to end, or name another directory")
        refuse_taken_directory(target)  # a run that has just ended may have published it
        with naming(target):
            _refuse_foreign(partial)
            partial.mkdir(exist_ok=True)
            with atomic_path(partial / PLAN) as temporary:
                temporary.write_text(_as_json(plan), encoding="utf-8")
            _remove_all(path for path in partial.iterdir() if path not in (folder, partial / PLAN))
            folder.mkdir(exist_ok=True)
        yield folder


def publish(whole: Path, target: Path) -> None:
    """Give what lies in a folder of `held_folder` the name of the target; nothing of what was beside it stays."""
    if target.is_dir():
        target.rmdir()
    os.rename(whole, target)
    with suppress(OSError):  # the work is done, and the next run removes what is left
        remove_partial(whole.parent)


def remove_partial(folder: Path) -> None:
    """Remove a folder of `held_folder`, if it is there, and all that is beside it."""
    partial = folder.parent
    _remove_all(path for path in partial.iterdir() if path.name != PLAN)
    (partial / PLAN).unlink(missing_ok=True)  # last, as without it the rest would be taken for another's
    partial.rmdir()


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


def _followed(out: str | os.PathLike[str]) -> Path:
    return Path(os.path.realpath(out))


def _digest(value: Any) -> str:
    return hashlib.sha256(_as_json(value).encode()).hexdigest()[:DIGITS]


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True)


def _refuse_bad(names: Iterable[str]) -> None:
    for name in names:
        parts = PurePosixPath(name).parts
        if not parts or PurePosixPath(name).is_absolute() or any(part.startswith((".", "_")) for part in parts):
            raise InputError(f"a part is named {name!r}; name it by a path within the directory, without . or _ first")


def _refuse_missing(parts: PartDirectory) -> None:
    missing = parts.missing()
    if missing:
        raise InputError(
            f"{len(missing)} of {len(parts.names)} files for {parts.out} are not there, the first is {missing[0]}; run "
            f"the same again to write them"
        )


def _refuse_foreign(partial: Path) -> None:
    """Raise if what is in the way was left by no run."""
    is_folder = partial.is_dir() and not partial.is_symlink()
    if is_folder and (
        (partial / PLAN).is_file() or all(path.name.startswith(HALF_A_PLAN) for path in partial.iterdir())
    ):
        return
    if partial.exists() or partial.is_symlink():
        raise InputError(f"{partial} is in the way, and no earlier run has left it; remove it")


def _remove_all(paths: Iterator[Path]) -> None:
    for path in list(paths):
        if path.is_dir() and not path.is_symlink():
            # Under a name that no worker of a dead run knows, so that none adds a file while the others are removed.
            hidden = path.with_name(f"removed-{secrets.token_hex(4)}")
            path.rename(hidden)
            shutil.rmtree(hidden)
        else:
            path.unlink()
