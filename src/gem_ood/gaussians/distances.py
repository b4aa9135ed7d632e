"""Distances of rows to their nearest class, and what the other classes add: all that a Gaussian score is made of.

The passes in C do it for as many rows as two vectors hold at a time, from the centring to the sum of exponentials.
Where they are not there, and for a single row, the `kernel` does.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.features import chunks, refuse_non_finite, rows_per_chunk
from gem_ood.gaussians.kernel import Floats, Kernel, Terms
from gem_ood.gaussians.log_sums import log_sum_above
from gem_ood.gaussians.native import Scorer, can_read
from gem_ood.gaussians.parallel import run_in_turns

__all__ = ["Distances", "distances"]

#: From so many operations on, sharing the passes in C takes less time than it saves.
FEWEST_SHARED_OPERATIONS = 5e7

#: A block of the passes in C has as many rows or fewer, whatever their type and the width of the vectors.
ROWS_OF_BLOCKS = 32

LogWeights = NDArray[np.float64] | None


@dataclass(frozen=True, eq=False, slots=True)
class Distances:
    """What a score needs to know of n rows, in the working precision or in float64.

    Attributes:
        halves: Half the squared distance to the nearest class.
        best: The place of that class.
        log_sums: log Σ_i w_i exp(f_i − f_best); None where it was not asked for.
    """

    halves: Floats
    best: NDArray[np.int64]
    log_sums: Floats | None


def distances(kernel: Kernel, features: Floats, *, log_weights: LogWeights = None, has_sums: bool = True) -> Distances:
    """Return the distances of checked rows; NaN and infinity are refused by row."""
    if log_weights is not None and log_weights.shape != (len(kernel.whitened_means),):
        raise InputError(
            f"log_weights has shape {log_weights.shape} but there are {len(kernel.whitened_means)} classes; "
            f"pass one number per class"
        )
    if kernel.scorer is None or len(features) == 1:  # a pass takes as long for one row as for all that its vectors hold
        return _by_kernel(kernel, features, log_weights, has_sums)
    return _by_scorer(kernel, kernel.scorer, features, log_weights, has_sums)


def _by_kernel(kernel: Kernel, features: Floats, log_weights: LogWeights, has_sums: bool) -> Distances:
    n_rows = len(features)
    halves, best = np.empty(n_rows), np.empty(n_rows, dtype=np.int64)
    log_sums = np.empty(n_rows) if has_sums else None

    def keep(rows: slice, terms: Terms) -> None:
        halves[rows], best[rows] = terms.half_distances, terms.best
        if log_sums is not None:
            log_sums[rows] = log_sum_above(terms.logits, terms.largest, log_weights)

    kernel.run(features, keep)
    return Distances(halves, best, log_sums)


def _by_scorer(kernel: Kernel, scorer: Scorer, features: Floats, log_weights: LogWeights, has_sums: bool) -> Distances:
    n_rows, dtype = len(features), scorer.dtype
    halves, best = np.empty(n_rows, dtype), np.empty(n_rows, dtype=np.int64)
    sums = np.empty(n_rows, dtype) if has_sums else None
    weights = log_weights.astype(dtype) if has_sums and log_weights is not None else None
    references = np.empty(n_rows, dtype) if weights is not None else None
    is_readable, size = can_read(features), rows_per_chunk(features.shape[1])

    def score(part: slice) -> int:
        n_not_finite = 0
        for start in range(part.start, part.stop, size):  # not all at once, so that Ctrl-C is heard
            place = slice(start, min(start + size, part.stop))
            rows = features[place] if is_readable else np.ascontiguousarray(features[place], dtype)
            n_not_finite += scorer.score(
                rows,
                halves[place],
                best[place],
                sums=None if sums is None else sums[place],
                references=None if references is None else references[place],
                log_weights=weights,
            )
        return n_not_finite

    counts = run_in_turns(
        score,
        n_rows,
        operations=kernel.operations(n_rows),
        least_operations=FEWEST_SHARED_OPERATIONS,
        multiple=ROWS_OF_BLOCKS,
    )
    log_sums = None if sums is None else np.log(sums, out=sums)
    if log_sums is not None and references is not None:
        log_sums += references
    found = Distances(halves, best, log_sums)
    return _mended(kernel, features, found, log_weights) if any(counts) else found


def _mended(kernel: Kernel, features: Floats, found: Distances, log_weights: LogWeights) -> Distances:
    """Return what was found with the rows anew, in float64, whose squares overflowed; others are refused."""
    halves, best = found.halves.astype(np.float64), found.best
    log_sums = None if found.log_sums is None else found.log_sums.astype(np.float64)
    far = np.flatnonzero(~np.isfinite(halves))  # one NaN or infinity anywhere in a row reaches its distance
    for some in chunks(len(far), rows_per_chunk(features.shape[1])):
        places = far[some]
        rows = features[places]
        for row in np.flatnonzero(~np.isfinite(rows).all(axis=1)):
            refuse_non_finite(rows[row : row + 1], first_row=int(places[row]))
        terms = kernel.in_float64(rows)
        halves[places], best[places] = terms.half_distances, terms.best
        if log_sums is not None:
            log_sums[places] = log_sum_above(terms.logits, terms.largest, log_weights)
    return Distances(halves, best, log_sums)
