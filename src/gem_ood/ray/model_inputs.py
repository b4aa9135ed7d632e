"""Model inputs: from a column of pictures or tensors to what a PyTorch model takes."""

from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from gem_ood.errors import InputError

__all__ = ["as_pictures", "as_tensors", "inputs_of", "of_one_shape", "place_of"]

#: How many channels a picture may have: grey, colours, colours and opacity.
CHANNELS = (1, 3, 4)

#: The kinds of NumPy types that are numbers.
NUMBERS = "biuf"


def inputs_of(batch: pa.Table, name: str, paths: Any = None) -> NDArray[Any]:
    """Return the inputs as one array, n × ..., or as an array of n arrays if their shapes differ.

    >>> inputs_of(pa.table({"tokens": [[1, 2, 3], [4, 5, 6]]}), "tokens").shape
    (2, 3)
    """
    from ray.data.block import BlockAccessor

    column = batch.column(name)
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise InputError(
            f"{place_of(paths, row)}column {name!r} has no input in row {row} of a batch; remove such rows before"
        )
    array = np.asarray(BlockAccessor.for_block(batch.select([name])).to_numpy(name))
    return _joined(array)


def _joined(rows: NDArray[Any]) -> NDArray[Any]:
    """Return lists in lists of one shape as one array, and everything else as it is."""
    if rows.dtype != object:
        return rows
    parts = [_joined(row) if isinstance(row, np.ndarray) else np.asarray(row) for row in rows]
    is_one = len({part.shape for part in parts}) == 1 and all(part.dtype.kind in NUMBERS for part in parts)
    return np.stack(parts) if is_one else rows


def of_one_shape(
    inputs: NDArray[Any], name: str, paths: Any = None, *, like: tuple[int, ...] | None = None
) -> NDArray[Any]:
    """Return the inputs if they are numbers and all of one shape, that of inputs that came before if there were any."""
    rows = [_joined(row) if isinstance(row, np.ndarray) else np.asarray(row) for row in inputs]
    for row, part in enumerate(rows):
        if part.dtype.kind not in NUMBERS:
            raise InputError(
                f"{place_of(paths, row)}column {name!r} holds a {type(inputs[row]).__name__} where pictures or tensors "
                f"of numbers are expected, in row {row} of a batch; pass prepare= a function that makes arrays of "
                f"them, or name the column of inputs with inputs="
            )
        expected = like or rows[0].shape
        if part.shape != expected:
            raise InputError(
                f"{place_of(paths, row)}column {name!r} holds inputs of different shapes, such as {expected} and "
                f"{part.shape}; read pictures in one size, ray.data.read_images(..., size=(height, width)), or pass "
                f"prepare= a function that makes them equal"
            )
    return inputs


def as_pictures(inputs: NDArray[Any]) -> NDArray[Any]:
    """Return pictures of bytes as float32 in [0, 1] with the channels first, and everything else as it is.

    >>> as_pictures(np.full((2, 5, 5, 3), 255, dtype=np.uint8)).shape
    (2, 3, 5, 5)
    """
    if inputs.dtype == np.uint8 and inputs.ndim == 3:
        inputs = inputs[..., np.newaxis]
    if inputs.dtype != np.uint8 or inputs.ndim != 4 or inputs.shape[-1] not in CHANNELS:
        return inputs
    # The order in memory stays, in which convolutions on a processor are faster (torch.channels_last).
    fractions: NDArray[np.float32] = np.divide(inputs, 255.0, dtype=np.float32)
    return fractions.transpose(0, 3, 1, 2)


def as_tensors(value: Any) -> Any:
    """Return arrays, also those in tuples and mappings, as tensors; of memory that is Ray's, a copy is made.

    >>> as_tensors({"mask": np.ones(2, dtype=bool)})
    {'mask': tensor([True, True])}
    """
    if isinstance(value, np.ndarray):
        can_share = value.flags.writeable and all(stride >= 0 for stride in value.strides)
        return torch.from_numpy(value if can_share else value.copy())
    if isinstance(value, tuple | list):
        return tuple(as_tensors(part) for part in value)
    if isinstance(value, dict):
        return {key: as_tensors(part) for key, part in value.items()}
    return value


def place_of(paths: Any, row: int | None = None) -> str:
    """Return the file of a row, or that of the first row of a batch, as the beginning of an error."""
    if paths is None:
        return ""
    return f"{paths[0].as_py()} and after: " if row is None else f"{paths[row].as_py()}: "
