"""The BLAS products of the hot paths, without Python's global lock, so that threads can run them side by side.

They are SciPy's own, reached through the C interface that `scipy.linalg.cython_blas` publishes; SciPy's Python
wrappers of the same routines hold the lock. Arrays must be contiguous in the order that each function names.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["add_product", "add_rank_update", "product", "row_sums", "squared_lengths", "whiten_triangular"]

#: NumPy squares and sums up rows that are at least this long in less time than two passes over all of them take.
LONG_ROW = 128

#: A call of BLAS takes as long as NumPy takes for this many short sums.
FEW_SUMS = 512

_LETTER = {np.dtype(np.float32): "s", np.dtype(np.float64): "d"}
_NUMBER = {np.dtype(np.float32): ctypes.c_float, np.dtype(np.float64): ctypes.c_double}
_ZERO = {dtype: ctypes.byref(number(0.0)) for dtype, number in _NUMBER.items()}
_ONE = {dtype: ctypes.byref(number(1.0)) for dtype, number in _NUMBER.items()}
_STEP = ctypes.byref(ctypes.c_int(1))


def add_rank_update(rows: NDArray[np.float64], scatter: NDArray[np.float64]) -> None:
    """Add rowsᵀ rows to the lower triangle of a Fortran-ordered scatter; rows are in C order."""
    _check(scatter, scatter.T, rows.dtype)
    n, m = rows.shape
    size, one = _int(m), _ONE[rows.dtype]
    _routine("syrk", rows.dtype)(b"L", b"N", size, _int(n), one, _data(rows), size, one, _data(scatter), size)


def whiten_triangular(whitener: NDArray[Any], rows: NDArray[Any]) -> None:
    """Replace rows (C order) by rows @ whitener, which is upper triangular and in Fortran order."""
    _check(rows, rows, whitener.dtype)
    n, m = rows.shape
    size = _int(m)
    _routine("trmm", rows.dtype)(
        b"L", b"U", b"T", b"N", size, _int(n), _ONE[rows.dtype], _data(whitener), size, _data(rows), size
    )


def product(matrix: NDArray[Any], rows: NDArray[Any], out: NDArray[Any]) -> None:
    """Write rows @ matrix to out; the matrix is in Fortran order, rows and out in C order."""
    _gemm(matrix, rows, out, beta=_ZERO[rows.dtype])


def add_product(matrix: NDArray[Any], rows: NDArray[Any], out: NDArray[Any]) -> None:
    """Add rows @ matrix to out; the matrix is in Fortran order, rows and out in C order."""
    _gemm(matrix, rows, out, beta=_ONE[rows.dtype])


def row_sums(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of each row, rows being in C order; many of them NumPy would start one by one.

    >>> row_sums(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([3., 7.])
    """
    n, m = rows.shape
    if n <= FEW_SUMS:
        return np.asarray(np.add.reduce(rows, axis=1))
    ones, sums = np.ones(m, dtype=rows.dtype), np.empty(n, dtype=rows.dtype)
    _check(sums, rows, rows.dtype)
    width, one, zero = _int(m), _ONE[rows.dtype], _ZERO[rows.dtype]
    _routine("gemv", rows.dtype)(
        b"T", width, _int(n), one, _data(rows), width, _data(ones), _STEP, zero, _data(sums), _STEP
    )
    return sums


def squared_lengths(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the squared length of each row, rows being in C order; overwrites them.

    >>> squared_lengths(np.array([[3.0, 4.0]]))
    array([25.])
    """
    if rows.shape[1] >= LONG_ROW:
        return np.asarray(np.vecdot(rows, rows))
    return row_sums(np.multiply(rows, rows, out=rows))


def _gemm(matrix: NDArray[Any], rows: NDArray[Any], out: NDArray[Any], *, beta: Any) -> None:
    """Write rows @ matrix + beta·out to out: in Fortran's eyes outᵀ = matrixᵀ rowsᵀ."""
    _check(out, out, rows.dtype)
    (n, m), k = rows.shape, matrix.shape[1]
    width, classes, one = _int(m), _int(k), _ONE[rows.dtype]
    _routine("gemm", rows.dtype)(
        b"T", b"N", classes, _int(n), width, one, _data(matrix), width, _data(rows), width, beta, _data(out), classes
    )


@cache
def _routine(name: str, dtype: np.dtype[Any]) -> Callable[..., None]:
    from scipy.linalg import cython_blas

    capsule = cython_blas.__pyx_capi__[_LETTER[dtype] + name]
    get_name, get_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature = get_name(capsule)
    arguments = [ctypes.c_void_p] * (signature.count(b",") + 1)
    return ctypes.CFUNCTYPE(None, *arguments)(get_pointer(capsule, signature))


def _check(written: NDArray[Any], in_c_order: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Raise before a routine writes where it must not: it would not notice itself."""
    if not written.flags.writeable or not in_c_order.flags.c_contiguous or written.dtype != dtype:
        raise ValueError("BLAS can only write to a writeable contiguous array of the type of its input")


def _int(value: int) -> Any:
    return ctypes.byref(ctypes.c_int(value))


def _data(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]  # twice as fast as array.ctypes.data
    return address
