"""Batches: rows that come in parts, and a look at the first of them that costs no pass."""

from collections.abc import Iterable, Iterator
from itertools import islice

from numpy.typing import ArrayLike

__all__ = ["Batches", "OpenedBatches"]

Batches = Iterable[tuple[ArrayLike, ArrayLike | None]]


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
