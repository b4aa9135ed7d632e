"""What may be fitted, calibrated on or scored on a cluster: a dataset of Ray, or files that every machine can read."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import ray

from gem_ood.errors import FileFormatError, InputError
from gem_ood.files import open_features
from gem_ood.ray.columns import Columns, choose_columns
from gem_ood.ray.failures import clear_errors
from gem_ood.ray.reducing import OnRows
from gem_ood.ray.spread import BlockRows, ClusterRows, FileRows, first_block

if TYPE_CHECKING:
    from ray.data import Dataset

__all__ = ["choose", "open_dataset", "open_rows"]


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
    if isinstance(dataset, str | PathLike):
        wanted = None if fitted is not None and features == "features" else features
        file = open_features(Path(dataset).absolute(), features=wanted, labels=labels or False, fitted_names=fitted)
        return FileRows(file, rows_per_part, on_rows)
    opened = open_dataset(dataset)
    with clear_errors():
        schema = opened.schema(fetch_if_missing=False)
    # Where only computing some rows tells the columns, these rows are kept: a network may have to start for them.
    first = first_block(opened) if schema is None else None
    present = schema.names if first is None else first.column_names
    columns = choose_columns(present, features, labels, fitted)
    return BlockRows(opened, columns, rows_per_part, on_rows, first)


def open_dataset(dataset: Any) -> "Dataset":
    """Return a dataset: itself, or that of the Parquet files at a path."""
    from ray.data import Dataset

    if isinstance(dataset, Dataset):
        return dataset
    if isinstance(dataset, str | PathLike):
        with clear_errors():
            try:
                return ray.data.read_parquet(str(dataset), include_paths=True)
            except (pa.ArrowException, OSError) as error:
                open_features(dataset, labels=False)  # says which file it is, and what is wrong with it
                raise FileFormatError(f"{dataset} cannot be read as Parquet files ({error}); check the path") from error
    raise InputError(
        f"dataset is of type {type(dataset).__name__}; pass a ray.data.Dataset, such as ray.data.read_parquet(...) "
        f"returns, or the path of Parquet files"
    )


def choose(
    dataset: "Dataset", features: str | Sequence[str], labels: str | None, fitted: Sequence[str] | None = None
) -> Columns:
    """Return the columns of a dataset that are its features and labels."""
    return choose_columns(names_of(dataset), features, labels, fitted)


def names_of(dataset: "Dataset") -> list[str]:
    """Return the names of a dataset's columns; of some, the first rows are computed for them."""
    with clear_errors():
        schema = dataset.schema()
    if schema is None:
        raise InputError("the dataset holds no rows; pass one with at least one")
    return list(schema.names)
