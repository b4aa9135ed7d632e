"""Pickled batches, read and never executed: a closed list of opcodes, and stand-ins for NumPy's arrays.

The bytes are taken apart by `pickletools`, which runs nothing. An opcode that is not needed for a dictionary of lists,
texts, numbers and arrays is refused, and so is every name but those by which NumPy writes an array.
"""

import pickletools
import re
import warnings
from math import prod
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import FileFormatError
from gem_ood.numpy_format import one_line

__all__ = ["read_pickle"]

#: Opcodes whose argument is the value.
_VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"),
    *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
#: Opcodes of Python 2's strings of bytes, which `pickletools` gives as Latin-1.
_STRINGS = frozenset({"STRING", "BINSTRING", "SHORT_BINSTRING"})
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLE_SIZES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS, _GETS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"}), frozenset({"GET", "BINGET", "LONG_BINGET"})
_NOTHING = frozenset({"PROTO", "FRAME"})

#: The names that NumPy and Python 2 write for arrays, their types and their bytes.
_NAMES = {
    "numpy.ndarray": "ndarray",
    "numpy.dtype": "dtype",
    "numpy.core.multiarray._reconstruct": "empty",
    "numpy._core.multiarray._reconstruct": "empty",
    "numpy.core.numeric._frombuffer": "from buffer",
    "numpy._core.numeric._frombuffer": "from buffer",
    "_codecs.encode": "encode",
}

#: Pictures (n, height, width, 3) have four.
_MOST_AXES = 4

#: What a damaged or made-up sequence of opcodes leads to.
_DAMAGE = (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, UnicodeError)


class _Name:
    """A name that is known, without the thing of that name."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind


class _Type:
    """What a pickle says of a dtype: its code, such as u1, and then its byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: Any) -> None:
        self.code, self.order = _text(code), "|"

    def build(self, state: Any) -> None:
        self.order = _text(state[1])

    def dtype(self) -> np.dtype[Any]:
        if not re.fullmatch(r"[iu][1248]", self.code) or self.order not in ("|", "<", ">", "="):
            raise ValueError(f"an array of type {self.order}{self.code} is none of whole numbers")
        return np.dtype(self.order + self.code)


class _Array:
    """What a pickle says of an array: shape, type, order and bytes, unread until it is asked for."""

    __slots__ = ("data", "is_fortran", "shape", "type")

    def __init__(self, shape: Any = (), kind: Any = None, *, is_fortran: bool = False, data: Any = b"") -> None:
        self.shape, self.type, self.is_fortran, self.data = shape, kind, is_fortran, data

    def build(self, state: Any) -> None:
        _, self.shape, self.type, self.is_fortran, self.data = state

    def array(self) -> NDArray[Any]:
        dtype = self.type.dtype()
        if len(self.shape) > _MOST_AXES:
            raise ValueError(f"an array has {len(self.shape):,} axes")
        if not all(isinstance(length, int) and length >= 0 for length in self.shape):
            raise ValueError("an array has a shape that is none")
        # Lengths first: the product of made-up ones may take longer than any file is worth.
        is_too_long = 0 not in self.shape and any(length > len(self.data) for length in self.shape)
        if is_too_long or prod(self.shape) * dtype.itemsize != len(self.data):
            raise ValueError(f"an array of shape {self.shape} has {len(self.data):,} bytes")
        return np.frombuffer(self.data, dtype).reshape(self.shape, order="F" if self.is_fortran else "C")


def read_pickle(data: bytes, title: str) -> dict[str, Any]:
    r"""Return the dictionary of a pickle: its lists, texts, numbers and arrays by name; `title` is for errors.

    >>> import pickle
    >>> read_pickle(pickle.dumps({b"data": np.zeros((2, 3), dtype=np.uint8), b"labels": [4, 5]}), "batch")["labels"]
    [4, 5]
    >>> read_pickle(b"cos\nsystem\n(S'true'\ntR.", "batch")
    Traceback (most recent call last):
        ...
    gem_ood.errors.FileFormatError: batch names os.system, which no batch of pictures needs: nothing of it was run; do
    not trust this file, and fetch it from its source
    """
    try:
        with warnings.catch_warnings():  # of escapes in the names of a damaged file
            warnings.simplefilter("ignore")
            found = _Reader(data, title).run()
        if not isinstance(found, dict):
            raise ValueError(f"it holds a {type(found).__name__} and no dictionary")
        return {_text(name): value.array() if isinstance(value, _Array) else value for name, value in found.items()}
    except FileFormatError:
        raise
    except _DAMAGE as error:
        raise FileFormatError(
            f"{title} is no pickled batch of pictures, or is truncated or damaged ({one_line(error)[:200]}); fetch it "
            f"again"
        ) from error


