"""One safe file format: a safetensors file of arrays with a JSON header. Reading it can never run code.

The header is one JSON object under the metadata key `gem_ood`; it carries the format version, so that a later
library can still read an earlier file and an earlier library refuses a later one by name.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood._version import __version__
from gem_ood.errors import FileFormatError, InputError

__all__ = [
    "FORMAT_VERSION",
    "as_path",
    "atomic_path",
    "digest",
    "naming",
    "pack",
    "read",
    "refuse_special",
    "refuse_unwritable_place",
    "unpack",
    "write",
]

FORMAT_VERSION = 1
METADATA_KEY = "gem_ood"


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path` that takes its place if the block succeeds and vanishes if it does not.

    The bytes are flushed to disk before the rename, so the name never stands for half a file. A link is followed: what
    it points to is replaced, not the link.
    """
    target = _followed(path)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; pass the path of a file in it")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} does not exist; create it first")
    temporary = target.with_name(f".{target.stem}.{secrets.token_hex(4)}{target.suffix}")
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _followed(path: str | os.PathLike[str]) -> Path:
    """Return the file that a path stands for: what a link points to, or itself."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)


@contextmanager
def naming(target: Path) -> Iterator[None]:
    """Raise an error about the file that was to be written, not about the one that stands in for it until then."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{target} cannot be written ({error.strerror or error}); mend that or name another file"
        ) from error


def refuse_unwritable_place(path: Path) -> None:
    """Raise now rather than after long work if no file can be written there; permissions do not tell everything."""
    target = _followed(path)
    if target.is_dir():
        raise InputError(f"{path} is a directory; name a file inside it")
    if not target.parent.is_dir():
        raise InputError(f"the directory {target.parent} does not exist; create it first")
    # As long as the name under which the file is written before it takes its own.
    probe = target.with_name(f".{target.stem}.{secrets.token_hex(4)}{target.suffix}")
    with naming(path):
        try:
            probe.touch(exist_ok=False)
        finally:
            if probe.exists():
                probe.unlink()


def as_path(value: object, name: str) -> Path:
    """Return an argument of this name as a path; raise if it is none.

    >>> as_path("detector.safetensors", "out").suffix
    '.safetensors'
    """
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{name} is a {type(value).__name__}; pass a path")
    return Path(value)


def refuse_special(path: Path) -> None:
    """Raise if what a path leads to is neither a regular file nor a folder: reading a pipe would wait for ever."""
    if not path.is_file() and not path.is_dir():
        shown = str(path).encode("utf-8", "backslashreplace").decode("utf-8")  # names on disk may be no text
        raise InputError(f"{shown} is no regular file but a pipe, a device or the like; pass a file that is on disk")


def digest(tensors: Mapping[str, NDArray[Any]], about: Mapping[str, Any] | None = None) -> str:
    """Return a SHA-256 of arrays and what is said about them, by which a single changed bit is noticed.

    >>> digest({"x": np.zeros(2)}) == digest({"x": np.zeros((2, 1))})
    False
    """
    found = hashlib.sha256(json.dumps(about or {}, sort_keys=True).encode())
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])  # as `pack` writes it, which gives a single number an axis
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def pack(*, tensors: Mapping[str, NDArray[Any]], header: Mapping[str, Any]) -> bytes:
    """Return arrays and a header as the bytes of a file."""
    from safetensors.numpy import save

    document = {"format": FORMAT_VERSION, "library": __version__, **header}
    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    return bytes(save(arrays, metadata={METADATA_KEY: json.dumps(document, ensure_ascii=False)}))


def write(path: str | os.PathLike[str], *, tensors: Mapping[str, NDArray[Any]], header: Mapping[str, Any]) -> None:
    """Write arrays and a header to one file, all or nothing."""
    data = pack(tensors=tensors, header=header)
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def unpack(data: bytes, *, name: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the arrays and the header of bytes made by `pack`; `name` is what errors call them.

    >>> unpack(pack(tensors={"x": np.zeros(2)}, header={"kind": "example"}), name="the bytes")[0]
    {'x': array([0., 0.])}
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(data)
        length = int.from_bytes(data[:8], "little")  # as safetensors lays out: the length of the JSON that follows
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    except (SafetensorError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise FileFormatError(f"{name} is damaged or of another kind ({error}); save the detector again") from error
    return tensors, _header(name, metadata)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the arrays and the header of a file written by `write`.

    Raises:
        FileNotFoundError: There is no such file.
        FileFormatError: The file is damaged, truncated, foreign, or from a newer version.
    """
    from safetensors import SafetensorError, safe_open

    source = Path(path)
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist; pass the path of a saved detector")
    refuse_special(source)
    try:
        with safe_open(str(source), framework="numpy") as file:
            metadata = file.metadata() or {}
            header = _header(source, metadata)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, TypeError, AttributeError) as error:
        raise FileFormatError(
            f"{source} is not a readable safetensors file ({error}); it is damaged, truncated or of another kind: "
            f"save the detector again"
        ) from error
    return tensors, header


def _header(source: Path | str, metadata: Mapping[str, str]) -> dict[str, Any]:
    if METADATA_KEY not in metadata:
        raise FileFormatError(f"{source} is a safetensors file, but not one of gem-ood's; pass a saved detector")
    try:
        header = json.loads(metadata[METADATA_KEY])
        version = int(header["format"])
    except (ValueError, TypeError, KeyError) as error:
        raise FileFormatError(f"{source} has a damaged header ({error!r}); save the detector again") from error
    if version > FORMAT_VERSION:
        raise FileFormatError(
            f"{source} has format {version}, written by gem-ood {header.get('library')}; this gem-ood {__version__} "
            f"reads formats up to {FORMAT_VERSION}: upgrade with pip install -U gem-ood"
        )
    return dict(header)
