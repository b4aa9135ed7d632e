"""The five BLAS products of the hot paths, without Python's global lock, so that threads can run them side by side.

They are SciPy's own, reached through the C interface that `scipy.linalg.cython_blas` publishes; SciPy's Python
wrappers of the same routines hold the lock. Arrays must be contiguous in the order that each function names.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["add_product", "add_rank_update", "product", "row_sums", "whiten_triangular"]

_LETTER = {np.dtype(np.float32): "s", np.dtype(np.float64): "d"}
_NUMBER = {np.dtype(np.float32): ctypes.c_float, np.dtype(np.float64): ctypes.c_double}


def add_rank_update(rows: NDArray[np.float64], scatter: NDArray[np.float64]) -> None:
    """Add rowsᵀ rows to the lower triangle of a Fortran-ordered scatter; rows are in C order."""
    _check(scatter, scatter.T, rows.dtype)
    n, m = rows.shape
    one = ctypes.c_double(1.0)
    size = ctypes.c_int(m)
    _routine("syrk", rows.dtype)(
        b"L", b"N", _at(size), _int(n), _at(one), _data(rows), _at(size), _at(one), _data(scatter), _at(size)
    )  # fmt: skip


def whiten_triangular(whitener: NDArray[Any], rows: NDArray[Any]) -> None:
    """Replace rows (C order) by rows @ whitener, which is upper triangular and in Fortran order."""
    _check(rows, rows, whitener.dtype)
    n, m = rows.shape
    one, size = _NUMBER[rows.dtype](1.0), ctypes.c_int(m)
    _routine("trmm", rows.dtype)(
        b"L", b"U", b"T", b"N", _at(size), _int(n), _at(one), _data(whitener), _at(size), _data(rows), _at(size)
    )  # fmt: skip


def product(whitener: NDArray[Any], rows: NDArray[Any], out: NDArray[Any]) -> None:
    """Write rows @ whitener to out; the whitener is in Fortran order, rows and out in C order."""
    _gemm(whitener, rows, out, beta=0.0)


def add_product(means: NDArray[Any], rows: NDArray[Any], out: NDArray[Any]) -> None:
    """Add rows @ meansᵀ to out; all three are in C order."""
    _gemm(means.T, rows, out, beta=1.0)


def row_sums(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the sum of each row, rows being in C order: many short sums that NumPy would start one by one.

    >>> row_sums(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([3., 7.])
    """
    n, m = rows.shape
    ones, sums = np.ones(m, dtype=rows.dtype), np.empty(n, dtype=rows.dtype)
    _check(sums, rows, rows.dtype)
    number = _NUMBER[rows.dtype]
    width, step = ctypes.c_int(m), ctypes.c_int(1)
    _routine("gemv", rows.dtype)(
        b"T", _at(width), _int(n), _at(number(1.0)), _data(rows), _at(width), _data(ones), _at(step),
        _at(number(0.0)), _data(sums), _at(step),
    )  # fmt: skip
    return sums


def _gemm(matrix: NDArray[Any], rows: NDArray[Any], out: NDArray[Any], *, beta: float) -> None:
    """Write rows @ matrix + beta·out to out: in Fortran's eyes outᵀ = matrixᵀ rowsᵀ."""
    _check(out, out, rows.dtype)
    (n, m), k = rows.shape, matrix.shape[1]
    number = _NUMBER[rows.dtype]
    width, classes = ctypes.c_int(m), ctypes.c_int(k)
    _routine("gemm", rows.dtype)(
        b"T", b"N", _at(classes), _int(n), _at(width), _at(number(1.0)), _data(matrix), _at(width),
        _data(rows), _at(width), _at(number(beta)), _data(out), _at(classes),
    )  # fmt: skip


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


def _at(number: Any) -> Any:
    return ctypes.byref(number)


def _data(array: NDArray[Any]) -> int:
    return array.ctypes.data
