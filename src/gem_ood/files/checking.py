"""Rows that a file gave, made ready for every detector: finite features, whole numbers or text as labels."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.features import as_features, as_labels, refuse_non_finite

__all__ = ["checked_features", "checked_labels"]


def checked_features(features: NDArray[Any], path: Path, first_row: int) -> NDArray[Any]:
    """Return features that are numbers and finite; an error names the file and the row of it."""
    name = f"{path}: features"
    array = as_features(features, name=name)
    if array.dtype.kind == "f":
        refuse_non_finite(array, first_row=first_row, name=name)
    return array


def checked_labels(labels: NDArray[Any], path: Path, first_row: int) -> NDArray[Any]:
    """Return labels as int64 or text; an error names the file and the row of it."""
    if labels.dtype.kind == "f":
        wrong = ~(np.isfinite(labels) & (labels == np.round(labels)))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(
                f"{path}: labels row {first_row + row} is {labels.flat[row]}; labels are whole numbers "
                f"or strings: name another column with labels, or ignore them"
            )
    return as_labels(labels, len(labels), name=f"{path}: labels")
