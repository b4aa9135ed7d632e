"""A random sample of the rows of a stream that does not depend on the batches they come in.

The i-th row of the stream draws the i-th random number of a seed, and the rows with the smallest numbers stay: so
batches, streams and loaded files keep the rows that one fit keeps, in the same order.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.features import is_count, is_share

__all__ = ["Part", "Sample", "Size", "check_seed", "check_size"]

#: A sample that is a share of the rows keeps at least this many, if there are so many: fewer save nothing.
FEWEST_ROWS = 1000

#: None keeps all rows, a share about that share of them but at least FEWEST_ROWS, a whole number so many.
Size = float | int | None


class Part(NamedTuple):
    """Rows kept, with their labels if any, and the number drawn for each if only some are kept."""

    rows: NDArray[Any]
    labels: NDArray[Any] | None
    draws: NDArray[np.float64] | None


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows kept of a stream; a value, so whoever holds one still has it when rows are added to it.

    >>> rows = np.arange(8.0)[:, np.newaxis]
    >>> once = Sample().add(rows, size=3, seed=0).settled(3)
    >>> twice = Sample().add(rows[:5], size=3, seed=0).add(rows[5:], size=3, seed=0).settled(3)
    >>> once.rows.ravel(), twice.rows.ravel()
    (array([1., 2., 3.]), array([1., 2., 3.]))
    """

    parts: tuple[Part, ...] = ()
    n_seen: int = 0

    @property
    def n_kept(self) -> int:
        """How many rows are held; once settled, those that stay."""
        return sum(len(part.rows) for part in self.parts)

    @property
    def rows(self) -> NDArray[Any]:
        """The rows of a settled sample."""
        return self.parts[0].rows

    def add(self, rows: NDArray[Any], labels: NDArray[Any] | None = None, *, size: Size, seed: Any) -> "Sample":
        """Return the sample with these rows added; only a few more than will stay are held meanwhile.

        Args:
            rows: Rows of one width.
            labels: One per row, for every batch or for none.
            size: As `Size`, the same throughout.
            seed: Anything that `numpy.random.default_rng` takes, the same throughout.
        """
        if self.parts and (self.parts[0].labels is None) != (labels is None):
            raise InputError("some batches have labels and others have none; pass labels for all rows or for none")
        if size is None:
            return self._extended(Part(_copied(rows), None if labels is None else labels.copy(), None), len(rows))
        draws = _draws(seed, self.n_seen, len(rows))
        picked = _smallest(draws, size)
        part = Part(_copied(rows[picked]), None if labels is None else labels[picked], draws[picked])
        joined = self._extended(part, len(rows))
        limit = size if is_count(size) else max(FEWEST_ROWS, size * joined.n_seen)
        return joined.settled(size) if joined.n_kept > 2 * limit + FEWEST_ROWS else joined

    def settled(self, size: Size) -> "Sample":
        """Return the sample as one part, with no more rows than are wanted."""
        if size is not None and any(part.draws is None for part in self.parts):
            raise InputError(f"all rows were kept, so no sample of size {size!r} can be drawn; fit again to draw one")
        if len(self.parts) == 1 and (size is None or len(_smallest(self.parts[0].draws, size)) == self.n_kept):
            return self
        columns = [list(column) for column in zip(*self.parts, strict=True)]
        labels, draws = (None if column[0] is None else np.concatenate(column) for column in columns[1:])
        picked = slice(None) if draws is None or size is None else _smallest(draws, size)
        rows = _joined(columns[0])[picked]
        part = Part(rows, None if labels is None else labels[picked], None if draws is None else draws[picked])
        return Sample((part,), self.n_seen)

    def ordered(self, order: NDArray[np.intp]) -> "Sample":
        """Return the one part of a settled sample with its rows in this order."""
        columns = (None if column is None else column[order] for column in self.parts[0])
        return Sample((Part(*columns),), self.n_seen)  # type: ignore[arg-type]

    def merge(self, other: "Sample", *, size: Size) -> "Sample":
        """Return the settled sample of both.

        Samples of one seed hold the same draws for rows at the same place, so the other's are dealt anew among its
        rows: which of its rows stay is then no copy of which of ours do.
        """
        mine, theirs = self.settled(size), other.settled(size)
        part = theirs.parts[0]
        if (mine.parts[0].labels is None) != (part.labels is None):
            raise InputError("one fit has labels and the other has none; merge fits of equal kinds")
        if part.draws is not None:
            dealt = None if size is None else np.random.default_rng(mine.n_kept).permuted(part.draws)
            part = part._replace(draws=dealt)
        return mine._extended(part, theirs.n_seen).settled(size)

    def _extended(self, part: Part, n_seen: int) -> "Sample":
        if self.parts:
            first = self.parts[0]
            if first.rows.shape[1] != part.rows.shape[1]:
                raise InputError(
                    f"some rows have {first.rows.shape[1]} features and others {part.rows.shape[1]}; pass rows of one "
                    f"width"
                )
            if (first.draws is None) != (part.draws is None):
                raise InputError("all of some rows are kept and a sample of others; keep the same size throughout")
        return Sample((*self.parts, part), self.n_seen + n_seen)


def check_size(size: Any, *, name: str) -> None:
    """Raise unless this says how many rows to keep."""
    if not (size is None or is_count(size) or (is_share(size) and size > 0.0)):
        raise InputError(
            f"{name} is {size!r}; pass None to keep all rows, a share of them such as 0.01, or a whole number of rows"
        )


def check_seed(random_state: Any) -> None:
    """Raise unless this is a seed from which the same numbers can be drawn again, or None."""
    if random_state is not None and not is_count(random_state, least=0):
        raise InputError(f"random_state is {random_state!r}; pass a whole number of at least 0, or None")


def _draws(seed: Any, n_before: int, n_rows: int) -> NDArray[np.float64]:
    """Return the numbers of the rows that come after so many others."""
    generator = np.random.default_rng(seed)
    is_live = isinstance(seed, np.random.Generator | np.random.BitGenerator | np.random.RandomState)
    if not is_live:  # a live generator goes on by itself
        generator.bit_generator.advance(n_before)  # type: ignore[attr-defined]
    return generator.random(n_rows)


def _smallest(draws: NDArray[np.float64] | None, size: Any) -> NDArray[np.intp]:
    """Return where the draws that stay are: as many of the smallest as asked, or those below the share."""
    assert draws is not None
    n_stay = size if is_count(size) else max(FEWEST_ROWS, int(np.count_nonzero(draws < size)))
    return np.sort(np.argsort(draws, kind="stable")[:n_stay])


def _copied(rows: NDArray[Any]) -> NDArray[Any]:
    """Return a copy as float32 where that holds the rows exactly, and else as float64."""
    is_narrow = rows.dtype.kind == "f" and rows.dtype.itemsize <= 4
    return np.array(rows, dtype=np.float32 if is_narrow else np.float64, order="C")


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the parts as one array; each is let go as soon as it is copied."""
    if len(parts) == 1:
        return parts[0]
    joined = np.empty((sum(map(len, parts)), parts[0].shape[1]), dtype=np.result_type(*parts))
    stop = len(joined)
    while parts:
        part = parts.pop()
        joined[stop - len(part) : stop] = part
        stop -= len(part)
    return joined
