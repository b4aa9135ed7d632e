"""A tree of merges on a cluster: summaries stay where they were made, and only the last one comes here.

Every few summaries are merged by a task into one, every few of those into the next, and so on. The driver holds
references only; a summary that was lost with its machine is made again from its rows, as Ray knows how it was made.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa
import ray
from ray import cloudpickle

from gem_ood.errors import InputError

__all__ = ["RETRIES", "OnRows", "Part", "Reduction", "Tally", "pack_part", "unpack_parts"]

#: How many summaries one task merges.
FAN_IN = 8

#: A task whose worker dies is run again so often; Ray has its own, unlimited count for lost machines.
RETRIES = 5

OnRows = Callable[[int], None]


class Part(NamedTuple):
    """What was made of some rows; nothing of none."""

    n_rows: int
    summary: Any


def pack_part(part: Part) -> pa.Table:
    """Return a part as a block of a dataset."""
    return pa.table({"n_rows": [part.n_rows], "part": pa.array([cloudpickle.dumps(part)], pa.large_binary())})


def unpack_parts(block: Any) -> list[Part]:
    """Return the parts of a block of a dataset, or the one part that a task left."""
    if isinstance(block, Part):
        return [block]
    return [cloudpickle.loads(cell.as_buffer()) for cell in block.column("part")]


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

    def settle(self, most: int | None = None) -> None:
        """Read the notes that are there, and wait until at most so many tasks are still at work."""
        while self._notes:
            must_wait = most is not None and len(self._notes) > most
            done, self._notes = ray.wait(self._notes, timeout=None if must_wait else 0)
            if not done:
                return
            self.n_rows += ray.get(done[0])
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
        if last.n_rows == 0:
            raise InputError("the dataset holds no rows; pass one with at least one")
        return copy.deepcopy(last.summary)  # its arrays lie in Ray's memory, which goes when Ray is shut down


@ray.remote(max_retries=RETRIES)  # type: ignore[untyped-decorator]
def _join(merge: Callable[[Any, Any], Any], *blocks: Any) -> Part:
    """Return the parts merged."""
    joined = Part(0, None)
    for block in blocks:
        for part in unpack_parts(block):
            if part.n_rows and joined.n_rows:
                joined = Part(joined.n_rows + part.n_rows, merge(joined.summary, part.summary))
            elif part.n_rows:
                joined = part
    return joined
