"""Batches: rows that come in parts, one after the other here, or each in its own place elsewhere."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from numpy.typing import ArrayLike

__all__ = ["Batches", "OpenedBatches", "SpreadBatches", "reduce_rows"]

Batches = Iterable[tuple[ArrayLike, ArrayLike | None]]

Summary = TypeVar("Summary")


class SpreadBatches(ABC):
    """Rows that lie in many places, such as the blocks of a cluster: each part is summed up where it is.

    They are never iterated over here: `reduce_rows` brings what work makes of them.
    """

    #: The columns that make up the features; None where one column holds them.
    feature_names: tuple[str, ...] | None = None

    @abstractmethod
    def head(self) -> list[tuple[ArrayLike, ArrayLike | None]]:
        """Return a few of the rows, as batches."""

    @abstractmethod
    def reduce(self, work: Callable[[Batches], Summary], merge: Callable[[Summary, Summary], Summary]) -> Summary:
        """Return what work makes of each part, merged; both run elsewhere, on copies of what they hold."""

    def __iter__(self) -> Iterator[tuple[ArrayLike, ArrayLike | None]]:
        raise TypeError("rows that are spread are not iterated over; pass work to reduce_rows")


def reduce_rows(
    batches: Batches, work: Callable[[Batches], Summary], merge: Callable[[Summary, Summary], Summary]
) -> Summary:
    """Return what work makes of all batches: at once if they are here, else of each part there, merged two and two.

    Work gets re-iterable batches and must not change anything else: where rows are spread, it runs in another process,
    and once more if that dies. Parts are merged in any order, so merge must not care for it beyond rounding.

    >>> from operator import add
    >>> reduce_rows([([[1.0], [2.0]], None), ([[3.0]], None)], lambda rows: sum(len(X) for X, _ in rows), add)
    3
    """
    if isinstance(batches, SpreadBatches):
        return batches.reduce(work, merge)
    return work(batches)


class OpenedBatches:
    """The same batches with the first one looked at: the first pass goes on from there instead of starting anew."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._rest: Iterator[tuple[ArrayLike, ArrayLike | None]] | None = iter(batches)
        self._first = list(islice(self._rest, 1))

    @property
    def first(self) -> tuple[ArrayLike, ArrayLike | None] | None:
        """The first batch, until a pass has taken it: from then on nothing here keeps it alive."""
        return self._first[0] if self._first else None

    def __iter__(self) -> Iterator[tuple[ArrayLike, ArrayLike | None]]:
        rest, self._rest = self._rest, None
        if rest is None:
            yield from self._batches
            return
        yield self._first.pop()
        yield from rest
