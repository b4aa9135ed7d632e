"""Labels: names of classes become places among the sorted classes, by which rows are counted and summed up."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import InputError
from gem_ood.features import as_labels, chunks

__all__ = [
    "LABELS_PER_CHUNK",
    "Codes",
    "class_counts",
    "class_names",
    "distinct_labels",
    "encode",
]

#: Labels are looked up this many at a time, so that what is held meanwhile does not grow with the rows.
LABELS_PER_CHUNK = 1 << 16

#: The place of each row's class.
Codes = NDArray[np.unsignedinteger[Any]]


def class_names(classes: ArrayLike | None) -> NDArray[Any]:
    """Return the declared classes, sorted; without any, the one class of rows without labels."""
    if classes is None:
        return np.zeros(1, dtype=np.int64)
    array = np.asarray(classes)
    names = np.unique(as_labels(array, array.size, name="classes"))
    if len(names) == 0:
        raise InputError("classes is empty; declare at least one class")
    return names


def distinct_labels(labels: ArrayLike, n_rows: int) -> NDArray[Any]:
    """Return the names that occur among these labels, sorted, with little memory however many rows there are.

    >>> distinct_labels(["b", "a", "b"], 3)
    array(['a', 'b'], dtype='<U1')
    """
    values = as_labels(labels, n_rows)
    found = [_distinct(values[rows]) for rows in chunks(n_rows, LABELS_PER_CHUNK)]
    return np.unique(np.concatenate(found)) if found else values


def _distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the sorted names among these; whole numbers close to each other are counted, not compared."""
    if values.dtype.kind == "i":
        low, high = int(values.min()), int(values.max())
        if high - low < len(values):
            return np.flatnonzero(np.bincount(values - low)) + low
    return np.unique(values)


def encode(labels: ArrayLike | None, classes: NDArray[Any], n_rows: int) -> Codes:
    """Return the place of each row's label among the sorted classes; a label outside them is an error.

    Rows without labels are all of the first class. The places are of the smallest type that holds them: for millions of
    rows of few features, eight bytes each would count.
    """
    codes = np.zeros(n_rows, dtype=np.min_scalar_type(max(1, len(classes) - 1)))
    if labels is None:
        return codes
    values = as_labels(labels, n_rows)
    if n_rows == 0:
        return codes
    if values.dtype.kind != classes.dtype.kind:
        raise InputError(
            f"labels are {_kind(values)} (first: {values[0]!r}) but the classes are {_kind(classes)} "
            f"(first: {classes[0]!r}); use one kind of label"
        )
    for rows in chunks(n_rows, LABELS_PER_CHUNK):
        part = values[rows]
        codes[rows] = places = _places(part, classes)
        unseen = classes[places] != part
        if unseen.any():
            row = int(np.argmax(unseen))
            raise InputError(
                f"labels row {rows.start + row} is {part[row].item()!r}, which is not among the {len(classes)} classes "
                f"of this fit; declare every class in the first call: partial_fit(X, y, classes=[...])"
            )
    return codes


def _places(values: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.intp]:
    """Return where each value stands among the sorted classes, or anywhere if it is not one of them."""
    if classes.dtype.kind == "i" and int(classes[-1]) - int(classes[0]) == len(classes) - 1:  # 0, 1, 2, ...
        return np.asarray(np.clip(values, classes[0], classes[-1]) - classes[0])
    return np.minimum(np.searchsorted(classes, values), len(classes) - 1)


def class_counts(codes: Codes, n_classes: int) -> NDArray[np.int64]:
    """Return how many rows each class has.

    >>> class_counts(np.array([0, 2, 2], dtype=np.uint8), 3)
    array([1, 0, 2])
    """
    counts = np.zeros(n_classes, dtype=np.int64)
    for rows in chunks(len(codes), LABELS_PER_CHUNK):
        counts += np.bincount(codes[rows], minlength=n_classes)
    return counts


def _kind(labels: NDArray[Any]) -> str:
    return "strings" if labels.dtype.kind == "U" else "whole numbers"
