"""Ranked scores: a few of very many calibration scores, each with its exact rank, found without holding them all."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.batches import Batches
from gem_ood.errors import InputError
from gem_ood.features import as_features, as_scores, is_count, is_share
from gem_ood.quantiles import ALL_FLOATS, Cells, floats_of, split_cells
from gem_ood.thresholds.calibration import Method, Threshold, threshold_order

__all__ = ["RankedScores", "rank_scores", "ranked_p_values"]

#: By how much thinned p-values may exceed the exact ones, relative to them.
PRECISION = 1e-3

#: More precision than this would keep millions of scores.
FINEST = 1e-4

#: A pass has two to the power of this many cells: with fewer there are more passes, with more there is more to send.
CELL_BITS = 18


@dataclass(frozen=True, eq=False)
class RankedScores:
    """Some of n calibration scores in order, each with its exact rank among all: what thresholds and p-values need.

    The conformal p-value of a score s is (1 + how many of n scores are at or below s) / (n + 1). Here it is taken as
    rank / (n + 1), with the rank of the first value kept above s, and n + 1 where there is none. All scores at or below
    s are below that value, so this is never less than the exact p-value, and is equal to it where every score is kept.
    For a row exchangeable with the calibration rows the exact one has P(p <= t) <= t for every t; one that is never
    less is below t only where that is, so the same holds for it.

    Attributes:
        values: Ascending, no two equal; `rank_scores` keeps calibration scores.
        ranks: 1 + the exact number of calibration scores below each value.
        n_rows: How many calibration scores there were.

    Example:
        >>> ranked = RankedScores.of([3.0, 1.0, 2.0, 2.0])
        >>> ranked.values, ranked.ranks
        (array([1., 2., 3.]), array([1, 2, 4]))
        >>> ranked.p_values([0.5, 2.0, 2.5, 3.0])
        array([0.2, 0.8, 0.8, 1. ])
        >>> ranked.threshold(tpr=0.6).value
        2.0
    """

    values: NDArray[np.float64]
    ranks: NDArray[np.int64]
    n_rows: int

    def __post_init__(self) -> None:
        values, ranks = as_scores(self.values, name="values"), np.asarray(self.ranks)
        if ranks.shape != values.shape or ranks.dtype.kind not in "iu" or not is_count(self.n_rows):
            raise InputError("ranks must be one whole number per value, and n_rows the number of rows ranked")
        if not (values[1:] > values[:-1]).all() or not (ranks[1:] > ranks[:-1]).all():
            raise InputError("values and ranks must ascend, no two equal; use RankedScores.of or rank_scores")
        if not 1 <= ranks[0] <= ranks[-1] <= self.n_rows:
            raise InputError(f"ranks go from {ranks[0]} to {ranks[-1]}; among {self.n_rows} rows they are 1 to as many")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "ranks", ranks.astype(np.int64, copy=False))

    @classmethod
    def of(cls, scores: ArrayLike) -> Self:
        """Return all of these scores, ranked: nothing is lost but how often a row's number came."""
        ordered = np.sort(as_scores(scores))
        values, first = np.unique(ordered, return_index=True)
        return cls(values, first.astype(np.int64) + 1, len(ordered))

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many rows each value stands for: those from it up to below the next."""
        return np.diff(np.append(self.ranks, self.n_rows + 1))

    @property
    def is_whole(self) -> bool:
        """Whether each row has a value of its own."""
        return len(self.values) == self.n_rows

    def p_values(self, scores: ArrayLike) -> NDArray[np.float64]:
        """Return the conformal p-value of each score, or an upper bound of it that keeps its guarantee."""
        return ranked_p_values(self.values, self.ranks, self.n_rows, scores)

    def threshold(
        self, *, tpr: float = 0.95, confidence: float | None = None, method: Method | None = None
    ) -> Threshold:
        """Return the threshold of `choose_threshold`, or the nearest kept value below it.

        A lower threshold keeps more rows, so what is promised holds. `Threshold.order` is the rank of the value taken:
        of equal scores, that of the first.

        Raises:
            CalibrationSizeError: Too few rows for the guarantee; the message says how many are needed.
        """
        chosen = threshold_order(self.n_rows, tpr=tpr, confidence=confidence, method=method)
        at = int(np.searchsorted(self.ranks, chosen.order, side="right")) - 1
        if at < 0:
            raise InputError(
                f"the threshold would be score {chosen.order} of {self.n_rows} in order, but the lowest one kept is "
                f"number {self.ranks[0]}; rank the scores with orders=[{chosen.order}]"
            )
        return replace(chosen, order=int(self.ranks[at])).at(float(self.values[at]))

    def sample(self, most: int) -> NDArray[np.float64]:
        """Return as many scores as there are rows but at most so many, evenly spaced in rank, in order.

        A row is given the value that stands for it, which is at or below its own score.
        """
        n = min(self.n_rows, most)
        places = (np.arange(n) * self.n_rows + self.n_rows // 2) // n  # the middles of n runs of as many ranks
        at = np.searchsorted(self.ranks, places + 1, side="right") - 1
        return np.asarray(self.values[np.maximum(at, 0)])


def ranked_p_values(
    values: NDArray[np.float64], ranks: NDArray[np.int64], n_rows: int, scores: ArrayLike
) -> NDArray[np.float64]:
    """Return `RankedScores.p_values` of values and ranks that need no check."""
    steps = np.append(ranks, n_rows + 1)
    return np.asarray(steps[np.searchsorted(values, as_scores(scores), side="right")] / (n_rows + 1))


def rank_scores(
    batches: Batches, *, orders: Callable[[int], Sequence[int]] | Sequence[int] = (), precision: float = PRECISION
) -> RankedScores:
    """Return the ranked scores of re-iterable or spread batches, in a few passes that never hold the scores.

    Kept are the lowest 1/precision scores, from there on so many that ranks grow by a factor of at most 1 + precision,
    and those of the given orders. P-values are then exact for the lowest scores, and for any others more than the exact
    one by a factor of at most 1 + precision; scores that many rows share, however many, cost nothing. Of 100 million
    rows some 13,000 are kept: 200 kB. Every value and every rank is exact, and the same however the rows are spread.

    The first pass counts the scores in 2¹⁸ equal spans of all float64 numbers, in the order of their bit patterns, and
    finds the smallest and the largest score in each. Each later pass cuts those spans finer that hold too many scores,
    or one whose order is wanted, until none is left: three passes are usual. What two parts of the rows give adds up to
    that of both. Whatever the number of rows, a pass takes 6 MB of tables and a chunk of scores wherever it works, and
    what a part sends has 32 bytes for each span that is not empty: at most one per row, and never more than 8 MB.

    Args:
        batches: Of (scores, None), with the scores as one dimension or as one column; the same at each pass.
        orders: Which scores, counted from 1 in ascending order, must be among the values; or a function that gives them
            once the number of rows is known.
        precision: By how much a p-value may exceed the exact one, relative to it: from 0.0001 to 1.

    Example:
        >>> from gem_ood.thresholds import threshold_order
        >>> scores = np.random.default_rng(0).normal(size=(2, 100_000))
        >>> ranked = rank_scores([(part, None) for part in scores], orders=lambda n: [threshold_order(n).order])
        >>> len(ranked.values), ranked.threshold().value == float(np.sort(scores.ravel())[10_000 - 1])
        (6077, True)
    """
    if isinstance(batches, Iterator):
        raise InputError("batches is an iterator that can be read only once; pass a list or another re-iterable")
    if not is_share(precision) or not FINEST <= precision < 1.0:
        raise InputError(
            f"precision is {precision!r}; pass a number from {FINEST:g} up to below 1, such as {PRECISION:g}"
        )
    cells = split_cells(batches, ALL_FLOATS, bits=CELL_BITS, read=_column)
    n_rows = int(cells.counts.sum())
    if n_rows == 0:
        raise InputError("batches is empty; pass at least one score")
    wanted = _checked_orders(orders(n_rows) if callable(orders) else orders, n_rows)
    cells, is_open = _thinned(cells, wanted, float(precision))
    while is_open.any():
        parts = split_cells(batches, cells.take(is_open), bits=CELL_BITS, read=_column)
        cells, is_open = _thinned(_joined(cells.take(~is_open), parts), wanted, float(precision))
    return RankedScores(floats_of(cells.first), 1 + _below(cells), n_rows)


def _column(X: ArrayLike, first_row: int) -> NDArray[np.float64]:
    given = X
    if getattr(X, "ndim", 1) == 2:
        table = as_features(X, name="scores")
        given = table[:, 0] if table.shape[1] == 1 else table
    if isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype.kind == "f" and np.isnan(given).any():
        raise InputError(f"scores row {first_row + int(np.argmax(np.isnan(given)))} is NaN; remove or mend that row")
    return as_scores(given)


def _checked_orders(orders: Sequence[int], n_rows: int) -> NDArray[np.int64]:
    for order in orders:
        if not is_count(order) or order > n_rows:
            raise InputError(f"orders holds {order!r}, but there are {n_rows} scores; pass numbers from 1 to {n_rows}")
    return np.array(sorted(map(int, orders)), dtype=np.int64)


def _below(cells: Cells) -> NDArray[np.int64]:
    """Return how many scores are below each cell."""
    return np.cumsum(cells.counts) - cells.counts


def _joined(some: Cells, others: Cells) -> Cells:
    joined = Cells(*(np.concatenate(pair) for pair in zip(some, others, strict=True)))
    return joined.take(np.argsort(joined.first))


def _thinned(cells: Cells, wanted: NDArray[np.int64], precision: float) -> tuple[Cells, NDArray[np.bool_]]:
    """Return the cells with neighbours joined as far as precision allows, and which of them must be cut finer.

    A cell keeps its smallest score. A score from there up to below the next cell's smallest is at or above `rank`
    scores and that one, and gets the rank of the next: the factor between the two is bounded, or the cell is one number
    and the rank exact.
    """
    ranks = np.append(1 + _below(cells), 1 + cells.counts.sum())
    limits = np.floor((1.0 + precision) * (ranks[:-1] + 1.0)).astype(np.int64)
    at = np.searchsorted(ranks, wanted, side="right") - 1
    is_divisible = cells.first < cells.last
    is_open = is_divisible & (ranks[1:] > limits)
    is_open[at] |= is_divisible[at] & (ranks[at] < wanted)
    is_start = np.append(False, is_open)  # what must be cut finer, or has a score that is wanted, is not joined
    is_start[:-1] |= is_open
    is_start[at] = is_start[at + 1] = True
    stops = np.append(np.flatnonzero(is_start), len(limits))
    starts, start = [], 0
    while start < len(limits):
        starts.append(start)
        farthest = int(np.searchsorted(ranks, limits[start], side="right")) - 1
        stop = int(stops[np.searchsorted(stops, start, side="right")])
        start = min(max(farthest, start + 1), stop)
    places = np.array(starts)
    last = cells.last[np.append(places[1:], len(limits)) - 1]
    joined = Cells(cells.first[places], last, np.add.reduceat(cells.counts, places))
    return joined, is_open[places]
