"""Working memory that is kept from call to call.

An allocator gives a large array back to the system when it is freed, and asking for it again costs a page fault for
each 4 kB: as much time as the arithmetic on it, or more. Whether it does so depends on what else the process has freed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["working_arrays"]

#: Of calls that ran side by side, about so many bytes are kept together: eight chunks.
MOST_KEPT = 49 << 20

#: Arrays begin whole cache lines apart.
CACHE_LINE = 64

_kept: list[NDArray[np.uint8]] = []  # a call takes one out while it works, so that no two share it


@contextmanager
def working_arrays(*shapes: tuple[int, ...], dtype: DTypeLike) -> Iterator[list[NDArray[Any]]]:
    """Yield an array of each shape, holding anything; they must not be used after the block.

    >>> with working_arrays((2, 3), (4,), dtype=np.float32) as (table, row):
    ...     table.shape, row.shape
    ((2, 3), (4,))
    """
    kind = np.dtype(dtype)
    sizes = [-(-prod(shape) * kind.itemsize // CACHE_LINE) * CACHE_LINE for shape in shapes]
    memory = _taken(sum(sizes))
    try:
        start, arrays = 0, []
        for shape, size in zip(shapes, sizes, strict=True):
            arrays.append(np.ndarray(shape, dtype=kind, buffer=memory, offset=start))
            start += size
        yield arrays
    finally:
        if sum(one.nbytes for one in _kept) + memory.nbytes <= MOST_KEPT:
            _kept.append(memory)


def _taken(n_bytes: int) -> NDArray[np.uint8]:
    """Return the memory that was kept last, or new one where there is none or it is too small."""
    try:
        memory = _kept.pop()
    except IndexError:
        return np.empty(n_bytes, dtype=np.uint8)
    return memory if memory.nbytes >= n_bytes else np.empty(n_bytes, dtype=np.uint8)
