"""Surprising rows: in-distribution rows that look least like it, and out-of-distribution rows that look most."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gem_ood.detectors import Detector
from gem_ood.detectors.columns import without_names_warning

__all__ = ["Extremes", "Surprise", "surprising_rows"]


@dataclass(frozen=True)
class Surprise:
    """One row that a detector judges against what it is.

    Attributes:
        ood: The name of its out-of-distribution set; None for an in-distribution row.
        row: Its place in its set.
        label: Its label, if known.
        nearest_class: The class that the detector finds nearest.
        distance: To that class as the detector measures it; None for scores of logits.
        score: The detector's score.
        p_value: Conformal; None before calibration.
        is_ood: The verdict; None before calibration.
    """

    ood: str | None
    row: int
    label: str | None
    nearest_class: str
    distance: float | None
    score: float
    p_value: float | None
    is_ood: bool | None


class _Row(NamedTuple):
    rank: float
    order: int
    ood: str | None
    row: int
    label: str | None
    features: NDArray[Any]


class Extremes:
    """The few rows of a stream with the lowest scores, or with the highest; of equals the first.

    >>> lowest = Extremes(2, sign=1.0)
    >>> lowest.add(np.array([5.0, 1.0, 3.0]), np.eye(3), ood=None, first_row=10, labels=None)
    >>> [row.row for row in lowest.rows]
    [11, 12]
    """

    def __init__(self, n_rows: int, *, sign: float) -> None:
        self.rows: list[_Row] = []
        self._n_rows, self._sign, self._n_seen = n_rows, sign, 0

    def add(
        self,
        scores: NDArray[np.float64],
        features: NDArray[Any],
        *,
        ood: str | None,
        first_row: int,
        labels: NDArray[Any] | None,
    ) -> None:
        """Take in a batch."""
        ranks = self._sign * scores
        limit = self.rows[-1].rank if len(self.rows) == self._n_rows else np.inf
        places = np.flatnonzero(ranks < limit) if np.isfinite(limit) else np.arange(len(ranks))
        chosen = places[np.argsort(ranks[places], kind="stable")[: self._n_rows]]
        found = [
            _Row(
                float(ranks[place]),
                self._n_seen + int(place),
                ood,
                first_row + int(place),
                None if labels is None else str(labels[place]),
                np.array(features[place]),
            )
            for place in chosen
        ]
        self._n_seen += len(scores)
        self.rows = sorted([*self.rows, *found], key=lambda row: row[:2])[: self._n_rows]


def surprising_rows(detector: Detector, inside: Extremes, outside: Extremes, n_rows: int) -> tuple[Surprise, ...]:
    """Return at most n_rows: half of either kind, or more of one where the other has too few."""
    n_inside = max(n_rows - n_rows // 2, n_rows - len(outside.rows))
    chosen = [*inside.rows[:n_inside], *outside.rows[: max(n_rows - len(inside.rows), n_rows - n_inside)]]
    return _explained(detector, chosen) if chosen else ()


def _explained(detector: Detector, rows: Sequence[_Row]) -> tuple[Surprise, ...]:
    with without_names_warning():
        explanation = detector.explain(np.array([row.features for row in rows]))
    nearest = [str(name) for name in explanation.nearest_class]
    names = [str(name) for name in explanation.classes]
    distances = explanation.distances
    return tuple(
        Surprise(
            ood=row.ood,
            row=row.row,
            label=row.label,
            nearest_class=nearest[place],
            distance=None if distances is None else float(distances[place, names.index(nearest[place])]),
            score=float(explanation.scores[place]),
            p_value=None if explanation.p_values is None else float(explanation.p_values[place]),
            is_ood=None if explanation.is_ood is None else bool(explanation.is_ood[place]),
        )
        for place, row in enumerate(rows)
    )
