"""The way in: whatever a caller holds becomes a checked NumPy array here, without a full copy.

NumPy arrays and memory maps, pandas and polars frames, torch CPU tensors and nested lists are read through the
array protocol; none of those libraries is imported. Values are checked chunk by chunk where they are used, so
nothing here makes a second array of the caller's size.
"""

from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from gem_ood.errors import InputError

__all__ = [
    "as_features",
    "as_labels",
    "as_scores",
    "chunks",
    "even_size",
    "is_count",
    "is_share",
    "refuse_non_finite",
    "rows_per_chunk",
    "unit_length",
]

#: A working buffer of this many bytes stays in the outer caches of a current processor.
CHUNK_BYTES = 6 << 20


class _WrongTypeError(InputError, TypeError):
    """Values that are not numbers; both kinds of error, because callers expect either."""


def as_features(X: ArrayLike, *, name: str = "features", min_rows: int = 1) -> NDArray[Any]:
    """Return X as a two-dimensional array of real numbers, sharing memory with X where it can.

    >>> as_features([[1, 2], [3, 4]]).shape
    (2, 2)
    >>> as_features([1.0, 2.0])
    Traceback (most recent call last):
        ...
    gem_ood.errors.InputError: features must have two dimensions (rows, features) but has shape (2,). Reshape your
    data: one row is features.reshape(1, -1), one feature is features.reshape(-1, 1)
    """
    array = _to_array(X, name)
    if array.ndim != 2:
        raise InputError(
            f"{name} must have two dimensions (rows, features) but has shape {array.shape}. Reshape your data: one "
            f"row is {name}.reshape(1, -1), one feature is {name}.reshape(-1, 1)"
        )
    if array.shape[1] == 0:
        raise InputError(
            f"{name} has 0 feature(s) (shape={array.shape}) while a minimum of 1 is required; pass at least one column"
        )
    if array.shape[0] < min_rows:
        raise InputError(
            f"{name} has n_samples={array.shape[0]} rows (shape={array.shape}) while a minimum of {min_rows} is "
            f"required; pass more rows"
        )
    if array.dtype.kind not in "fiub":
        array = _as_numbers(array, name)
    if array.dtype.itemsize > 8:  # long double: nothing below computes in more than float64
        array = array.astype(np.float64)
    return array


def as_labels(labels: ArrayLike, n_rows: int, *, name: str = "labels") -> NDArray[Any]:
    """Return one label per row as an int64 or a string array.

    >>> as_labels(["cat", "dog"], 2)
    array(['cat', 'dog'], dtype='<U3')
    >>> as_labels([0, 1, 1], 4)
    Traceback (most recent call last):
        ...
    gem_ood.errors.InputError: labels has 3 rows but features has 4; pass one label per row
    """
    array = _to_array(labels, name)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(f"{name} must have one dimension but has shape {array.shape}; pass one label per row")
    if len(array) != n_rows:
        raise InputError(f"{name} has {len(array)} rows but features has {n_rows}; pass one label per row")
    if array.dtype.kind == "O":
        array = _labels_from_objects(array, name)
    kind = array.dtype.kind
    if kind == "f":
        wrong = ~(np.isfinite(array) & (array == np.round(array)) & (np.abs(array) < 2.0**63))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(
                f"Unknown label type: {name} row {row} is {array[row]!r}; labels are whole numbers or strings"
            )
    elif kind == "u" and array.itemsize == 8 and len(array) and array.max() > np.iinfo(np.int64).max:
        raise InputError(f"{name} holds {array.max()}, above 2**63 - 1; pass such labels as strings")
    elif kind == "S":
        try:
            return np.char.decode(array, "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{name} holds bytes that are not UTF-8 text ({error}); pass strings") from error
    elif kind not in "iubUT":
        raise InputError(f"{name} has dtype {array.dtype}; labels are whole numbers or strings")
    return array.astype(str) if kind in "UT" else array.astype(np.int64, copy=False)


def as_scores(scores: ArrayLike, *, name: str = "scores") -> NDArray[np.float64]:
    """Return scores as a one-dimensional float64 array; NaN is refused, infinities are ordinary extremes.

    >>> as_scores([0.5, 2])
    array([0.5, 2. ])
    """
    array = _to_array(scores, name)
    if array.ndim != 1:
        raise InputError(f"{name} must have one dimension but has shape {array.shape}; pass one score per row")
    if len(array) == 0:
        raise InputError(f"{name} is empty; pass at least one score")
    if array.dtype.kind not in "fiub":
        array = _as_numbers(array, name)
    array = array.astype(np.float64, copy=False)
    if np.isnan(np.min(array)):
        raise InputError(f"{name} row {int(np.argmax(np.isnan(array)))} is NaN; remove or mend that row")
    return array


