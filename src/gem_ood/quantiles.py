"""Quantiles of very many numbers: counts that add up, and the exact value from a few passes over the same batches.

Numbers are counted by sign and leading bits, 2,048 bins to the octave, so the counts of two batches add up to those
of both and place every quantile to within 2⁻¹¹ of itself. Where the batches can be read again, later passes split
the cells that matter, such as the bin of the quantile, until one number is left in each.

A pass (`split_cells`) works in any process that has some of the rows. It holds one chunk and three tables of 64-bit
whole numbers with one entry per cell, 48 MB at the most, and leaves four numbers for each cell that is not empty. Two
such summaries merge into one of both. However many rows there are, nothing grows with them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.batches import Batches, reduce_rows
from gem_ood.errors import FileFormatError, InputError
from gem_ood.features import as_features, chunks, rows_per_chunk

__all__ = [
    "ALL_FLOATS",
    "N_BINS",
    "RELATIVE_ERROR",
    "Cells",
    "count_values",
    "exact_quantile",
    "floats_of",
    "pack_counts",
    "quantile",
    "split_cells",
    "unpack_counts",
]

#: Leading bits of the mantissa that tell bins apart.
BIN_BITS = 11

#: By how much `quantile` may be off, relative to the exact value, within the range that the bins cover.
RELATIVE_ERROR = 2.0**-BIN_BITS

#: Bins cover the sizes from 2⁻⁶⁴ to 2⁶⁴ (5e-20 to 2e19): smaller ones count as zero, larger ones have one bin a side.
OCTAVES = 64

#: Cells of one pass: a bin of `BIN_BITS` has 2⁴¹ floats, so two passes tell them all apart.
PASS_BITS = 21

_SHIFT = 52 - BIN_BITS  # the mantissa has 52 bits
_BELOW = ((1023 - OCTAVES) << BIN_BITS) - 1  # leading bits of sizes that count as zero; 1,023 is the exponent's bias
_OUTERMOST = ((2 * OCTAVES) << BIN_BITS) + 1  # the bin of all sizes from 2⁶⁴ on
_SIZE_BITS = np.int64(0x7FFF_FFFF_FFFF_FFFF)
_LARGEST_FLOAT = 0x7FEF_FFFF_FFFF_FFFF
_INDEX_BITS = 20

N_BINS = 2 * _OUTERMOST + 1

Keys = NDArray[np.int64]


class Cells(NamedTuple):
    """Runs of floats that hold some of the numbers met, in ascending order; floats are told by keys, in their order.

    Attributes:
        first: The key of the smallest number met in each.
        last: The key of the largest.
        counts: How many numbers were met in each.
    """

    first: Keys
    last: Keys
    counts: NDArray[np.int64]

    def take(self, places: NDArray[Any]) -> "Cells":
        """Return the cells of these places."""
        return Cells(*(column[places] for column in self))


#: One cell of all floats, of which no count is known yet.
ALL_FLOATS = Cells(*(np.array([number], dtype=np.int64) for number in (-(2**63), 2**63 - 1, -1)))


class _Span(NamedTuple):
    """The floats from the `first` to the `last` key, how many were met, and which of those in order is sought."""

    first: int
    last: int
    n_values: int
    rank: int


def count_values(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return how many finite values fall in each bin; the counts of two arrays add up to those of both.

    >>> np.flatnonzero(count_values(np.array([0.0, -1e-30])) + count_values(np.array([0.0]))).size
    1
    """
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.int64).ravel()
    place = ((bits & _SIZE_BITS) >> _SHIFT) - _BELOW
    np.clip(place, 0, _OUTERMOST, out=place)
    np.negative(place, out=place, where=bits < 0)
    place += _OUTERMOST
    return np.bincount(place, minlength=N_BINS).astype(np.float64)


def quantile(counts: NDArray[np.float64], share: float) -> float:
    """Return the value that this share of the counted values lies below, within `RELATIVE_ERROR` of itself.

    It is NumPy's linear quantile with the values of a bin spread evenly over it. Sizes below 2⁻⁶⁴ give zero.

    >>> abs(quantile(count_values(np.arange(1.0, 102.0)), 0.9) / 91.0 - 1.0) < RELATIVE_ERROR
    True
    """
    ranks, fraction = _ranks(counts, share)
    return float(np.quantile([_middle(_span(counts, rank)) for rank in ranks], fraction))


def exact_quantile(batches: Batches, counts: NDArray[np.float64], share: float) -> float:
    """Return NumPy's linear quantile of all features of re-iterable or spread batches of rows, given their counts.

    >>> rows = np.arange(101.0).reshape(101, 1)
    >>> exact_quantile([(rows[:50], None), (rows[50:], None)], count_values(rows), 0.9)
    90.0
    """
    ranks, fraction = _ranks(counts, share)
    spans = [_span(counts, rank) for rank in ranks]
    while any(span.first < span.last for span in spans):
        spans = _narrowed(batches, spans)
    return float(np.quantile(floats_of(np.array([span.first for span in spans])), fraction))


