"""Passes over rows compiled from C, where the installation could compile them: see `passes.c`.

They are called through ctypes, which holds no lock meanwhile, so that threads can run them side by side. Where there
is no library, or the processor lacks the instructions, `library` returns None and NumPy does the same work. The
environment variable GEM_OOD_NATIVE=0 asks for that.
"""

import ctypes
import hashlib
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Scatter",
    "Scorer",
    "can_read",
    "instructions",
    "library",
    "limit_instructions",
    "source_digest",
]

LIBRARY = Path(__file__).with_name("passes.so")

SWITCH = "GEM_OOD_NATIVE"

#: Vectors begin where a cache line does: across two of them they take longer.
CACHE_LINE = 64

#: What `level` in passes.c returns.
INSTRUCTIONS = ("none", "AVX2", "AVX-512")

#: The routines exist for these.
TYPES = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}

_address, _number = ctypes.c_void_p, ctypes.c_int64

_of_thread = threading.local()  # working memory, kept for the next call

#: How rows are passed: where they are, how many, how many bytes apart, and whether they are doubles.
_ROWS: tuple[Any, ...] = (_address, _number, _number, _number)


class _Model(ctypes.Structure):
    _fields_ = (
        *((name, _number) for name in ("n_features", "rank", "n_classes", "is_triangular")),
        *((name, _address) for name in ("centre", "whitener", "packed_means", "means", "bias")),
    )


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled passes, or None where there are none that this processor can run."""
    if os.environ.get(SWITCH) == "0" or not LIBRARY.exists():
        return None
    try:
        loaded = ctypes.CDLL(str(LIBRARY))
    except OSError:  # built for another system
        return None
    if _source_of(loaded) != source_digest():  # compiled from what has changed since: its arguments may be others
        return None
    for name in TYPES.values():
        pack, score = getattr(loaded, f"pack_{name}"), getattr(loaded, f"score_{name}")
        pack.argtypes, pack.restype = [_address, _number, _number, _number, _address], _number
        score.argtypes, score.restype = [_address, *_ROWS] + [_address] * 6, _number
    loaded.level.argtypes, loaded.level.restype = [], _number
    loaded.limit_level.argtypes, loaded.limit_level.restype = [_number], None
    for size in (loaded.panel_size, loaded.rows_laid_out):
        size.argtypes, size.restype = [], _number
    loaded.workspace_bytes.argtypes, loaded.workspace_bytes.restype = [_number] * 3, _number
    for size in (loaded.scatter_size, loaded.laid_out_size):
        size.argtypes, size.restype = [_number] * 2, _number
    loaded.add_scatter.argtypes, loaded.add_scatter.restype = [_number, *_ROWS, _number] + [_address] * 6, None
    for read in (loaded.squares_of_scatter, loaded.add_scatter_to):
        read.argtypes, read.restype = [_number, _address, _number, _address], None
    return loaded if loaded.level() else None


def source_digest() -> str:
    """Return what tells this source from others; `hatch_build.py` gives it to the compiler."""
    files = sorted(path for path in LIBRARY.parent.iterdir() if path.suffix in (".c", ".h"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def _source_of(loaded: ctypes.CDLL) -> str:
    try:
        loaded.source.argtypes, loaded.source.restype = [], ctypes.c_char_p
        return bytes(loaded.source()).decode()
    except AttributeError:
        return ""


def instructions() -> str:
    """Return which instructions the compiled passes use here: "none", "AVX2" or "AVX-512".

    >>> instructions() in INSTRUCTIONS
    True
    """
    loaded = library()
    return INSTRUCTIONS[loaded.level() if loaded else 0]


def limit_instructions(widest: str) -> None:
    """Let the compiled passes use nothing wider; GEM_OOD_NATIVE=0 switches them off."""
    if widest not in INSTRUCTIONS[1:]:
        raise ValueError(f"the compiled passes need one of {', '.join(INSTRUCTIONS[1:])}, not {widest}")
    loaded = library()
    if loaded:
        loaded.limit_level(INSTRUCTIONS.index(widest))


def can_read(rows: NDArray[Any]) -> bool:
    """Return whether the compiled passes read these rows as they lie: of a type they know, each row in one run.

    >>> can_read(np.zeros((2, 3))), can_read(np.zeros((3, 2)).T), can_read(np.zeros((2, 3), dtype=np.float16))
    (True, False, False)
    """
    return rows.dtype in TYPES and rows.flags.aligned and (rows.strides[1] == rows.itemsize or rows.shape[1] == 1)


class Scorer:
    """Tied Gaussians as the compiled passes read them: all arrays of one type, the largest laid out anew."""

    def __init__(
        self,
        centre: NDArray[Any],
        whitener: NDArray[Any],
        whitened_means: NDArray[Any],
        bias: NDArray[Any],
        *,
        is_triangular: bool,
    ) -> None:
        loaded = _loaded()
        self.dtype = centre.dtype
        (n_features, rank), n_classes = whitener.shape, len(whitened_means)
        self._arrays = (  # kept for as long as their addresses are
            np.ascontiguousarray(centre),
            _packed(loaded, whitener, is_triangular),
            _packed(loaded, whitened_means.T, False),
            np.ascontiguousarray(whitened_means),
            np.concatenate([bias, np.zeros(loaded.panel_size(), dtype=self.dtype)]),
        )
        self._model = _Model(n_features, rank, n_classes, is_triangular, *(array.ctypes.data for array in self._arrays))
        self._model_address = ctypes.addressof(self._model)
        self._score = getattr(loaded, f"score_{TYPES[self.dtype]}")
        self._workspace_bytes = loaded.workspace_bytes(n_features, rank, n_classes)

    def score(
        self,
        rows: NDArray[Any],
        halves: NDArray[Any],
        best: NDArray[np.int64],
        *,
        sums: NDArray[Any] | None = None,
        references: NDArray[Any] | None = None,
        log_weights: NDArray[Any] | None = None,
    ) -> int:
        """Write what passes.c says of each row; return in how many something overflowed or was no number."""
        outputs = (halves, best, sums, references)
        return int(
            self._score(
                self._model_address,
                *_rows(rows),
                _address_of(log_weights),
                _workspace(self._workspace_bytes),
                *map(_address_of, outputs),
            )
        )


class Scatter:
    """A scatter in the layout of the compiled passes, which they add rows to."""

    def __init__(self, n_features: int) -> None:
        self._level = _loaded().level()  # the layout is that of its vectors
        self._n_features = n_features
        self._sums = _aligned(np.zeros, _loaded().scatter_size(self._level, n_features))
        self._laid_out = _aligned(np.empty, _loaded().laid_out_size(self._level, n_features))

    @staticmethod
    def rows_together() -> int:
        """Return how many rows are added at a time: by multiples of that, sums do not depend on the size of calls."""
        return int(_loaded().rows_laid_out())

    @staticmethod
    def n_bytes(n_features: int) -> int:
        """Return how much memory one takes."""
        level = _loaded().level()
        return 8 * int(_loaded().scatter_size(level, n_features) + _loaded().laid_out_size(level, n_features))

    def add(
        self,
        rows: NDArray[Any],
        *,
        shift_places: NDArray[np.int64],
        shifts: NDArray[np.float64],
        total_places: NDArray[np.int64],
        totals: NDArray[np.float64],
    ) -> None:
        """Add each row, less the shift at its place, here and to the total at its place."""
        n_rows = len(rows)
        if not (
            rows.shape == (n_rows, self._n_features)
            and all(_is_run(places, np.int64, (n_rows,)) for places in (shift_places, total_places))
            and all(_is_run(table, np.float64, (len(table), self._n_features)) for table in (shifts, totals))
        ):
            raise ValueError(
                "the passes would read other memory: they take rows of this scatter's features, a place each, "
                "and shifts and totals of as many features, in C order"
            )
        readable = rows if can_read(rows) else np.array(rows, dtype=np.float64, order="C")
        given = (shift_places, shifts, total_places, totals, self._laid_out, self._sums)
        _loaded().add_scatter(self._level, *_rows(readable), self._n_features, *map(_address_of, given))

    def squares(self) -> NDArray[np.float64]:
        """Return the sum of squares of each feature."""
        squares = np.empty(self._n_features)
        _loaded().squares_of_scatter(self._level, _address_of(self._sums), self._n_features, _address_of(squares))
        return squares

    def add_to(self, scatter: NDArray[np.float64]) -> None:
        """Add what is here to the lower triangle of a Fortran-ordered matrix."""
        if not (_is_run(scatter.T, np.float64, (self._n_features,) * 2) and scatter.flags.writeable):
            raise ValueError(
                "the passes can only write to a writeable Fortran-ordered float64 matrix of their own size"
            )
        _loaded().add_scatter_to(self._level, _address_of(self._sums), self._n_features, _address_of(scatter.T))


def _loaded() -> ctypes.CDLL:
    loaded = library()
    assert loaded is not None
    return loaded


def _aligned(allocate: Callable[[int], NDArray[np.float64]], size: int) -> NDArray[np.float64]:
    """Return so many doubles that begin where a cache line does."""
    memory = allocate(size + CACHE_LINE // 8)
    start = -memory.ctypes.data % CACHE_LINE // 8
    return memory[start : start + size]


def _is_run(array: NDArray[Any], dtype: Any, shape: tuple[int, ...]) -> bool:
    """Return whether these are such numbers, one after the other."""
    return array.dtype == dtype and array.shape == shape and array.flags.c_contiguous and array.flags.aligned


def _workspace(n_bytes: int) -> int:
    """Return the address of so much of this thread's working memory."""
    if getattr(_of_thread, "n_bytes", -1) < n_bytes:
        _of_thread.memory = np.empty(n_bytes + CACHE_LINE, dtype=np.uint8)
        _of_thread.n_bytes = n_bytes
        _of_thread.address = -(-_of_thread.memory.ctypes.data // CACHE_LINE) * CACHE_LINE
    address: int = _of_thread.address
    return address


def _rows(rows: NDArray[Any]) -> tuple[Any, int, int, bool]:
    return _address_of(rows), len(rows), rows.strides[0], rows.itemsize == 8


def _packed(loaded: ctypes.CDLL, matrix: NDArray[Any], is_triangular: bool) -> NDArray[Any]:
    given = np.ascontiguousarray(matrix)
    pack = getattr(loaded, f"pack_{TYPES[given.dtype]}")
    packed = np.empty(pack(given.ctypes.data, *given.shape, is_triangular, None), dtype=given.dtype)
    pack(given.ctypes.data, *given.shape, is_triangular, packed.ctypes.data)
    return packed


def _address_of(array: Any) -> Any:
    """Return the address of an array's first number as an argument of a call; None for none."""
    if array is None:
        return None
    try:
        return ctypes.byref(ctypes.c_char.from_buffer(array))  # in a quarter of the time of array.ctypes.data
    except TypeError:  # it is read-only, or has gaps
        return array.ctypes.data