def rows_per_chunk(numbers_per_row: int, itemsize: int = 8) -> int:
    """Return how many rows make one cache-sized chunk; at least 64, so that products stay efficient.

    >>> rows_per_chunk(512)
    1536
    """
    return max(64, CHUNK_BYTES // (itemsize * max(1, numbers_per_row)))


def even_size(n_rows: int, size: int) -> int:
    """Return the size of the fewest chunks of at most this size, made as equal as can be.

    >>> even_size(1100, 1000)
    550
    """
    n_chunks = max(1, -(-n_rows // size))
    return -(-n_rows // n_chunks)


def chunks(n_rows: int, size: int) -> Iterator[slice]:
    """Yield the slices that cut n_rows into runs of at most size.

    >>> list(chunks(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))


def is_share(value: object) -> bool:
    """Return whether this is a number, of whatever kind, from 0 to 1.

    >>> is_share(0.5), is_share(True), is_share("0.5")
    (True, False, False)
    """
    return not isinstance(value, bool) and isinstance(value, Real) and 0.0 <= float(value) <= 1.0


def is_count(value: object, *, least: int = 1) -> bool:
    """Return whether this is a whole number, of whatever kind, of at least this size.

    >>> is_count(3), is_count(0), is_count(2.0), is_count(True)
    (True, False, False, False)
    """
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def unit_length(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return float64 rows scaled to Euclidean length one (B8); a row of zeros has no direction and stays zero.

    >>> unit_length(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8],
           [0. , 0. ]])
    """
    wide = rows.astype(np.float64)
    largest = np.abs(wide).max(axis=1, keepdims=True)
    wide /= np.where(largest > 0.0, largest, 1.0)  # squares of the largest entry neither overflow nor vanish
    lengths = np.sqrt(np.vecdot(wide, wide))[:, np.newaxis]
    wide /= np.where(lengths > 0.0, lengths, 1.0)
    return wide


def refuse_non_finite(
    chunk: NDArray[Any], *, first_row: int = 0, name: str = "features", remedy: str = "remove or impute that row"
) -> None:
    """Raise, naming the first row and column that hold NaN or infinity.

    >>> refuse_non_finite(np.array([[0.0, 1.0], [2.0, np.nan]]), first_row=10)
    Traceback (most recent call last):
        ...
    gem_ood.errors.InputError: features row 11, column 1 is NaN; every value must be finite: remove or impute that row
    """
    wrong = ~np.isfinite(chunk)
    if wrong.any():
        row, column = np.unravel_index(int(np.argmax(wrong)), chunk.shape)
        value = chunk[row, column]
        kind = "NaN" if np.isnan(value) else "infinity (inf)"
        raise InputError(
            f"{name} row {first_row + int(row)}, column {int(column)} is {kind}; every value must be finite: {remedy}"
        )


def _to_array(values: Any, name: str) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
            raise InputError(f"{name} is a masked array with masked values; fill or remove them first")
        return np.asarray(values)
    if sparse.issparse(values):
        raise InputError(f"{name} is a sparse {type(values).__name__}; pass a dense array: {name}.toarray()")
    if callable(getattr(values, "detach", None)):  # a torch tensor that may track gradients
        values = values.detach()
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _WrongTypeError(
            f"{name} of type {type(values).__name__} cannot be read as one array: {error}. Pass rows of equal length; "
            f"a torch tensor must be on the CPU and of a NumPy type: {name}.float().cpu()"
        ) from error
    return array


def _as_numbers(array: NDArray[Any], name: str) -> NDArray[np.float64]:
    if array.dtype.kind == "c":
        raise InputError(f"{name} has dtype {array.dtype}. Complex data not supported; pass real numbers")
    if array.dtype.kind != "O":
        raise _WrongTypeError(
            f"{name} has dtype {array.dtype}; every value must be a number: drop or encode such columns"
        )
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise _WrongTypeError(
            f"{name} holds a value that is not a number: {error}; drop or encode such columns"
        ) from error


def _labels_from_objects(array: NDArray[Any], name: str) -> NDArray[Any]:
    kinds = {type(value) for value in array}
    if all(issubclass(kind, str) for kind in kinds):
        return array.astype(str)
    if all(issubclass(kind, int | np.integer | np.bool_) for kind in kinds):
        if any(not -(2**63) <= value < 2**63 for value in array):
            raise InputError(f"{name} holds a whole number beyond 64 bits; pass such labels as strings")
        return array.astype(np.int64)
    if all(issubclass(kind, float | int | np.integer | np.floating) for kind in kinds):
        return array.astype(np.float64)
    if kinds == {bytes}:
        return array.astype("S")
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise InputError(
        f"Unknown label type: {name} mixes or holds values of type {names}; pass whole numbers only or strings only"
    )