def split_cells(
    batches: Batches,
    cells: Cells,
    *,
    bits: int = PASS_BITS,
    read: Callable[[ArrayLike, int], NDArray[Any]] | None = None,
) -> Cells:
    """Return what parts of these cells hold the numbers, from one pass over re-iterable or spread batches.

    Args:
        batches: Of (X, anything); the numbers are all of X.
        cells: Where to look. They do not overlap.
        bits: All cells together are cut into two to the power of this, at the most.
        read: Makes an array of X, given how many rows came before; `as_features` unless told otherwise.

    >>> parts = split_cells([([[3.0, -1.0], [2.0, 3.0]], None)], ALL_FLOATS)
    >>> floats_of(parts.first), parts.counts
    (array([-1.,  2.,  3.]), array([1, 1, 2]))
    """
    grid = _Grid.of(cells, bits)
    found = reduce_rows(batches, partial(_count_cells, grid=grid, read=read or _features), _merge)
    owner = np.searchsorted(grid.offset, found.places, side="right") - 1
    totals = np.zeros(len(cells.first), dtype=np.int64)
    np.add.at(totals, owner, found.counts)
    is_other = (totals != cells.counts) & (cells.counts >= 0)
    if is_other.any():
        at = int(np.argmax(is_other))
        raise InputError(
            f"batches held {cells.counts[at]} numbers of some range in one pass and {totals[at]} in the next; pass "
            f"batches that give the same rows each time"
        )
    is_pair = (found.counts == 2) & (found.first < found.last)  # both are known, so each is a cell of its own
    first = np.concatenate([found.first, found.last[is_pair]])
    last = np.concatenate([np.where(is_pair, found.first, found.last), found.last[is_pair]])
    count = np.concatenate([np.where(is_pair, 1, found.counts), np.ones(np.count_nonzero(is_pair), dtype=np.int64)])
    return Cells(first, last, count).take(np.argsort(first))


def floats_of(keys: Keys) -> NDArray[np.float64]:
    """Return the numbers that these keys stand for."""
    return np.where(keys < 0, keys ^ _SIZE_BITS, keys).view(np.float64)


