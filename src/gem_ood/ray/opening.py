"""What may be fitted, calibrated on or scored on a cluster: a dataset of Ray, or files that every machine can read."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from gem_ood.detectors import Detector
from gem_ood.errors import InputError
from gem_ood.features import is_count
from gem_ood.files import FeatureFile, open_features
from gem_ood.files.listing import SET_SUFFIX, is_file_set
from gem_ood.files.parquet_sets import ParquetSet
from gem_ood.ray.columns import PATH, choose_columns
from gem_ood.ray.failures import clear_errors
from gem_ood.ray.reducing import OnRows
from gem_ood.ray.spread import BlockRows, ClusterRows, FileRows, first_block

if TYPE_CHECKING:
    from ray.data import Dataset

__all__ = ["known_names", "open_dataset", "open_rows", "require_fitted"]


def open_rows(
    dataset: Any,
    features: str | Sequence[str],
    labels: str | None,
    *,
    fitted: Sequence[str] | None = None,
    rows_per_part: int | None = None,
    on_rows: OnRows | None = None,
) -> ClusterRows:
    """Return the rows of a dataset, or of the files at a path.

    Args:
        dataset: A `ray.data.Dataset`, or a path.
        features: The column or columns of the features.
        labels: The column of labels; None for none.
        fitted: The columns that a detector was fitted on, if they have names.
        rows_per_part: As `fit` has it.
        on_rows: Called with the number of rows that a pass has done.
    """
    if rows_per_part is not None and not is_count(rows_per_part):
        raise InputError(f"rows_per_part is {rows_per_part!r}; pass a whole number of at least 1, or None")
    if isinstance(dataset, str | PathLike):
        _refuse_address(dataset)
        wanted = None if fitted is not None and features == "features" else features
        return FileRows(_open_file(Path(dataset).absolute(), wanted, labels, fitted), rows_per_part, on_rows)
    opened = open_dataset(dataset)
    present, first = known_names(opened), None
    if present is None:  # the rows that are computed for it are kept: a network may have to start for them
        first = first_block(opened)
        present = first.column_names
    columns = choose_columns(present, features, labels, fitted)
    return BlockRows(opened, columns, rows_per_part, on_rows, first)


def _refuse_address(path: str | PathLike[str]) -> None:
    if "://" in str(path):
        raise InputError(
            f"{path} is an address, not a path that all machines see; pass ray.data.read_parquet({path!r})"
        )


def _open_file(
    path: Path, features: str | Sequence[str] | None, labels: str | None, fitted: Sequence[str] | None
) -> FeatureFile:
    if path.suffix.lower() == ".npy" and features == "features":  # its only array has no name
        features = None
    try:
        return open_features(path, features=features, labels=labels or False, fitted_names=fitted)
    except InputError as error:
        if "for the labels" not in str(error):
            raise
        raise InputError(f"{error}, or pass labels=None for no labels") from error


def open_dataset(dataset: Any) -> "Dataset":
    """Return a dataset: itself, or that of the Parquet files at a path."""
    from ray.data import Dataset

    if isinstance(dataset, Dataset):
        return dataset
    if not isinstance(dataset, str | PathLike):
        raise InputError(
            f"dataset is of type {type(dataset).__name__}; pass a ray.data.Dataset, such as ray.data.read_parquet(...) "
            f"returns, or the path of Parquet files"
        )
    _refuse_address(dataset)
    path = Path(dataset).absolute()
    if not (is_file_set(path) or path.suffix.lower() == SET_SUFFIX):
        raise InputError(f"{dataset} is no Parquet file, directory or pattern of them; pass one, or a ray.data.Dataset")
    files = ParquetSet.open(path)
    with_rows = [str(file.path) for file in files.files if file.n_rows]
    if not with_rows:
        raise InputError(f"{dataset} holds no rows; pass files with at least one")
    with clear_errors():  # a column of their own called path would be written over
        return ray.data.read_parquet(with_rows, include_paths=PATH not in files.schema.names)


def require_fitted(detector: Any) -> None:
    """Raise here, before a worker does, if this is no detector that can score."""
    if not isinstance(detector, Detector):
        raise InputError(f"detector is {detector!r}; pass a fitted detector, such as fit(dataset, GEM()) returns")
    detector._require_fit()


def known_names(dataset: "Dataset") -> list[str] | None:
    """Return the names of a dataset's columns; None where some rows would have to be computed for them."""
    with clear_errors():
        schema = dataset.schema(fetch_if_missing=False)
    return None if schema is None else list(schema.names)
