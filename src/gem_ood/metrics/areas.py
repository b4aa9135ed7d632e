"""AUROC, both AUPRs and the detection error in one walk, from the lowest score to the highest (P51, P52).

The walk goes by cache-sized chunks and knows, at each distinct score, how many rows of each side lie before
it. With no ties in a chunk, every row is its own step and the positions of the rows of a side are all that is
needed; with ties, rows of equal score are one step.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gem_ood.features import chunks
from gem_ood.metrics.labelled import CHUNK_ROWS

__all__ = ["Areas", "measure_areas"]

Floats = NDArray[np.float64]


class Areas(NamedTuple):
    """What the whole range of thresholds says about two sets of scores."""

    auroc: float
    aupr_in: float
    aupr_out: float
    detection_error: float


def measure_areas(labelled: NDArray[np.int64], n_id: int, *, trapezoid: bool) -> Areas:
    """Return the areas under the curves of a `labelled_sort` that holds n_id in-distribution rows.

    Example:
        >>> from gem_ood.metrics.labelled import labelled_sort
        >>> measure_areas(labelled_sort(np.array([2.0, 3.0]), np.array([1.0])), 2, trapezoid=False)
        Areas(auroc=1.0, aupr_in=1.0, aupr_out=1.0, detection_error=0.0)
    """
    walk = _Walk(n_id, len(labelled) - n_id, trapezoid)
    ramp = np.arange(CHUNK_ROWS, dtype=np.float64)
    for rows in chunks(len(labelled), CHUNK_ROWS):
        bits = labelled[rows]
        following = labelled[rows.start + 1 : rows.stop + 1]
        # Unsigned, so that a change of sign counts as a large difference too.
        difference = (bits[: len(following)] ^ following).view(np.uint64)
        label = bits & 1
        if walk.all_stepped == rows.start and (len(difference) == 0 or difference.min() > 1):
            walk.step_rows(rows.start, label.astype(np.bool_), ramp)
        else:
            ends = np.flatnonzero(difference > 1)
            if rows.stop == len(labelled):
                ends = np.append(ends, len(bits) - 1)
            walk.step_groups(rows.start, label, ends)
    return walk.areas()


class _Walk:
    """The running sums. A step counts the rows at or above it (ID side) or at or below it (OOD side)."""

    def __init__(self, n_id: int, n_ood: int, trapezoid: bool) -> None:
        self.n_id, self.n_ood, self.n_all = n_id, n_ood, n_id + n_ood
        self.trapezoid = trapezoid
        self.id_read = 0  # rows of the chunks so far
        self.id_stepped = self.all_stepped = 0  # rows of the steps so far: a tie may still be open
        self.pairs_lost = 0.0
        self.precision_in = self.precision_out = 0.0
        self.best_gap = 0.0  # of TPR - FPR, times n_id · n_ood to be exact; accepting nothing has 0

    def step_rows(self, start: int, is_id: NDArray[np.bool_], ramp: Floats) -> None:
        """Step once per row: no row of this chunk is tied."""
        positions = np.flatnonzero(is_id)
        n_own = len(positions)
        above = float(self.n_all - start) - positions.astype(np.float64)
        self._add_id(float(self.n_id - self.id_read) - ramp[:n_own], above)
        positions = np.flatnonzero(~is_id)
        below = positions.astype(np.float64) + float(start + 1)
        self._add_ood(ramp[: len(positions)] + float(start - self.id_read + 1), below)
        self.id_read += n_own
        self.id_stepped, self.all_stepped = self.id_read, start + len(is_id)

    def step_groups(self, start: int, label: NDArray[np.int64], ends: NDArray[np.intp]) -> None:
        """Step once per distinct score that ends in this chunk, at the rows `ends`."""
        id_counts = np.cumsum(label)
        if len(ends):
            id_bounds = np.empty(len(ends) + 1)  # rows before each step, and after the last
            id_bounds[0] = self.id_stepped
            np.add(id_counts[ends], self.id_read, out=id_bounds[1:])
            all_bounds = np.empty(len(ends) + 1)
            all_bounds[0] = self.all_stepped
            np.add(ends, start + 1, out=all_bounds[1:])
            n_id, n_rows = np.diff(id_bounds), np.diff(all_bounds)
            n_ood = n_rows - n_id
            self._add_id(self.n_id - id_bounds[:-1], self.n_all - all_bounds[:-1], n_id, n_rows)
            self._add_ood(all_bounds[1:] - id_bounds[1:], all_bounds[1:], n_ood, n_rows)
            self.pairs_lost -= float((n_id * n_ood).sum()) / 2  # a tie is half won
            self.id_stepped, self.all_stepped = int(id_bounds[-1]), int(all_bounds[-1])
        self.id_read += int(id_counts[-1])

    def areas(self) -> Areas:
        n_pairs = self.n_id * self.n_ood
        return Areas(
            auroc=1 - self.pairs_lost / n_pairs,
            aupr_in=self.precision_in / self.n_id,
            aupr_out=self.precision_out / self.n_ood,
            detection_error=(1 - self.best_gap / n_pairs) / 2,
        )

    def _add_id(self, own: Floats, flagged: Floats, n_own: Floats | None = None, n_rows: Floats | None = None) -> None:
        self.precision_in += self._precision(own, flagged, n_own, n_rows)
        wrong = flagged - own
        self.pairs_lost += float((wrong if n_own is None else wrong * n_own).sum())
        own *= self.n_ood
        wrong *= self.n_id
        own -= wrong
        self.best_gap = max(self.best_gap, float(own.max(initial=0.0)))

    def _add_ood(self, own: Floats, flagged: Floats, n_own: Floats | None = None, n_rows: Floats | None = None) -> None:
        self.precision_out += self._precision(own, flagged, n_own, n_rows)

    def _precision(self, own: Floats, flagged: Floats, n_own: Floats | None, n_rows: Floats | None) -> float:
        """Sum, over the own rows of the steps, of precision there; or of its mean with the step before."""
        precision = own / flagged
        if self.trapezoid:
            own_before = own - (1 if n_own is None else n_own)
            flagged_before = flagged - (1 if n_rows is None else n_rows)
            # Before the first row precision is 1, by scikit-learn's convention.
            before = np.divide(own_before, flagged_before, out=np.ones_like(own), where=flagged_before > 0)
            precision = (precision + before) / 2
        return float((precision if n_own is None else precision * n_own).sum())
