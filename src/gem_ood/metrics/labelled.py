"""One sort for everything: scores of both sides in one sorted array, each carrying its side in a spare bit.

A float64 of magnitude under 1 never uses its second-highest bit. Scaling by a power of two brings every score
there without rounding; moving the other bits up by one then frees the lowest bit for the side. The order of
scores is kept, equal scores differ in that bit alone, and one plain sort, much faster than an argsort, merges
the sides.
"""

import math

import numpy as np
from numpy.typing import NDArray

from gem_ood.features import chunks
from gem_ood.gaussians.parallel import free_threads, run_in_turns

__all__ = ["CHUNK_ROWS", "labelled_sort"]

#: Working buffers of this many rows stay in a processor's second-level cache.
CHUNK_ROWS = 1 << 15

#: Fewer scores are sorted by one thread in less time than it takes to share them.
LEAST_ROWS_TO_SHARE = 1 << 17

MAGNITUDE = np.int64(2**63 - 1)
MINUS_ZERO = np.int64(-(2**63))

#: Labelled scores nearer to zero than this were subnormal before, so that scaling may have rounded them.
SMALLEST_EXACT = 2.0**-1021


def labelled_sort(id_scores: NDArray[np.float64], ood_scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bits of all scores in ascending order, the lowest bit set for in-distribution rows.

    Two rows have equal scores exactly when their bits differ in nothing but the lowest bit.

    Example:
        >>> labelled_sort(np.array([0.5, 0.25]), np.array([0.25, -3.0])) & 1
        array([0, 0, 1, 1])
    """
    largest = max(id_scores.max(), -id_scores.min(), ood_scores.max(), -ood_scores.min())
    if math.isinf(largest):
        return labelled_sort(*_as_ranks(id_scores, ood_scores))
    scale = 2.0 ** -max(0, math.frexp(largest)[1])
    bits = np.empty(len(id_scores) + len(ood_scores), dtype=np.int64)
    _write_labelled(id_scores, scale, 1, bits[: len(id_scores)])
    _write_labelled(ood_scores, scale, 0, bits[len(id_scores) :])
    ordered = bits.view(np.float64)
    _sort(ordered)
    first, stop = np.searchsorted(ordered, [-SMALLEST_EXACT, SMALLEST_EXACT])
    if first < stop:
        n_zeros = np.count_nonzero(id_scores == 0) + np.count_nonzero(ood_scores == 0)
        if scale < 1 and n_zeros < stop - first:
            return labelled_sort(*_as_ranks(id_scores, ood_scores))
        near_zero = bits[first:stop]
        near_zero[(near_zero | 1) == (MINUS_ZERO | 1)] &= 1  # -0.0 and 0.0 are one score
    return bits


def _write_labelled(scores: NDArray[np.float64], scale: float, label: int, bits: NDArray[np.int64]) -> None:
    for rows in chunks(len(scores), CHUNK_ROWS):
        part = bits[rows]
        with np.errstate(under="ignore"):
            np.multiply(scores[rows], scale, out=part.view(np.float64))
        part += part & MAGNITUDE  # moves all bits but the sign up by one
        if label:
            part |= label


def _sort(values: NDArray[np.float64]) -> None:
    """Sort in place, by two threads if there are any: one half each, of what lies below and above the median."""
    if len(values) < LEAST_ROWS_TO_SHARE or free_threads() == 1:
        values.sort()
        return
    half = -(-len(values) // 2)
    values.partition(half)
    run_in_turns(lambda rows: values[rows].sort(), len(values), operations=1.0, least_operations=1.0, multiple=half)


def _as_ranks(
    id_scores: NDArray[np.float64], ood_scores: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    # Infinities and scores over 300 decades apart have no exact place in that layout; their ranks have.
    _, ranks = np.unique(np.concatenate([id_scores, ood_scores]), return_inverse=True)
    both = ranks.astype(np.float64)
    return both[: len(id_scores)], both[len(id_scores) :]