class _Reader:
    """A stack, its marks and a memo: what is left of an unpickler that can build nothing but plain values."""

    def __init__(self, data: bytes, title: str) -> None:
        self._data, self._title = data, title
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._n_encoded = 0

    def run(self) -> Any:
        for opcode, argument, _ in pickletools.genops(self._data):
            name = opcode.name
            if name in _VALUES:
                self._stack.append(argument)
            elif name in _STRINGS:
                self._stack.append(str(argument).encode("latin-1"))
            elif name in _PUTS:
                self._memo[int(argument)] = self._stack[-1]  # type: ignore[arg-type]
            elif name in _GETS:
                self._stack.append(self._memo[int(argument)])  # type: ignore[arg-type]
            elif name == "STOP":
                return self._stack.pop()
            elif name not in _NOTHING:
                self._build(name, argument)
        raise ValueError("it does not end")

    def _build(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("EMPTY_LIST", "LIST"):
            stack.append(self._since_mark() if name == "LIST" else [])
        elif name in ("EMPTY_DICT", "DICT"):
            items = self._since_mark() if name == "DICT" else []
            stack.append({})
            self._set(items)
        elif name in ("APPEND", "APPENDS"):
            items = self._since_mark() if name == "APPENDS" else [stack.pop()]
            list.extend(stack[-1], items)
        elif name in ("SETITEM", "SETITEMS"):
            self._set(self._since_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()])
        elif name == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif name in _TUPLE_SIZES:
            size = _TUPLE_SIZES[name]
            stack.append(tuple(stack.pop() for _ in range(size))[::-1])
        else:
            self._call(name, argument)

    def _call(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in ("GLOBAL", "STACK_GLOBAL"):
            named = str(argument).replace(" ", ".") if name == "GLOBAL" else f"{stack.pop(-2)}.{stack.pop()}"
            if named not in _NAMES:
                self._refuse(f"names {named[:100]}")
            stack.append(_Name(_NAMES[named]))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            stack.append(self._made(function.kind, arguments))
        elif name == "BUILD":
            state = stack.pop()
            if not isinstance(stack[-1], _Array | _Type):
                self._refuse("sets the state of something that is no array")
            stack[-1].build(state)
        else:
            self._refuse(f"has the opcode {name}")

    def _since_mark(self) -> list[Any]:
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        for name, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(name, str | bytes):  # hashing a tuple of tuples may exhaust the processor's stack
                raise TypeError(f"a dictionary has a key of type {type(name).__name__}")
            dict.__setitem__(target, name, value)

    def _made(self, kind: str, arguments: Any) -> Any:
        if kind == "dtype":
            return _Type(arguments[0])
        if kind == "empty":
            return _Array()
        if kind == "from buffer":
            data, dtype, shape, order = arguments
            return _Array(shape, dtype, is_fortran=_text(order) == "F", data=data)
        if kind == "encode" and _text(arguments[1]) in ("latin1", "latin-1"):
            self._n_encoded += len(arguments[0])
            if self._n_encoded > len(self._data):  # each text of the file once: more would be a bomb
                raise ValueError("its texts are longer than the file")
            return str.encode(arguments[0], "latin-1")
        return self._refuse(f"calls {kind} as no batch does")

    def _refuse(self, found: str) -> NoReturn:
        raise FileFormatError(
            f"{self._title} {found}, which no batch of pictures needs: nothing of it was run; do not trust this file, "
            f"and fetch it from its source"
        )


def _text(value: Any) -> str:
    """Return a text that Python 2 wrote as bytes, or Python 3 as text."""
    if isinstance(value, bytes):
        return value.decode("ascii")
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} is where a text must be")
    return value
