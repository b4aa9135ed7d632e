"""The rows of a cluster as a detector sees them: parts that lie in many places, each worked on where it is.

`BlockRows` are the blocks of a dataset, `FileRows` the files of a set, `HeldRows` what earlier work left in the
memory of the cluster. All give references to parts; `reduce` merges these in a tree.
"""

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa
import ray
from numpy.typing import ArrayLike

from gem_ood.batches import Batches, SpreadBatches, Summary
from gem_ood.errors import InputError
from gem_ood.files import FeatureFile
from gem_ood.ray.columns import Columns
from gem_ood.ray.failures import clear_errors
from gem_ood.ray.pieces import FilePiece, cut, first_rows
from gem_ood.ray.reducing import (
    RETRIES,
    Failed,
    OnRows,
    Part,
    Reduction,
    Tally,
    attempt,
    pack_part,
    persist,
    unpack_parts,
)

__all__ = ["BlockRows", "ClusterRows", "FileRows", "HeldRows", "fetched", "first_block", "tasks_at_once"]

#: So many rows are looked at before the first pass, for their width and for labels in an order that they contradict.
HEAD_ROWS = 1000

#: So many tasks per CPU are handed out at a time, so that none waits for the driver.
TASKS_PER_CPU = 2


class ClusterRows(SpreadBatches):
    """Rows on a cluster: what becomes of each part stays there."""

    on_rows: OnRows | None

    @abstractmethod
    def parts(self, work: Callable[[Batches], Any], tally: Tally) -> Generator[Any, None, None]:
        """Yield a reference to what work makes of each part, as it is handed out; the tally hears of its rows."""

    def reduce(self, work: Callable[[Batches], Summary], merge: Callable[[Summary, Summary], Summary]) -> Summary:
        """Return what work makes of all parts, merged in a tree of tasks."""
        reduction = Reduction(merge)
        with self._pass(work) as (parts, tally):
            for part in parts:
                reduction.add(part)
            tally.settle(0)
            result = reduction.result()
        self._refuse_other_rows(tally.n_rows)
        return result  # type: ignore[no-any-return]

    def _refuse_other_rows(self, n_rows: int) -> None:
        """Raise where this pass met another number of rows than the one before: what they found does not fit."""
        before = self.__dict__.setdefault("_n_rows", n_rows)
        if before != n_rows:
            raise InputError(
                f"the dataset held {before:,} rows in one pass and {n_rows:,} in the next; materialize() it, or give "
                f"its random steps a seed"
            )

    def held(self, work: Callable[[Batches], Any]) -> "HeldRows":
        """Return what work makes of each part, kept in the memory of the cluster."""
        with self._pass(work) as (parts, tally):
            references = tuple(parts)
            tally.settle(0)
        return HeldRows(references, tally.n_rows)

    @contextmanager
    def _pass(self, work: Callable[[Batches], Any]) -> Iterator[tuple[Iterator[Any], Tally]]:
        """Yield the parts and the count of their rows; whatever stops the pass, no task of it goes on for long."""
        tally = Tally(self.on_rows)
        try:
            with clear_errors(), closing(self.parts(work, tally)) as parts:
                yield parts, tally
        except BaseException:
            tally.cancel()
            raise


