"""A tree of merges on a cluster: summaries stay where they were made, and only the last one comes here.

Every few summaries are merged by a task into one, every few of those into the next, and so on. The driver holds
references only; a summary that was lost with its machine is made again from its rows, as Ray knows how it was made.
"""

import copy
import gc
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import ray
from ray import cloudpickle

from gem_ood.errors import ClusterError, InputError
from gem_ood.ray.failures import out_of_memory, placed

__all__ = [
    "RETRIES",
    "Failed",
    "OnRows",
    "Part",
    "Reduction",
    "Tally",
    "attempt",
    "cancel",
    "pack_part",
    "persist",
    "unpack_parts",
]

#: How many summaries one task merges.
FAN_IN = 8

#: A task whose worker dies is run again so often; so is one whose results were lost with a machine.
RETRIES = 5

#: Work that runs out of memory is tried again after so many seconds each: others may have given theirs back by then.
PAUSES = (1.0, 4.0)

#: Tasks are called back so often, as one that is just being started can miss its call, and so long apart.
CALLS_BACK, SECONDS_TO_HEAR_IT = 3, 1.0

OnRows = Callable[[int], None]

Result = TypeVar("Result")


class Part(NamedTuple):
    """What was made of some rows; nothing of none."""

    n_rows: int
    summary: Any


def pack_part(part: Part) -> pa.Table:
    """Return a part as a block of a dataset."""
    packed = cloudpickle.dumps(part)  # type: ignore[no-untyped-call]
    return pa.table({"n_rows": [part.n_rows], "part": pa.array([packed], pa.large_binary())})


def unpack_parts(block: Any) -> list[Part]:
    """Return the parts of a block of a dataset, or the one part that a task left."""
    if isinstance(block, Part):
        return [block]
    return [cloudpickle.loads(cell.as_buffer()) for cell in block.column("part")]


class Failed(NamedTuple):
    """The error that a task came to, handed on as a value: Ray logs each error that nobody asks for at length."""

    error: Exception


def attempt(work: Callable[[], Result], place: str) -> Result | Failed:
    """Return what work returns, in a task, or the error that it came to; see `persist`."""
    try:
        with placed(place):
            return persist(work, place)
    except (InputError, ClusterError) as error:
        return Failed(error.with_traceback(None))


def persist(work: Callable[[], Result], place: str) -> Result:
    """Return what work returns, in a task: tried again if memory runs out, given up if workers die of it.

    Ray starts a task anew for ever if its memory monitor ended the worker, and a task of Ray Data whatever ended it, so
    the task itself counts.

    Args:
        work: What the task does.
        place: Which rows it does it to, for an error.
    """
    n_deaths = _n_starts_before()
    if n_deaths > RETRIES:
        raise out_of_memory(place, f"{n_deaths} workers died over these rows, most likely for want of memory")
    for pause in PAUSES:
        with suppress(MemoryError):
            return work()
        gc.collect()
        time.sleep(pause)
    try:
        return work()
    except MemoryError as error:
        raise out_of_memory(place) from error


def _n_starts_before() -> int:
    """Return how often Ray has started the task that this runs in before; 0 where a version of Ray does not tell."""
    worker = ray._private.worker.global_worker.core_worker  # type: ignore[attr-defined]
    return int(getattr(worker, "get_current_task_attempt_number", int)())


def cancel(references: Iterable[Any]) -> None:
    """Call back tasks that are still at work, so that they do not stand in the way of the next ones.

    Those that do not hear it are left after three seconds.
    """
    at_work = list(references)
    with suppress(Exception):  # the connection may be what failed
        for _ in range(CALLS_BACK):
            if not at_work:
                return
            for reference in at_work:
                ray.cancel(reference)
            _, at_work = ray.wait(at_work, num_returns=len(at_work), timeout=SECONDS_TO_HEAR_IT, fetch_local=False)


class Tally:
    """Counts the rows that are done, from notes that tasks leave as they end; the error of a task is raised here.

    Args:
        on_rows: Called with the number of rows done so far.
    """

    def __init__(self, on_rows: OnRows | None = None) -> None:
        self._on_rows = on_rows
        self._notes: list[Any] = []
        self.n_rows = 0

    def add(self, note: Any) -> None:
        """Take a reference to the number of rows that a task has done."""
        self._notes.append(note)

    def cancel(self) -> None:
        """Call back the tasks that are still at work."""
        cancel(self._notes)

    def settle(self, most: int | None = None) -> None:
        """Read the notes that are there, and wait until at most so many tasks are still at work."""
        while self._notes:
            must_wait = most is not None and len(self._notes) > most
            done, self._notes = ray.wait(self._notes, timeout=None if must_wait else 0)
            if not done:
                return
            note = ray.get(done[0])
            if isinstance(note, Failed):
                raise note.error
            self.n_rows += note
            if self._on_rows is not None:
                self._on_rows(self.n_rows)


class Reduction:
    """Merges parts as they come, in any order; `add` takes references, `result` waits for the last merge."""

    def __init__(self, merge: Callable[[Any, Any], Any]) -> None:
        self._merge = ray.put(merge)
        self._levels: list[list[Any]] = [[]]

    def add(self, part: Any, level: int = 0) -> None:
        """Take a reference to a part, or to a block of packed parts."""
        if level == len(self._levels):
            self._levels.append([])
        waiting = self._levels[level]
        waiting.append(part)
        if len(waiting) == FAN_IN:
            joined = _join.remote(self._merge, *waiting)
            waiting.clear()
            self.add(joined, level + 1)

    def result(self) -> Any:
        """Return the summary of all parts; raise where they held no row."""
        rest = [part for level in self._levels for part in level]
        while True:  # at least once: one block may hold several parts
            rest = [_join.remote(self._merge, *rest[at : at + FAN_IN]) for at in range(0, len(rest), FAN_IN)]
            if len(rest) <= 1:
                break
        last = ray.get(rest[0]) if rest else Part(0, None)
        if isinstance(last.summary, Failed):
            raise last.summary.error
        if last.n_rows == 0:
            raise InputError("the dataset holds no rows; pass one with at least one")
        return copy.deepcopy(last.summary)  # its arrays are read-only, and hold what lies in the memory of Ray


@ray.remote(max_retries=RETRIES)
def _join(merge: Callable[[Any, Any], Any], *blocks: Any) -> Part:
    """Return the parts merged."""

    def join() -> Part:
        joined = Part(0, None)
        for block in blocks:
            for part in unpack_parts(block):
                if isinstance(part.summary, Failed):
                    return part
                if part.n_rows and joined.n_rows:
                    joined = Part(joined.n_rows + part.n_rows, merge(joined.summary, part.summary))
                elif part.n_rows:
                    joined = part
        return joined

    found = attempt(join, "the parts of the dataset")
    return Part(0, found) if isinstance(found, Failed) else found
