"""A random sample of the rows of a stream that does not depend on the batches they come in.

The i-th row of the stream draws the i-th random number of a seed, and the rows with the smallest numbers stay: so
batches, streams and loaded files keep the rows that one fit keeps, in the same order.

Rows that are spread over many places have no i-th among them, so there the sample is drawn by content: the number of a
row is a hash of its features and the seed (`ContentSampler`), and the rows with the smallest numbers stay, in the order
of their numbers. That is another sample than the one of a stream, but the same however the rows are parted. Equal rows
draw equal numbers, so they stay or go together, and of each at most 1,000 copies stay: it is made for rows that mostly
differ, as features do.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.features import chunks, is_count, is_share, rows_per_chunk

__all__ = ["ContentSampler", "Part", "Sample", "Size", "check_seed", "check_size"]

#: A sample that is a share of the rows keeps at least this many, if there are so many: fewer save nothing.
FEWEST_ROWS = 1000

#: Of equal rows, which have the same number if it is drawn by content, so many stay at most: were all of them kept, a
#: row that is met very often could fill a sample, and a share of the rows would have no bound.
MOST_COPIES = 1000

#: Of rows that are spread, a share may be so many at the most: all of them come to one process.
MOST_ROWS = 1_000_000

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
        self._refuse_mixed(labels)
        if size is None:
            return self._extended(Part(_copied(rows), None if labels is None else labels.copy(), None), len(rows))
        draws = _draws(seed, self.n_seen, len(rows))
        joined = self._picked(rows, labels, draws, _smallest(draws, size))
        return joined.settled(size) if joined._is_full(size) else joined

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

    def _refuse_mixed(self, labels: NDArray[Any] | None) -> None:
        if self.parts and (self.parts[0].labels is None) != (labels is None):
            raise InputError("some batches have labels and others have none; pass labels for all rows or for none")

    def _picked(
        self, rows: NDArray[Any], labels: NDArray[Any] | None, draws: NDArray[np.float64], picked: NDArray[np.intp]
    ) -> "Sample":
        """Return the sample with copies of these rows of a batch added."""
        part = Part(_copied(rows[picked]), None if labels is None else labels[picked], draws[picked])
        return self._extended(part, len(rows))

    def _is_full(self, size: Any) -> bool:
        """Whether so many rows are held that those which will not stay should go."""
        limit = size if is_count(size) else max(FEWEST_ROWS, size * self.n_seen)
        return bool(self.n_kept > 2 * limit + FEWEST_ROWS)

    def _extended(self, part: Part, n_seen: int) -> "Sample":
        if self.parts:
            first = self.parts[0]
            if first.rows.shape[1] != part.rows.shape[1]:
                raise _other_widths(first.rows.shape[1], part.rows.shape[1])
            if (first.draws is None) != (part.draws is None):
                raise InputError("all of some rows are kept and a sample of others; keep the same size throughout")
        return Sample((*self.parts, part), self.n_seen + n_seen)


@dataclass(frozen=True, eq=False)
class ContentSampler:
    """Draws a sample of rows that are spread: numbers are hashes of the rows, so the parts' samples merge into one.

    Attributes:
        size: How many rows stay: a share of them or a whole number, as `Size`.
        multipliers: One odd number for each feature, drawn from the seed.
        offset: Another number drawn from it, which all rows start from.

    >>> rows = np.arange(8.0)[:, np.newaxis]
    >>> sampler = ContentSampler.of(size=3, n_features=1, seed=0)
    >>> once = sampler.settled(sampler.add(Sample(), rows))
    >>> parts = [sampler.add(Sample(), part) for part in (rows[5:], rows[:2], rows[2:5])]
    >>> parted = sampler.merge(parts[0], sampler.merge(parts[1], parts[2]))
    >>> once.rows.ravel(), parted.rows.ravel()
    (array([7., 5., 0.]), array([7., 5., 0.]))
    """

    size: float | int
    multipliers: NDArray[np.uint64]
    offset: np.uint64

    @classmethod
    def of(cls, *, size: float | int, n_features: int, seed: Any) -> "ContentSampler":
        """Return the sampler of a seed, which is anything that `numpy.random.default_rng` takes."""
        numbers = np.random.default_rng(seed).integers(0, 1 << 64, size=n_features + 1, dtype=np.uint64)
        return cls(size, numbers[1:] | np.uint64(1), numbers[0])

    def draws(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """Return the number of each row, from 0 to 1: equal rows have equal numbers, whatever their type of float."""
        if rows.shape[1] != len(self.multipliers):
            raise _other_widths(len(self.multipliers), rows.shape[1])
        sums = np.empty(len(rows), dtype=np.uint64)
        for part in chunks(len(rows), rows_per_chunk(2 * rows.shape[1])):
            bits = np.add(rows[part], 0.0, dtype=np.float64).view(np.uint64)  # the sum turns minus zero into zero
            # A product keeps the zeros that a number ends in, as every float32 does: fold the leading bits down there.
            folded = bits >> np.uint64(32)
            folded ^= bits >> np.uint64(52)
            folded ^= bits
            folded *= self.multipliers
            np.sum(folded, axis=1, out=sums[part])
        return _mixed(sums + self.offset)

    def add(self, sample: Sample, rows: NDArray[Any], labels: NDArray[Any] | None = None) -> Sample:
        """Return the sample with these rows added; only a few more than will stay are held meanwhile."""
        sample._refuse_mixed(labels)
        draws = self.draws(rows)
        joined = sample._picked(rows, labels, draws, self._stay(draws, labels))
        return self.settled(joined) if joined._is_full(self.size) else joined

    def settled(self, sample: Sample) -> Sample:
        """Return the sample as one part, with the rows that stay in the order of their numbers."""
        whole = sample.settled(None)
        return whole.ordered(self._stay(whole.parts[0].draws, whole.parts[0].labels))

    def merge(self, one: Sample, other: Sample) -> Sample:
        """Return the settled sample of both."""
        one._refuse_mixed(other.parts[0].labels)
        self._refuse_too_many(one.n_seen + other.n_seen)
        first, second = self.settled(one), self.settled(other)
        return self.settled(first._extended(second.parts[0], second.n_seen))

    def _refuse_too_many(self, n_seen: int) -> None:
        if not is_count(self.size) and self.size * n_seen > MOST_ROWS:
            raise InputError(
                f"a share of {self.size:g} of {n_seen:,} rows and more is over {MOST_ROWS:,} rows, which would all "
                f"come to this process; pass a whole number of rows to keep, such as {MOST_ROWS // 10:_}"
            )

    def _stay(self, draws: Any, labels: NDArray[Any] | None) -> NDArray[np.intp]:
        """Return where the rows that stay are, in the order of their numbers and, of equal rows, their labels."""
        order = np.argsort(draws, kind="stable") if labels is None else np.lexsort((labels, draws))
        ordered = draws[order]
        nth_copy = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
        order = order[nth_copy < MOST_COPIES]
        return np.asarray(order[: _n_stay(draws[order], self.size)])


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
    return np.sort(np.argsort(draws, kind="stable")[: _n_stay(draws, size)])


def _n_stay(draws: NDArray[np.float64], size: Any) -> int:
    return int(size) if is_count(size) else max(FEWEST_ROWS, int(np.count_nonzero(draws < size)))


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return numbers from 0 to 1 in which every bit of these counts: the finaliser of SplitMix64, and 53 bits of it."""
    mixed = numbers ^ (numbers >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return np.asarray((mixed >> np.uint64(11)) * 2.0**-53)


def _other_widths(one: int, other: int) -> InputError:
    return InputError(f"some rows have {one} features and others {other}; pass rows of one width")


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