@dataclass(frozen=True)
class BlockRows(ClusterRows):
    """The rows of a `ray.data.Dataset`: each block is worked on by the task that reads or computes it.

    Attributes:
        dataset: The dataset; every pass runs it anew, unless it is materialized.
        columns: Those that hold features and labels.
        rows_per_part: Rows that are worked on together; None for the blocks as they come.
        on_rows: Called with the number of rows that a pass has done.
        first: The first rows, if they are computed already.
    """

    dataset: Any
    columns: Columns
    rows_per_part: int | None = None
    on_rows: OnRows | None = None
    first: pa.Table | None = None

    @property
    def feature_names(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """The columns that make up the features; None where one column holds them."""
        return None if len(self.columns.features) == 1 else self.columns.features

    def head(self) -> list[tuple[ArrayLike, ArrayLike | None]]:
        """Return the first rows, which are computed once."""
        return self._head

    @cached_property
    def _head(self) -> list[tuple[ArrayLike, ArrayLike | None]]:
        block = first_block(self._read) if self.first is None else self.first.select(self.columns.names)
        return list(self.columns.located(block, self.columns.batches))

    def parts(self, work: Callable[[Batches], Any], tally: Tally) -> Generator[Any, None, None]:
        """Yield a reference to each block of parts."""
        blocks = self._read.map_batches(
            _OnBlock(ray.put(work), self.columns), batch_format="pyarrow", batch_size=self.rows_per_part
        )
        for bundle in blocks.iter_internal_ref_bundles():
            for block in bundle.block_refs:
                tally.add(_count.remote(block))
                tally.settle()
                yield block

    @property
    def _read(self) -> Any:
        return self.dataset.select_columns(self.columns.names)


@dataclass(frozen=True)
class _OnBlock:
    """What a task makes of a block."""

    work: Any
    columns: Columns

    def __call__(self, block: pa.Table) -> pa.Table:
        if block.num_rows == 0:
            return pack_part(Part(0, None))
        work = fetched(self.work)
        summary = persist(
            lambda: self.columns.located(block, lambda rows: work(self.columns.batches(rows))),
            self.columns.place(block),
        )
        return pack_part(Part(block.num_rows, summary))


@dataclass(frozen=True)
class FileRows(ClusterRows):
    """The rows of a file or a set of files that every machine can read, a run of row groups to a task.

    Attributes:
        file: What `gem_ood.files.open_features` returns.
        rows_per_part: Rows that a task takes; by default, some 256 MB of them.
        on_rows: Called with the number of rows that a pass has done.
    """

    file: FeatureFile
    rows_per_part: int | None = None
    on_rows: OnRows | None = None

    @property
    def feature_names(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """The columns that make up the features; None where one column holds them."""
        return self.file.feature_names

    def head(self) -> list[tuple[ArrayLike, ArrayLike | None]]:
        """Return the first rows."""
        return [first_rows(self.file, HEAD_ROWS)]

    def parts(self, work: Callable[[Batches], Any], tally: Tally) -> Generator[Any, None, None]:
        """Return references to the parts, which are handed out a few at a time."""
        return _handed_out(_on_piece, work, cut(self.file, rows_per_part=self.rows_per_part), tally)


@dataclass(frozen=True)
class HeldRows(ClusterRows):
    """Arrays of rows that earlier work left in the memory of the cluster, one to a part."""

    references: Sequence[Any]
    n_rows: int
    on_rows: OnRows | None = None

    def head(self) -> list[tuple[ArrayLike, ArrayLike | None]]:
        """Return the rows of the first part that has some."""
        return next([(rows, None)] for rows in self.arrays() if len(rows))

    def parts(self, work: Callable[[Batches], Any], tally: Tally) -> Generator[Any, None, None]:
        """Return references to the parts, which are handed out a few at a time."""
        return _handed_out(_on_held, work, self.references, tally)

    def arrays(self) -> Iterator[Any]:
        """Yield the arrays themselves: all rows come here."""
        for held in self.references:
            with clear_errors():
                block = ray.get(held)
            for part in unpack_parts(block):
                yield part.summary


def first_block(dataset: Any) -> pa.Table:
    """Return the first rows of a dataset; raise where there are none."""
    with clear_errors():
        batches = dataset.limit(HEAD_ROWS).iter_batches(batch_size=HEAD_ROWS, batch_format="pyarrow")
        block = next(iter(batches), None)
    if block is None or block.num_rows == 0:
        raise InputError("the dataset holds no rows; pass one with at least one")
    return block


def _handed_out(
    task: Any, work: Callable[[Batches], Any], items: Iterable[Any], tally: Tally
) -> Generator[Any, None, None]:
    """Yield a reference to what a task makes of each item; no more of them wait than keep all workers busy."""
    reference = ray.put(work)
    for item in items:
        tally.settle(tasks_at_once() - 1)
        part, note = task.remote(reference, item)
        tally.add(note)
        yield part


def tasks_at_once() -> int:
    """Return how many tasks are handed out at a time."""
    return max(1, int(TASKS_PER_CPU * ray.cluster_resources().get("CPU", 1.0)))  # type: ignore[no-untyped-call]


@lru_cache(maxsize=2)  # the work, and the detector that it may ask for
def fetched(reference: Any) -> Any:
    """Return what a reference stands for; a worker that asks for the same again has it at hand."""
    return ray.get(reference)


@ray.remote(num_returns=2, max_retries=RETRIES)
def _on_piece(work: Callable[[Batches], Any], piece: FilePiece) -> tuple[Part, int | Failed]:
    counted = _Counted(piece)
    summary = attempt(lambda: work(counted), piece.place)
    return _noted(Part(counted.n_rows, summary))


class _Counted:
    """Batches that count their rows as they pass; the last pass over them counts."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self.n_rows = 0

    def __iter__(self) -> Iterator[tuple[ArrayLike, ArrayLike | None]]:
        self.n_rows = 0
        for X, y in self._batches:
            self.n_rows += len(X)  # type: ignore[arg-type]
            yield X, y


@ray.remote(num_returns=2, max_retries=RETRIES)
def _on_held(work: Callable[[Batches], Any], held: Any) -> tuple[Part, int | Failed]:
    parts = [part for part in unpack_parts(held) if part.n_rows]
    n_rows = sum(part.n_rows for part in parts)
    if n_rows == 0:
        return Part(0, None), 0
    batches = [(part.summary, None) for part in parts]
    return _noted(Part(n_rows, attempt(lambda: work(batches), "the scores of some rows")))


def _noted(part: Part) -> tuple[Part, int | Failed]:
    return part, part.summary if isinstance(part.summary, Failed) else part.n_rows


@ray.remote(num_cpus=0, max_retries=RETRIES)
def _count(block: pa.Table) -> int:
    return int(sum(block.column("n_rows").to_pylist()))
