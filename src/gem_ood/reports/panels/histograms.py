"""Histograms of scores: in-distribution rows against each out-of-distribution set, on one axis that outliers spare."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import InputError
from gem_ood.features import as_scores

__all__ = ["ScoreHistogram", "score_histogram"]

#: How far beyond the in-distribution quartiles the axis may reach, in interquartile ranges: 11 standard deviations of
#: a Gaussian, so that a far set leaves it a third of the axis.
REACH = 8.0

#: The share of rows at each end that an axis need not show, of in-distribution rows and of another set.
ID_TAIL, OOD_TAIL = 0.001, 0.005

#: Levels between which in-distribution rows are spread, the first that are not tied.
SPREAD_LEVELS = ((0.25, 0.75), (0.1, 0.9), (0.01, 0.99), (0.0, 1.0))

#: Scores beyond this size, infinite ones too, count as this far: differences of them are still finite.
LARGEST = 1e300

#: The narrowest axis, relative to its scores and at all: edges of bins must differ.
NARROWEST, TINIEST = 1e-9, 1e-290


@dataclass(frozen=True, eq=False)
class ScoreHistogram:
    """The share of each set's rows in each bin; the two end bins hold the rows beyond the axis too.

    A bin holds the scores from its left edge up to, and without, its right edge. With a finite threshold that is one of
    the edges, so the bins left of it hold exactly the rows that are out.

    Attributes:
        edges: Ends of the bins, ascending and evenly spaced.
        id: Share of the in-distribution rows in each bin.
        ood: The same of each out-of-distribution set, by name.
        id_beyond: How many in-distribution rows lie below and above all edges.
        ood_beyond: The same of each out-of-distribution set.
    """

    edges: NDArray[np.float64]
    id: NDArray[np.float64]
    ood: Mapping[str, NDArray[np.float64]]
    id_beyond: tuple[int, int]
    ood_beyond: Mapping[str, tuple[int, int]]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as lists and numbers that JSON can write."""
        return {
            "edges": self.edges.tolist(),
            "id": self.id.tolist(),
            "ood": {name: shares.tolist() for name, shares in self.ood.items()},
            "beyond": {
                "id": list(self.id_beyond),
                "ood": {name: list(counts) for name, counts in self.ood_beyond.items()},
            },
        }


def score_histogram(
    id_scores: ArrayLike,
    ood_scores: Mapping[str, ArrayLike],
    *,
    threshold: float | None = None,
    n_bins: int = 60,
) -> ScoreHistogram:
    """Return the histograms of in-distribution scores and of each out-of-distribution set, in the same bins.

    The axis is that of the in-distribution rows, widened towards the other sets by at most 8 of its interquartile
    ranges, and to the threshold however far it is. Rows beyond are put into the end bins and counted.

    Args:
        id_scores: One score per in-distribution row; higher = more in-distribution. Infinities are allowed.
        ood_scores: The scores of each out-of-distribution set, by name; may be empty.
        threshold: Where a detector cuts; an infinite one has no place on the axis.
        n_bins: How many bins there are, at least 2.

    Example:
        >>> found = score_histogram([1.0, 2.0, 3.0, 4.0], {"far": [-1e9]}, threshold=2.0, n_bins=5)
        >>> found.edges.round(2).tolist(), found.id.tolist()
        ([-10.25, -7.19, -4.12, -1.06, 2.0, 5.06], [0.0, 0.0, 0.0, 0.25, 0.75])
        >>> found.ood["far"].tolist(), found.ood_beyond["far"]
        ([1.0, 0.0, 0.0, 0.0, 0.0], (1, 0))
    """
    if isinstance(n_bins, bool) or not isinstance(n_bins, int | np.integer) or n_bins < 2:
        raise InputError(f"n_bins is {n_bins!r}; pass a whole number of at least 2, for example 60")
    if threshold is not None and math.isnan(threshold):
        raise InputError("threshold is NaN; pass a score to cut at, or None")
    inside = as_scores(id_scores, name="id_scores")
    outside = {name: as_scores(scores, name=f"ood_scores[{name!r}]") for name, scores in ood_scores.items()}
    cut = threshold if threshold is not None and math.isfinite(threshold) else None
    edges = _edges(*_span(inside, list(outside.values()), cut), cut, int(n_bins))
    return ScoreHistogram(
        edges=edges,
        id=_shares(inside, edges),
        ood={name: _shares(scores, edges) for name, scores in outside.items()},
        id_beyond=_beyond(inside, edges),
        ood_beyond={name: _beyond(scores, edges) for name, scores in outside.items()},
    )


def _span(
    inside: NDArray[np.float64], outside: Sequence[NDArray[np.float64]], cut: float | None
) -> tuple[float, float]:
    """Return the lowest and the highest score that the axis shows."""
    lowest, highest = _limits(inside, outside)
    ends = [_ends(inside, ID_TAIL, lowest, highest), *(_ends(scores, OOD_TAIL, lowest, highest) for scores in outside)]
    if cut is not None:
        ends.append((_bounded(cut), _bounded(cut)))
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    if low == high:
        return low - 0.5, high + 0.5
    return low, high


def _limits(inside: NDArray[np.float64], outside: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """Return how far the axis may reach: so many spreads beyond where most of the in-distribution rows lie."""
    finite = next((rows for rows in map(_finite, (inside, *outside)) if len(rows)), np.zeros(1))
    quantiles = np.quantile(finite, np.unique(SPREAD_LEVELS))
    found = dict(zip(np.unique(SPREAD_LEVELS).tolist(), quantiles.tolist(), strict=True))
    for lower, upper in SPREAD_LEVELS:
        low, high = found[lower], found[upper]
        if high > low:
            return low - REACH * (high - low), high + REACH * (high - low)
    size = max(1.0, abs(found[0.0]))  # all are tied, so their own size has to do
    return found[0.0] - REACH * size, found[0.0] + REACH * size


def _finite(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the finite scores, none larger than differences can bear."""
    return np.clip(scores[np.isfinite(scores)], -LARGEST, LARGEST)


def _ends(scores: NDArray[np.float64], tail: float, lowest: float, highest: float) -> tuple[float, float]:
    # Scores of rows themselves, so that an axis shows all of a few rows.
    shown = np.clip(scores, lowest, highest)
    return float(np.quantile(shown, tail, method="lower")), float(np.quantile(shown, 1.0 - tail, method="higher"))


def _bounded(score: float) -> float:
    return min(max(score, -LARGEST), LARGEST)


def _edges(low: float, high: float, cut: float | None, n_bins: int) -> NDArray[np.float64]:
    """Return evenly spaced edges over the span at least, one of them the cut itself."""
    room = max(0.0, max(NARROWEST * max(abs(low), abs(high)), TINIEST) - (high - low))
    low, high = low - 0.5 * room, high + 0.5 * room
    if cut is None:
        return np.linspace(low, high, n_bins + 1)
    place = _bounded(cut)
    n_left = min(max(round((place - low) / (high - low) * n_bins), 1), n_bins - 1)
    width = max((place - low) / n_left, (high - place) / (n_bins - n_left))
    return np.asarray(place + width * (np.arange(n_bins + 1) - n_left))


def _shares(scores: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    n_bins = len(edges) - 1
    places = np.searchsorted(edges[1:-1], scores, side="right")
    return np.bincount(places, minlength=n_bins) / len(scores)


def _beyond(scores: NDArray[np.float64], edges: NDArray[np.float64]) -> tuple[int, int]:
    return int(np.count_nonzero(scores < edges[0])), int(np.count_nonzero(scores > edges[-1]))