def pack_counts(counts: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bins that are not empty, one whole number each: the count above the bin's 20-bit place.

    >>> pack_counts(count_values(np.array([0.0, 0.0]))) >> 20
    array([2])
    """
    places = np.flatnonzero(counts)
    return (counts[places].astype(np.int64) << _INDEX_BITS) | places


def unpack_counts(packed: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the counts that were packed."""
    places, n_values = packed & ((1 << _INDEX_BITS) - 1), packed >> _INDEX_BITS
    if len(packed) == 0 or n_values.min() <= 0 or places.max() >= N_BINS or (np.diff(places) <= 0).any():
        raise FileFormatError("the file's counts of activations are damaged; save the detector again")
    counts = np.zeros(N_BINS)
    counts[places] = n_values
    return counts


def _ranks(counts: NDArray[np.float64], share: float) -> tuple[tuple[int, int], float]:
    """Return the two places in order that the quantile lies between, and how far from the first: as NumPy has it."""
    n_values = int(counts.sum())
    if n_values == 0:
        raise InputError("no values were counted, so there is no quantile; pass at least one row")
    position = share * (n_values - 1)
    lower = int(np.floor(position))
    return (lower, min(lower + 1, n_values - 1)), position - lower


def _span(counts: NDArray[np.float64], rank: int) -> _Span:
    """Return the bin that holds the value of this place in order."""
    up_to = np.cumsum(counts)
    at = int(np.searchsorted(up_to, rank, side="right"))
    count = int(counts[at])
    first, last = _keys(at - _OUTERMOST)
    return _Span(first, last, count, rank - (int(up_to[at]) - count))


def _keys(place: int) -> tuple[int, int]:
    """Return the first and last key of the floats of a bin: keys are in the order of the floats, −1 is minus zero."""
    size = abs(place)
    first, last = (size + _BELOW) << _SHIFT, ((size + _BELOW + 1) << _SHIFT) - 1
    if size == _OUTERMOST:
        last = _LARGEST_FLOAT
    if size == 0:
        return -last - 1, last
    return (first, last) if place > 0 else (-last - 1, -first - 1)


def _middle(span: _Span) -> float:
    """Return where the sought value of a bin would be if its values were spread evenly."""
    low, high = _float(span.first), _float(span.last)
    if low < 0.0 < high:
        return 0.0
    if max(abs(low), abs(high)) > 2.0 ** (OCTAVES + 1):
        raise InputError(
            f"the quantile of the activations has a size above {2.0**OCTAVES:.0e}, where counts do not reach; use fit "
            f"or fit_batches, which find it exactly"
        )
    return low + (high - low) * (span.rank + 0.5) / span.n_values


def _narrowed(batches: Batches, spans: list[_Span]) -> list[_Span]:
    """Return the part of each span that holds the value sought, a 2⁻²⁰ of it at the most, from one pass."""
    bounds = sorted({(span.first, span.last, span.n_values) for span in spans if span.first < span.last})
    first, last, n_values = (np.array(column, dtype=np.int64) for column in zip(*bounds, strict=True))
    parts = split_cells(batches, Cells(first, last, n_values))
    return [_part(span, parts) if span.first < span.last else span for span in spans]


def _part(span: _Span, parts: Cells) -> _Span:
    inside = parts.take((parts.first >= span.first) & (parts.last <= span.last))
    up_to = np.cumsum(inside.counts)
    at = int(np.searchsorted(up_to, span.rank, side="right"))
    count = int(inside.counts[at])
    rank = span.rank - (int(up_to[at]) - count)
    first, last = int(inside.first[at]), int(inside.last[at])
    if rank in (0, count - 1):  # the smallest or the largest of the cell, and these are known
        return _Span(*((first, first) if rank == 0 else (last, last)), 1, 0)
    return _Span(first, last, count, rank)


class _Grid(NamedTuple):
    """Cells cut into parts of 2 to the power of `shift` floats; the parts of a cell are numbered from its `offset`."""

    first: Keys
    last: Keys
    shift: NDArray[np.uint64]
    offset: NDArray[np.int64]
    n_parts: int

    @classmethod
    def of(cls, cells: Cells, bits: int) -> "_Grid":
        own_bits = max(1, bits - (len(cells.first) - 1).bit_length())
        widths = (cells.last - cells.first).view(np.uint64)  # beyond 2⁶³ for all floats, so without a sign
        shift = np.array([max(0, width.bit_length() - own_bits) for width in widths.tolist()], dtype=np.uint64)
        n_parts = (widths >> shift).astype(np.int64) + 1
        return cls(cells.first, cells.last, shift, np.cumsum(n_parts) - n_parts, int(n_parts.sum()))


class _Counts(NamedTuple):
    """The parts of a grid that hold numbers, in order: the smallest and the largest met in each, and how many."""

    places: NDArray[np.int64]
    first: Keys
    last: Keys
    counts: NDArray[np.int64]


def _features(X: ArrayLike, first_row: int) -> NDArray[Any]:
    return as_features(X)


def _count_cells(batches: Batches, *, grid: _Grid, read: Callable[[ArrayLike, int], NDArray[Any]]) -> _Counts:
    first, last, count = (np.zeros(grid.n_parts, dtype=np.int64) for _ in range(3))  # untouched, they cost nothing
    n_rows = 0
    for X, _ in batches:
        values = read(X, n_rows)
        n_rows += len(values)
        for rows in chunks(len(values), rows_per_chunk(values.size // max(1, len(values)))):
            found = _runs(_sortable(values[rows]), grid)
            at, is_new = found.places, count[found.places] == 0
            first[at] = np.where(is_new, found.first, np.minimum(first[at], found.first))
            last[at] = np.where(is_new, found.last, np.maximum(last[at], found.last))
            count[at] += found.counts
    places = np.flatnonzero(count)
    return _Counts(places, first[places], last[places], count[places])


def _runs(keys: Keys, grid: _Grid) -> _Counts:
    """Return what one chunk has of each part of the grid."""
    ordered = np.sort(keys[(keys >= grid.first[0]) & (keys <= grid.last[-1])])
    starts = np.searchsorted(ordered, grid.first, side="left")
    lengths = np.searchsorted(ordered, grid.last, side="right") - starts
    owner = np.repeat(np.arange(len(lengths)), lengths)
    skipped = starts - (np.cumsum(lengths) - lengths)  # keys between the cells
    inside = ordered[np.arange(len(owner)) + skipped[owner]]
    steps = (inside - grid.first[owner]).view(np.uint64) >> grid.shift[owner]
    places = grid.offset[owner] + steps.astype(np.int64)
    heads = _heads(places)
    ends = np.append(heads, len(places))[1:]
    return _Counts(places[heads], inside[heads], inside[ends - 1], ends - heads)


def _merge(one: _Counts, other: _Counts) -> _Counts:
    """Return the counts of both."""
    places = np.concatenate([one.places, other.places])
    order = np.argsort(places, kind="stable")
    first, last, count = (np.concatenate(pair)[order] for pair in zip(one[1:], other[1:], strict=True))
    heads = _heads(places[order])
    if len(heads) == 0:
        return one
    return _Counts(
        places[order][heads],
        np.minimum.reduceat(first, heads),
        np.maximum.reduceat(last, heads),
        np.add.reduceat(count, heads),
    )


def _heads(places: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return where each of these ascending places comes first."""
    return np.flatnonzero(np.append(True, places[1:] != places[:-1])[: len(places)])


def _sortable(values: NDArray[Any]) -> Keys:
    """Return one key per value, in the order of the values; minus zero counts as zero."""
    bits = (np.asarray(values, dtype=np.float64) + 0.0).view(np.int64).ravel()
    return np.asarray(np.where(bits < 0, bits ^ _SIZE_BITS, bits))


def _float(key: int) -> float:
    return float(floats_of(np.array(key)))
