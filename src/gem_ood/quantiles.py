"""Quantiles of very many numbers: counts that add up, and the exact value from a few passes over the same batches.

Numbers are counted by sign and leading bits, 2,048 bins to the octave, so the counts of two batches add up to those
of both and place every quantile to within 2⁻¹¹ of itself. Where the batches can be read again, later passes split
the bin that holds the quantile until one number is left; no pass holds more than one chunk and one table of counts.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import FileFormatError, InputError
from gem_ood.features import as_features, chunks, rows_per_chunk

__all__ = ["N_BINS", "RELATIVE_ERROR", "count_values", "exact_quantile", "pack_counts", "quantile", "unpack_counts"]

#: Leading bits of the mantissa that tell bins apart.
BIN_BITS = 11

#: By how much `quantile` may be off, relative to the exact value, within the range that the bins cover.
RELATIVE_ERROR = 2.0**-BIN_BITS

#: Bins cover the sizes from 2⁻⁶⁴ to 2⁶⁴ (5e-20 to 2e19): smaller ones count as zero, larger ones have one bin a side.
OCTAVES = 64

#: Bins of one pass of refinement: a bin of `BIN_BITS` has 2⁴¹ floats, so two passes tell them all apart.
PASS_BITS = 21

_SHIFT = 52 - BIN_BITS  # the mantissa has 52 bits
_BELOW = ((1023 - OCTAVES) << BIN_BITS) - 1  # leading bits of sizes that count as zero; 1,023 is the exponent's bias
_OUTERMOST = ((2 * OCTAVES) << BIN_BITS) + 1  # the bin of all sizes from 2⁶⁴ on
_SIZE_BITS = np.int64(0x7FFF_FFFF_FFFF_FFFF)
_LARGEST_FLOAT = 0x7FEF_FFFF_FFFF_FFFF
_INDEX_BITS = 20

N_BINS = 2 * _OUTERMOST + 1


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


def exact_quantile(batches: Iterable[ArrayLike], counts: NDArray[np.float64], share: float) -> float:
    """Return NumPy's linear quantile of all values of re-iterable batches of rows, given their counts.

    >>> rows = np.arange(101.0).reshape(101, 1)
    >>> exact_quantile([rows[:50], rows[50:]], count_values(rows), 0.9)
    90.0
    """
    ranks, fraction = _ranks(counts, share)
    spans = [_span(counts, rank) for rank in ranks]
    while any(span.first < span.last for span in spans):
        spans = _narrowed(batches, spans)
    return float(np.quantile([_float(span.first) for span in spans], fraction))


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


def _narrowed(batches: Iterable[ArrayLike], spans: list[_Span]) -> list[_Span]:
    """Return the part of each span that holds the value sought, a 2⁻²¹ of it, from one pass over all values."""
    open_spans = {(span.first, span.last): _pass_shift(span) for span in spans if span.first < span.last}
    tables = {ends: np.zeros(1 << PASS_BITS, dtype=np.int64) for ends in open_spans}
    for X in batches:
        features = as_features(X)
        for rows in chunks(len(features), rows_per_chunk(features.shape[1])):
            keys = _sortable(features[rows])
            for (first, last), shift in open_spans.items():
                inside = keys[(keys >= first) & (keys <= last)]
                np.add.at(tables[first, last], (inside - first) >> shift, 1)
    return [_part(span, tables.get((span.first, span.last))) for span in spans]


def _part(span: _Span, table: NDArray[np.int64] | None) -> _Span:
    if table is None:
        return span
    up_to = np.cumsum(table)
    if up_to[-1] != span.n_values:
        raise InputError(
            f"batches held {span.n_values} activations near the quantile in one pass and {up_to[-1]} in the next; pass "
            f"batches that give the same rows each time, or use partial_fit"
        )
    at = int(np.searchsorted(up_to, span.rank, side="right"))
    shift = _pass_shift(span)
    first = span.first + (at << shift)
    count = int(table[at])
    return _Span(first, min(first + (1 << shift) - 1, span.last), count, span.rank - (int(up_to[at]) - count))


def _pass_shift(span: _Span) -> int:
    return max(0, (span.last - span.first).bit_length() - PASS_BITS)


def _sortable(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return one whole number per value, in the order of the values."""
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.int64).ravel()
    return np.asarray(np.where(bits < 0, bits ^ _SIZE_BITS, bits))


def _float(key: int) -> float:
    bits = np.int64(key)
    return float((bits ^ _SIZE_BITS if key < 0 else bits).view(np.float64))
