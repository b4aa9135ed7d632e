"""What is kept of verdicts as they pass by, however many: counts, a few quantiles and the first rows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["QUANTILES", "SHOWN_ROWS", "ScoreSummary"]

#: How many rows the table shows; the file of --out has all of them.
SHOWN_ROWS = 10

QUANTILES = {"minimum": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "maximum": 1.0}

#: Up to so many scores are all kept, in 32 MB; of more, only how many there are of each size.
EXACT_ROWS = 4_000_000

#: Scores are rounded to so many binary digits before they are counted: to within 2⁻¹¹ of themselves.
DIGITS = 11

#: So many scores are counted at a time.
ROWS_AT_ONCE = 1 << 20


class ScoreSummary:
    """Takes the columns of verdicts, batch by batch.

    >>> summary = ScoreSummary()
    >>> summary.add({"score": np.array([3.0, 1.0, 2.0]), "nearest_class": np.array(["a", "b", "a"])})
    >>> summary.n_rows, summary.quantiles()["median"]
    (3, 2.0)
    """

    def __init__(self) -> None:
        self.n_rows = self.n_ood = 0
        self.first_rows: list[dict[str, Any]] = []
        self._held: list[NDArray[np.float64]] = []
        self._n_held = 0
        self._extremes = (np.inf, -np.inf)
        self._counts: tuple[NDArray[np.float64], NDArray[np.int64]] | None = None

    @property
    def is_exact(self) -> bool:
        """Whether quantiles are scores of rows; if not, they are within 2⁻¹¹ of such."""
        return self._counts is None

    def add(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Take the columns of a batch."""
        scores = columns["score"]
        if len(scores) == 0:
            return
        for row in range(min(SHOWN_ROWS - len(self.first_rows), len(scores))):
            self.first_rows.append({name: _plain(values[row]) for name, values in columns.items()})
        if "is_ood" in columns:
            self.n_ood += int(columns["is_ood"].sum())
        self.n_rows += len(scores)
        least, most = self._extremes
        self._extremes = min(least, float(scores.min())), max(most, float(scores.max()))
        self._held.append(scores)
        self._n_held += len(scores)
        if self._n_held > (EXACT_ROWS if self.is_exact else ROWS_AT_ONCE):
            self._count()

    def quantiles(self) -> dict[str, float]:
        """Return order statistics of the scores rather than interpolations: scores may be infinite."""
        shares = list(QUANTILES.values())
        if self._counts is None:
            found = np.quantile(np.concatenate(self._held), shares, method="inverted_cdf")
        else:
            self._count()
            values, counts = self._counts
            ranks = np.maximum(np.ceil(np.array(shares) * self.n_rows), 1.0)
            found = values[np.searchsorted(np.cumsum(counts), ranks)]
            found[0], found[-1] = self._extremes
        return dict(zip(QUANTILES, found.tolist(), strict=True))

    def result(self, *, is_calibrated: bool, out: Path | None) -> dict[str, Any]:
        """Return what the command tells as JSON."""
        return {
            "n_rows": self.n_rows,
            "is_calibrated": is_calibrated,
            "n_ood": self.n_ood if is_calibrated else None,
            "ood_share": self.n_ood / self.n_rows if is_calibrated else None,
            "score_quantiles": self.quantiles(),
            "quantiles_are_exact": self.is_exact,
            "out": out,
        }

    def _count(self) -> None:
        """Put the scores that are held among those that are counted; rounding keeps their order."""
        if not self._held:
            return
        mantissas, exponents = np.frexp(np.concatenate(self._held))
        rounded = np.ldexp(np.round(mantissas * 2.0**DIGITS) / 2.0**DIGITS, exponents)
        values, counts = np.unique(rounded, return_counts=True)
        if self._counts is not None:
            joined, places = np.unique(np.concatenate([self._counts[0], values]), return_inverse=True)
            total = np.zeros(len(joined), dtype=np.int64)
            np.add.at(total, places, np.concatenate([self._counts[1], counts]))
            values, counts = joined, total
        self._counts = values, counts
        self._held, self._n_held = [], 0


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
