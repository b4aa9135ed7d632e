"""Tensors of a `.safetensors` file, read slice by slice."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from gem_ood.errors import FileFormatError, InputError
from gem_ood.features import chunks
from gem_ood.files.sources import Member

__all__ = ["safetensors_members"]

#: NumPy's letter for each type of safetensors that NumPy has; the others (BF16, F8_E4M3, ...) it has not.
_KINDS = {
    **dict.fromkeys(("F64", "F32", "F16"), "f"),
    **dict.fromkeys(("I64", "I32", "I16", "I8"), "i"),
    **dict.fromkeys(("U64", "U32", "U16", "U8"), "u"),
    "BOOL": "b",
}


@dataclass(frozen=True)
class _Tensor(Member):
    path: Path
    name: str
    dtype: str

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        (block,) = self._parts((slice(start, stop),))
        return block

    def blocks(self, batch_rows: int) -> Iterator[NDArray[Any]]:
        yield from self._parts(chunks(self.shape[0], batch_rows))

    def refuse_as_features(self) -> None:
        self._refuse_dtype()
        super().refuse_as_features()

    def refuse_as_labels(self) -> None:
        self._refuse_dtype()
        super().refuse_as_labels()

    def _refuse_dtype(self) -> None:
        if self.dtype not in _KINDS:
            raise InputError(
                f"{self.title} has the type {self.dtype}, which NumPy has not; save it as F32: tensor.float()"
            )

    def _parts(self, parts: Any) -> Iterator[NDArray[Any]]:
        try:
            with safe_open(self.path, framework="numpy") as file:
                tensor = file.get_slice(self.name)
                for part in parts:
                    yield np.asarray(tensor[part])
        except SafetensorError as error:
            raise FileFormatError(_damaged(self.path, error)) from error


def safetensors_members(path: Path) -> Mapping[str, Member]:
    """Return the tensors of a file by name; only the header is read."""
    members: dict[str, Member] = {}
    try:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 -- safe_open is no mapping
                tensor = file.get_slice(name)
                dtype = str(tensor.get_dtype())
                kind = _KINDS.get(dtype, "V")
                members[name] = _Tensor(f"{path}: {name}", tuple(tensor.get_shape()), kind, path, name, dtype)
    except SafetensorError as error:
        raise FileFormatError(_damaged(path, error)) from error
    return members


def _damaged(path: Path, error: BaseException) -> str:
    return f"{path} is not a safetensors file, or is damaged or truncated ({error}); write it again"
