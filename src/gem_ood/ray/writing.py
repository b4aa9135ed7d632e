"""A dataset written to a directory of Parquet files that appears once it is complete."""

import os
import secrets
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from platform import node
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import ray

from gem_ood.errors import InputError
from gem_ood.files.part_directories import held_folder, publish, refuse_taken_directory, remove_partial
from gem_ood.ray.failures import clear_errors
from gem_ood.ray.opening import open_dataset
from gem_ood.ray.reducing import OnRows, persist
from gem_ood.storage import as_path, atomic_path, naming

if TYPE_CHECKING:
    from ray.data import Dataset

__all__ = ["write"]


class _File(NamedTuple):
    """A file that a task has written."""

    name: str
    n_rows: int


def write(dataset: "Dataset", path: str | os.PathLike[str], *, on_rows: OnRows | None = None) -> int:
    """Write a dataset, such as the verdicts of `score`, to a directory of Parquet files, and return its number of rows.

    The directory appears under its name when all rows are in it: until then the files are in `.NAME.partial` beside
    it. A run that fails or is killed leaves no directory of that name; the next one starts clean. Blocks of a dataset
    come in no particular order, and so do the files: tell rows by a column, not by their place.

    Args:
        dataset: Any `ray.data.Dataset`; it is computed now, and no row comes here.
        path: The directory, which must not be there yet, or be empty. All machines of the cluster must see it under
            this path. For an object store, which cannot rename, use `dataset.write_parquet` instead.
        on_rows: Called now and then with the number of rows that are written.

    Raises:
        InputError: The directory is taken or cannot be written, another run is writing it, or a row cannot be scored.
        ClusterError: Workers died or ran out of memory more often than they were started again.

    Example:
        >>> import ray
        >>> from tempfile import TemporaryDirectory
        >>> rows = [{"id": number, "score": -1.5} for number in range(70)]
        >>> dataset = ray.data.from_items(rows, override_num_blocks=2)
        >>> with TemporaryDirectory() as folder:
        ...     n_rows = write(dataset, f"{folder}/scores")
        ...     n_rows, ray.data.read_parquet(f"{folder}/scores").count()
        (70, 70)
    """
    opened, target = open_dataset(dataset), _checked(path)
    with _own_folder(target) as folder:
        files: list[_File] = []
        n_rows = 0
        with clear_errors(), closing(_written(opened, folder)) as written:
            for file in written:
                files.append(file)
                n_rows += file.n_rows
                if on_rows is not None:
                    on_rows(n_rows)
        with naming(target):
            publish(_gathered(folder, files), target)
    return n_rows


def _checked(path: str | os.PathLike[str]) -> Path:
    """Return the directory to write; raise now rather than after long work if it cannot be."""
    if "://" in str(path):
        raise InputError(
            f"path is {str(path)!r}, in a store without directories to rename; pass a path that all machines see, or "
            f"use dataset.write_parquet, which may leave some of the files if it fails"
        )
    target = Path(os.path.realpath(as_path(path, "path")))
    refuse_taken_directory(target)
    return target


@contextmanager
def _own_folder(target: Path) -> Iterator[Path]:
    """Yield a folder for what will take the name of the target; it vanishes if the block fails.

    It is this run's own: a worker of a run that was killed, should it live on for a moment, finds none to write to.
    """
    with held_folder(target, {"what": "dataset", "run": secrets.token_hex(16)}) as folder:
        try:
            yield folder
        except BaseException:
            with suppress(OSError):
                remove_partial(folder)
            raise


def _written(dataset: "Dataset", folder: Path) -> Generator[_File, None, None]:
    """Yield the files as they are written, in whatever order the blocks come."""
    blocks = dataset.map_batches(_WriteBlock(str(folder)), batch_format="pyarrow", batch_size=None)
    for bundle in blocks.iter_internal_ref_bundles():
        for reference in bundle.block_refs:
            for file in ray.get(reference).to_pylist():
                yield _File(**file)


def _gathered(folder: Path, files: list[_File]) -> Path:
    """Return a folder of the files of the tasks that succeeded, numbered in their order; empty ones are left out.

    No task writes there, so that one which is tried twice adds nothing.
    """
    missing = [file for file in files if not (folder / file.name).is_file()]
    if missing:
        raise InputError(_not_shared(folder, f"{len(missing)} of {len(files)} files that workers wrote are not there"))
    kept = [file for file in files if file.n_rows]
    if not kept:
        raise InputError("the dataset holds no rows; pass one with at least one")
    whole = folder / "whole"
    whole.mkdir()
    for number, file in enumerate(kept):
        (folder / file.name).rename(whole / f"part-{number:06}.parquet")
    return whole


@dataclass(frozen=True)
class _WriteBlock:
    """What a task makes of a block: a file, under a name that no other try of the same task has."""

    folder: str

    def __call__(self, block: pa.Table) -> pa.Table:
        folder = Path(self.folder)
        if not folder.is_dir():
            raise InputError(_not_shared(folder, f"the folder is not there on {node()}"))
        file = _File(f"{secrets.token_hex(16)}.parquet", block.num_rows)
        with naming(folder), atomic_path(folder / file.name) as temporary:
            persist(lambda: pq.write_table(block, temporary), f"a block for {folder}")
        columns: dict[str, Any] = {name: [value] for name, value in file._asdict().items()}
        return pa.table(columns)


def _not_shared(folder: Path, came: str) -> str:
    return (
        f"{came}: {folder}; every machine must see the directory under this path: name one on a shared file system, or "
        f"use dataset.write_parquet with an object store"
    )
