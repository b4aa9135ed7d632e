"""What a detector answers with: verdicts for many rows, and an explanation for a few."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Explanation", "Verdicts"]

#: A printed explanation shows this many rows and this many classes of each.
SHOWN_ROWS = 10
SHOWN_CLASSES = 3


@dataclass(frozen=True, eq=False)
class Verdicts:
    """One entry per row; `p_value` and `is_ood` are None until the detector is calibrated."""

    score: NDArray[np.float64]
    nearest_class: NDArray[Any]
    p_value: NDArray[np.float64] | None
    is_ood: NDArray[np.bool_] | None

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns of a table of verdicts, by name; those of a detector without a threshold are fewer.

        >>> list(Verdicts(np.zeros(2), np.array(["cat", "dog"]), None, None).columns())
        ['score', 'nearest_class']
        """
        columns: dict[str, NDArray[Any]] = {"score": self.score}
        if self.p_value is not None and self.is_ood is not None:
            columns |= {"p_value": self.p_value, "is_ood": self.is_ood}
        return columns | {"nearest_class": self.nearest_class}

    @classmethod
    def joined(cls, parts: "Sequence[Verdicts]") -> "Verdicts":
        """Return the verdicts on rows that follow one another, by one detector, as one."""
        columns = [part.columns() for part in parts]
        whole = {name: np.concatenate([column[name] for column in columns]) for name in columns[0]}
        return cls(whole["score"], whole["nearest_class"], whole.get("p_value"), whole.get("is_ood"))


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why rows were judged as they were; prints as one readable paragraph per row.

    Attributes:
        classes: Class names, one per column of the arrays below.
        nearest_class: Name of the class each row is nearest to.
        responsibilities: n × k, the posterior probability of each class if the row is in-distribution.
        distances: n × k, the distance to each class as the detector measures it: Mahalanobis, in standard deviations,
            for Gaussian detectors, Euclidean for KNN; None for scores of logits.
        scores: The score of each row; higher = more in-distribution.
        threshold: Rows below it are out; None before calibration.
        p_values: Conformal p-values; None before calibration.
        is_ood: The verdicts; None before calibration.
    """

    classes: NDArray[Any]
    nearest_class: NDArray[Any]
    responsibilities: NDArray[np.float64]
    distances: NDArray[np.float64] | None
    scores: NDArray[np.float64]
    threshold: float | None
    p_values: NDArray[np.float64] | None
    is_ood: NDArray[np.bool_] | None

    def __str__(self) -> str:
        lines = [self._line(row) for row in range(min(len(self.scores), SHOWN_ROWS))]
        if len(self.scores) > SHOWN_ROWS:
            lines.append(f"... and {len(self.scores) - SHOWN_ROWS} more rows")
        return "\n".join(lines)

    def _line(self, row: int) -> str:
        verdict = "not calibrated"
        if self.is_ood is not None and self.p_values is not None:
            verdict = "out-of-distribution" if self.is_ood[row] else "in-distribution"
            verdict += f" (p = {self.p_values[row]:.4f})"
        limit = "" if self.threshold is None else f", threshold {self.threshold:.6g}"
        best = np.argsort(-self.responsibilities[row], kind="stable")[:SHOWN_CLASSES]
        shares = ", ".join(self._class(row, place) for place in best)
        return f"row {row}: {verdict}; score {self.scores[row]:.6g}{limit}; {shares}"

    def _class(self, row: int, place: int) -> str:
        share = f"class {self.classes[place]} {self.responsibilities[row, place]:.1%}"
        return share if self.distances is None else f"{share} at distance {self.distances[row, place]:.4g}"
