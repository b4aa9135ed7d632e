"""Fitting a detector to the rows of a cluster."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import ArrayLike

from gem_ood.detectors import Detector
from gem_ood.ray.opening import open_rows
from gem_ood.ray.reducing import OnRows

if TYPE_CHECKING:
    from os import PathLike

    from ray.data import Dataset

__all__ = ["fit"]

Fitted = TypeVar("Fitted", bound=Detector)


def fit(
    dataset: "Dataset | str | PathLike[str]",
    detector: Fitted,
    features: str | Sequence[str] = "features",
    labels: str | None = "label",
    *,
    classes: ArrayLike | None = None,
    rows_per_part: int | None = None,
    on_rows: OnRows | None = None,
) -> Fitted:
    """Fit a detector to in-distribution rows and their labels, and return it.
    """
    rows = open_rows(dataset, features, labels, rows_per_part=rows_per_part, on_rows=on_rows)
    return detector.fit_batches(rows, classes=classes)
