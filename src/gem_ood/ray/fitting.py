"""Fitting a detector to the rows of a cluster."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from numpy.typing import ArrayLike

from gem_ood.detectors import Detector
from gem_ood.errors import InputError
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
    """Fit a detector to the in-distribution rows of a cluster, and return it.

    The result is that of `detector.fit` on all rows, up to rounding, however they are partitioned. Each part is summed
    up where it lies, and the sums are merged eight by eight in a tree of tasks: this process sees one merged summary,
    O(k·m + m²) numbers, and no rows but the first thousand. Detectors that need several passes run the dataset as
    often: it must give the same rows each time, so materialize one that draws rows without a seed. A bank of rows
    (`KNN`, `NNGuide`) is a sample drawn by the rows' content, the same however they are partitioned; it must have a
    size of its own, or be a share that is no more than a million rows.

    Args:
        dataset: Any `ray.data.Dataset`. Or the path of a Parquet file, a directory of them, or another file of rows,
            that every machine sees: quicker, and an error names file and row group.
        detector: A detector such as `GEM()`; it is fitted in place, and as it was if the fit fails.
        features: The column of lists or tensors that holds the features, or the columns of numbers that make them up.
        labels: The column of labels, whole numbers or strings; None for no labels.
        classes: All class names, as `fit_batches` takes them.
        rows_per_part: Rows that one task sums up. By default a dataset's blocks as they come, and some 256 MB of a
            file. A summary costs as much to merge as k rows to add: with very many classes, parts of many more rows
            than classes pay.
        on_rows: Called now and then with the number of rows that the pass has done.

    Raises:
        InputError: Rows, labels or columns are not what they must be; a step before this one failed.
        FileFormatError: A file is damaged; the message names it and, where it is known, the row group.
        ClusterError: Workers died, or ran out of memory, more often than they are started again.

    Example:
        >>> import ray
        >>> from gem_ood import GEM
        >>> rows = [{"features": [float(row % 7), float(row % 5)], "label": row % 2} for row in range(70)]
        >>> detector = fit(ray.data.from_items(rows, override_num_blocks=2), GEM())
        >>> detector.classes_, detector.statistics_.n_rows
        (array([0, 1]), 70)
    """
    if not isinstance(detector, Detector):
        raise InputError(f"detector is {detector!r}; pass a detector such as GEM()")
    rows = open_rows(dataset, features, labels, rows_per_part=rows_per_part, on_rows=on_rows)
    return detector.fit_batches(rows, classes=classes)
