"""MATLAB files of version 5 (`save -v6`, `-v7`), read by hand: plain arrays of numbers by name, and nothing else.

SciPy's reader is not used: its compiled part ends the whole process on some damaged files. Here every length is checked
against the bytes that are there before it is believed.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import FileFormatError

__all__ = ["read_matlab"]

#: Bytes of one array; SVHN's largest part has 531,131 pictures of 3,072.
LARGEST_ARRAY = 1 << 31
MOST_VARIABLES, MOST_AXES = 1000, 32

#: Bytes within which flags, lengths and name of a variable must end.
_HEAD = 4096
_HEADER = 128

_MATRIX, _COMPRESSED = 14, 15
_INT32, _UINT32 = 5, 6
_NAMES = (1, 2, 16)  # int8, uint8, UTF-8

#: How values may be stored, by the type of a data element.
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}

#: MATLAB's classes; MATLAB stores numbers of a class in the smallest type that holds them.
_CLASSES = {
    **{1: "cell", 2: "struct", 3: "object", 4: "char", 5: "sparse", 6: "double", 7: "single", 8: "int8", 9: "uint8"},
    **{10: "int16", 11: "uint16", 12: "int32", 13: "uint32", 14: "int64", 15: "uint64", 16: "function", 17: "opaque"},
}
_FLOATS = ("double", "single")
_NUMBERS = (*_FLOATS, *(f"{sign}int{n_bits}" for sign in ("", "u") for n_bits in (8, 16, 32, 64)))
_OPAQUE, _COMPLEX, _LOGICAL = 17, 0x0800, 0x0200


class _DamagedError(Exception):
    """The bytes are not those of a MATLAB file, or not all of them."""


@dataclass(frozen=True)
class _Variable:
    """What stands before the values of a variable, and where in it they begin."""

    name: str
    kind: str
    shape: tuple[int, ...]
    values_at: int

    def __str__(self) -> str:
        name = self.name[:40]
        return f"{name if name.isprintable() else ascii(name)} {self.kind} {self.shape[:8]}"


def read_matlab(data: bytes, title: str, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays of these names, of the types in which they are stored; `title` is for errors.

    >>> import io
    >>> from scipy.io import savemat
    >>> file = io.BytesIO()
    >>> savemat(file, {"X": np.arange(6, dtype=np.uint8).reshape(2, 3), "y": [1.0, 2.0], "about": "words"})
    >>> read_matlab(file.getvalue(), "digits.mat", ["X"])["X"]
    array([[0, 1, 2], [3, 4, 5]], dtype=uint8)
    >>> read_matlab(file.getvalue(), "digits.mat", ["X", "about"])
    Traceback (most recent call last):
        ...
    gem_ood.errors.FileFormatError: digits.mat holds X uint8 (2, 3), y double (1, 2), about char (1, 5), but not both X
    and about as numbers; it is truncated or damaged, or of another data set: fetch it again
    """
    try:
        order = _byte_order(data, title)
        found, arrays = _variables(memoryview(data), order, names)
    except _DamagedError as error:
        raise FileFormatError(
            f"{title} is no MATLAB file, or is truncated or damaged ({error}); fetch it again"
        ) from error
    if any(name not in arrays for name in names):
        there = ", ".join(str(variable) for variable in found[:8]) or "nothing"
        raise FileFormatError(
            f"{title} holds {there}, but not {_joined(names)} as numbers; it is truncated or damaged, or of "
            f"another data set: fetch it again"
        )
    return arrays


def _joined(names: Sequence[str]) -> str:
    return f"both {names[0]} and {names[1]}" if len(names) == 2 else ", ".join(names)


def _byte_order(data: bytes, title: str) -> str:
    """Return the byte order of a file of version 5 as struct writes it; raise if it is of another version."""
    order = {b"IM": "<", b"MI": ">"}.get(data[126:_HEADER])
    version = 0 if order is None else struct.unpack_from(f"{order}H", data, 124)[0]
    if version == 0x0100 and order is not None:
        return order
    if version == 0x0200 or data.startswith(b"\x89HDF\r\n\x1a\n"):
        raise FileFormatError(
            f"{title} is of MATLAB's version 7.3, which cannot be read; save it with save(..., '-v7')"
        )
    if _is_version_4(data):
        raise FileFormatError(f"{title} is of MATLAB's version 4, which cannot be read; save it with save(..., '-v7')")
    raise _DamagedError("it has no header of version 5")


