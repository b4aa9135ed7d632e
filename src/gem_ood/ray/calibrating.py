"""Calibrating a detector on the held-out rows of a cluster."""

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import ray
from numpy.typing import NDArray

from gem_ood.batches import Batches
from gem_ood.detectors import Combine, Detector
from gem_ood.detectors.columns import fitted_names, without_names_warning
from gem_ood.errors import InputError
from gem_ood.features import as_features
from gem_ood.files.streaming import KEPT_SCORES, calibrate_on_ranks
from gem_ood.ray.opening import open_rows, require_fitted
from gem_ood.ray.reducing import OnRows
from gem_ood.ray.spread import ClusterRows, fetched
from gem_ood.thresholds import threshold_order
from gem_ood.thresholds.calibration import Method

if TYPE_CHECKING:
    from ray.data import Dataset

__all__ = ["calibrate", "calibrate_on"]

#: So many rows suffice for any guarantee that could be asked.
LARGE_NUMBER = 10**15

Fitted = TypeVar("Fitted", bound=Detector)


def calibrate(
    dataset: "Dataset | str | PathLike[str]",
    detector: Fitted,
    features: str | Sequence[str] = "features",
    *,
    tpr: float | None = None,
    confidence: float | None = None,
    method: Method | None = None,
    on_rows: OnRows | None = None,
) -> Fitted:
    """Set a detector's threshold from held-out in-distribution rows on a cluster, and return it.

    The threshold is the exact order statistic that `detector.calibrate` on all rows would take. Scores stay in the
    cluster's memory, eight bytes a row. Up to a million of them come here and are kept in the detector. Of more, as
    from a file, a few passes over the scores count them in ever finer spans (`gem_ood.thresholds.rank_scores`);
    a part sends at most 8 MB, whatever the number of rows. The detector then keeps some 13,000 scores with their exact
    ranks: p-values are at most 0.1 % above the exact ones, and never below.

    Args:
        dataset: Any `ray.data.Dataset`, or a path, as for `fit`; rows that the fit has not seen.
        detector: A fitted detector; its threshold is set in place.
        features: As for `fit`; by default also the columns that the detector was fitted on.
        tpr: The share of in-distribution rows to keep; the detector's own `tpr` unless given.
        confidence: Ask for the PAC guarantee with this confidence.
        method: `"conformal"`, `"pac"` or `"quantile"`.
        on_rows: Called now and then with the number of rows that are scored.

    Example:
        >>> import ray
        >>> from gem_ood import GEM
        >>> rows = [[float(row % 7), float(row % 5)] for row in range(140)]
        >>> held_out = ray.data.from_items([{"features": row} for row in rows[70:]], override_num_blocks=2)
        >>> threshold = calibrate(held_out, GEM().fit(rows[:70]), tpr=0.9).threshold_
        >>> threshold.order, threshold.n_rows
        (7, 70)
    """
    require_fitted(detector)
    share = detector.tpr if tpr is None else tpr
    threshold_order(LARGE_NUMBER, tpr=share, confidence=confidence, method=method)  # refuses now what is refused then
    rows = open_rows(dataset, features, None, fitted=fitted_names(detector), on_rows=on_rows)
    return calibrate_on(rows, detector, tpr=tpr, confidence=confidence, method=method)


def calibrate_on(
    rows: ClusterRows,
    detector: Fitted,
    *,
    tpr: float | None = None,
    confidence: float | None = None,
    method: Method | None = None,
) -> Fitted:
    """Set a detector's threshold from rows that are opened."""
    reference = ray.put(detector)

    def evidence(batches: Batches) -> NDArray[np.float64]:
        scorer = fetched(reference)
        with without_names_warning():
            return np.concatenate([scorer.evidence(as_features(X)) for X, _ in batches])

    held = rows.held(evidence)
    if held.n_rows == 0:
        raise InputError("the dataset holds no rows; pass one with at least one")
    options: dict[str, Any] = {"tpr": tpr, "confidence": confidence, "method": method}
    if held.n_rows <= KEPT_SCORES:
        return detector.calibrate_scores(np.concatenate(list(held.arrays())), **options)
    if isinstance(detector, Combine):
        raise InputError(
            f"Combine calibrates on at most {KEPT_SCORES:,} rows but {held.n_rows:,} came; pass a sample of them, such "
            f"as dataset.random_sample({0.9 * KEPT_SCORES / held.n_rows:.2g})"
        )
    return calibrate_on_ranks(detector, held, **options)
