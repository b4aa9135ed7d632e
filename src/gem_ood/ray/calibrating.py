"""Calibrating a detector on the held-out rows of a cluster."""

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import ray
from numpy.typing import NDArray

from gem_ood.batches import Batches
from gem_ood.detectors import Detector
from gem_ood.detectors.columns import fitted_names, without_names_warning
from gem_ood.errors import InputError
from gem_ood.features import as_features
from gem_ood.ray.opening import open_rows
from gem_ood.ray.reducing import OnRows
from gem_ood.ray.spread import ClusterRows, fetched
from gem_ood import thresholds

if TYPE_CHECKING:
    from ray.data import Dataset

__all__ = ["calibrate", "calibrate_on"]

#: So many calibration scores are all kept, as on one machine; of more, those that p-values within 0.1 % need.
KEPT_SCORES = 1_000_000

Fitted = TypeVar("Fitted", bound=Detector)


def calibrate(
    dataset: "Dataset | str | PathLike[str]",
    detector: Fitted,
    features: str | Sequence[str] = "features",
    *,
    tpr: float | None = None,
    confidence: float | None = None,
    method: str | None = None,
    on_rows: OnRows | None = None,
) -> Fitted:
    """Set a detector's threshold from held-out in-distribution rows on a cluster, and return it."""
    rows = open_rows(dataset, features, None, fitted=fitted_names(detector), on_rows=on_rows)
    return calibrate_on(rows, detector, tpr=tpr, confidence=confidence, method=method)


def calibrate_on(
    rows: ClusterRows,
    detector: Fitted,
    *,
    tpr: float | None = None,
    confidence: float | None = None,
    method: str | None = None,
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
        detector.calibrate_scores(np.concatenate(list(held.arrays())), **options)
    else:
        share = detector.tpr if tpr is None else tpr
        order = thresholds.threshold_order(held.n_rows, tpr=share, confidence=confidence, method=method)
        detector.calibrate_ranked(thresholds.rank_scores(held, orders=[order]), **options)
    return detector