def _is_version_4(data: bytes) -> bool:
    """Return whether a file begins as one of version 4: machine, zero, type and kind as four digits, then lengths."""
    for order in "<>":
        if len(data) >= 20:
            digits, _, _, is_complex, n_name = struct.unpack_from(f"{order}5I", data)
            machine, zero, stored, kind = (digits // 10**place % 10 for place in (3, 2, 1, 0))
            if digits < 5000 and machine < 5 and not zero and stored < 6 and kind < 3:
                return bool(is_complex < 2 and 0 < n_name <= 64)
    return False


def _variables(data: memoryview, order: str, names: Sequence[str]) -> tuple[list[_Variable], dict[str, NDArray[Any]]]:
    """Return what variables there are, and the values of those that are asked for and are plain numbers."""
    found: list[_Variable] = []
    arrays: dict[str, NDArray[Any]] = {}
    place = _HEADER
    while place < len(data):
        if len(found) == MOST_VARIABLES:
            raise _DamagedError(f"it has more than {MOST_VARIABLES:,} variables")
        kind, n_bytes = _whole_tag(data, place, order)
        body = data[place + 8 : place + 8 + n_bytes]
        if len(body) < n_bytes:
            raise _DamagedError(f"a variable of {n_bytes:,} bytes has {len(body):,}")
        if kind not in (_MATRIX, _COMPRESSED):
            raise _DamagedError(f"there is an element of type {kind} where a variable must be")
        is_packed = kind == _COMPRESSED
        variable = _head(memoryview(_unpacked(body, _HEAD, order)) if is_packed else body, order)
        if variable.name in names and variable.kind in _NUMBERS:
            if variable.name in arrays:
                raise _DamagedError(f"{variable.name} is there twice")
            content = memoryview(_unpacked(body, None, order)) if is_packed else body
            arrays[variable.name] = _values(content, variable, order)
        found.append(variable)
        place += 8 + n_bytes
    return found, arrays


def _whole_tag(data: memoryview, place: int, order: str) -> tuple[int, int]:
    if place + 8 > len(data):
        raise _DamagedError("it ends in the middle of a tag")
    kind, n_bytes = struct.unpack_from(f"{order}II", data, place)
    return kind, n_bytes


def _element(data: memoryview, place: int, order: str) -> tuple[int, int, int, int]:
    """Return the type of a data element, where its bytes start and stop, and where the next element is."""
    first, n_bytes = _whole_tag(data, place, order)
    if first >> 16:  # a small one: type, length and up to four bytes in the space of a tag
        if first >> 16 > 4:
            raise _DamagedError(f"a small element has {first >> 16:,} bytes")
        return first & 0xFFFF, place + 4, place + 4 + (first >> 16), place + 8
    stop = place + 8 + n_bytes
    return first, place + 8, stop, stop + -n_bytes % 8


def _content(data: memoryview, place: int, order: str, kinds: tuple[int, ...]) -> tuple[bytes, int]:
    """Return the bytes of a short element of one of these types, and where the next one is."""
    kind, start, stop, following = _element(data, place, order)
    if kind not in kinds or stop > min(len(data), _HEAD):
        raise _DamagedError(f"an element of type {kind} and {stop - start:,} bytes is where a variable begins")
    return bytes(data[start:stop]), following


def _head(data: memoryview, order: str) -> _Variable:
    """Return what a variable is, from its first bytes."""
    flags, place = _content(data, 0, order, (_UINT32,))
    if len(flags) != 8:
        raise _DamagedError("a variable has no flags")
    told = struct.unpack(f"{order}II", flags)[0]
    code = told & 0xFF
    if code not in _CLASSES:
        raise _DamagedError(f"a variable has the class {code}")
    if code == _OPAQUE:  # it has a name, but no lengths
        name, place = _content(data, place, order, _NAMES)
        return _Variable(name.decode("latin-1"), "opaque", (), place)
    lengths, place = _content(data, place, order, (_INT32,))
    if len(lengths) % 4 or not 2 <= len(lengths) // 4 <= MOST_AXES:
        raise _DamagedError("a variable has no shape")
    shape = struct.unpack(f"{order}{len(lengths) // 4}i", lengths)
    if min(shape) < 0:
        raise _DamagedError(f"a variable has a length of {min(shape)}")
    name, place = _content(data, place, order, _NAMES)
    told_more = "logical" if told & _LOGICAL else f"complex {_CLASSES[code]}"
    kind = told_more if told & (_COMPLEX | _LOGICAL) else _CLASSES[code]
    return _Variable(name.decode("latin-1"), kind, shape, place)


def _unpacked(body: memoryview, most: int | None, order: str) -> bytes:
    """Return a compressed variable without its tag: its first bytes, or all of it where no number of them is told."""
    stream = zlib.decompressobj()
    try:
        unpacked = stream.decompress(body[:_HEAD] if most else body, most or 8)
        kind, n_bytes = _whole_tag(memoryview(unpacked), 0, order)
        if kind != _MATRIX:
            raise _DamagedError(f"there is an element of type {kind} where a variable must be")
        if most is not None:
            return unpacked[8 : 8 + n_bytes]
        if n_bytes > LARGEST_ARRAY + _HEAD:
            raise _DamagedError(f"a variable has {n_bytes:,} bytes, more than any of pictures")
        rest = stream.decompress(stream.unconsumed_tail, n_bytes) if n_bytes else b""
        # Beyond the last byte is the checksum, which must be there and right.
        beyond = stream.decompress(stream.unconsumed_tail, 1)
    except zlib.error as error:
        raise _DamagedError(f"a variable cannot be unpacked: {error}") from error
    if len(rest) < n_bytes or beyond or not stream.eof or stream.unused_data.strip(b"\0"):
        raise _DamagedError(f"a variable of {n_bytes:,} bytes has another number of them")
    return rest


def _values(data: memoryview, variable: _Variable, order: str) -> NDArray[Any]:
    kind, start, stop, following = _element(data, variable.values_at, order)
    if kind not in _STORED or stop > len(data) or following < len(data):
        raise _DamagedError(f"{variable} has values of type {kind} in {stop - start:,} of {len(data):,} bytes")
    dtype = np.dtype(order + _STORED[kind])
    if dtype.kind == "f" and variable.kind not in _FLOATS:
        raise _DamagedError(f"{variable} has values of type {dtype}")
    if prod(variable.shape) * dtype.itemsize != stop - start:
        raise _DamagedError(f"{variable} has {stop - start:,} bytes of {dtype}")
    found = np.frombuffer(data[start:stop], dtype).reshape(variable.shape, order="F")
    return found.astype(dtype.newbyteorder("="), copy=False)
