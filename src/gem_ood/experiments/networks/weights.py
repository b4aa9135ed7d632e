"""Weight files: reading the tensors of a network without running code, checking them, and writing them whole."""

import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as safetensors_bytes
from torch import Tensor, nn

from gem_ood.errors import FileFormatError, InputError
from gem_ood.storage import atomic_path, naming, refuse_special

__all__ = [
    "WEIGHT_SUFFIXES",
    "matching_tensors",
    "read_tensors",
    "refuse_shape",
    "some",
    "unwrapped_names",
    "weights_suffix",
    "write_weights",
]

#: The kinds of files that weights are read from and written to.
WEIGHT_SUFFIXES = (".safetensors", ".pt", ".pth")
_KINDS = ".safetensors, .pt or .pth"

#: Under which names training scripts keep the tensors beside other things.
WRAPPERS = ("state_dict", "model_state_dict", "model")

#: What DataParallel and DistributedDataParallel put before every name.
_PARALLEL_PREFIX = "module."

#: Batch normalisation's count of training steps: published files leave it out, and evaluation never reads it.
_OPTIONAL_SUFFIX = ".num_batches_tracked"


def weights_suffix(path: str | PathLike[str]) -> str:
    """Return the lower-case suffix of a path of weights; raise if it is of another kind.

    >>> weights_suffix("network.PT")
    '.pt'
    """
    suffix = Path(path).suffix.lower()
    if suffix not in WEIGHT_SUFFIXES:
        raise InputError(
            f"{path} has the suffix {suffix or '(none)'!r} but weights are kept in {', '.join(WEIGHT_SUFFIXES)}; "
            f"rename it or pass another file"
        )
    return suffix


def read_tensors(path: str | PathLike[str]) -> dict[str, Tensor]:
    """Return the tensors of a .safetensors, .pt or .pth file by their names, on the CPU. No code of the file is run.

    A .pt file may be of PyTorch's present or former format, and may keep its tensors under "state_dict".

    Raises:
        FileNotFoundError: There is no such file.
        FileFormatError: It is a folder, or the file is damaged, truncated, or holds something else than tensors.
        InputError: It is a pipe, a device or the like.
    """
    source = Path(path)
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist; pass the path of a {_KINDS} file of weights")
    if source.is_dir():
        raise FileFormatError(f"{source} is a folder; pass a {_KINDS} file of weights")
    refuse_special(source)
    if source.suffix.lower() in (".pt", ".pth"):
        return _tensors_of(source, _read_pickled(source))
    try:
        tensors: dict[str, Tensor] = load_file(source)
    except (SafetensorError, OSError) as error:
        raise FileFormatError(
            f"{source} is not a safetensors file, or is damaged or truncated ({error}); fetch or save it again"
        ) from error
    return tensors


def unwrapped_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors without the "module." that DataParallel puts before every name.

    >>> list(unwrapped_names({"module.fc.bias": torch.zeros(1)}))
    ['fc.bias']
    """
    if not all(name.startswith(_PARALLEL_PREFIX) for name in tensors):
        return dict(tensors)
    return {name.removeprefix(_PARALLEL_PREFIX): tensor for name, tensor in tensors.items()}


def write_weights(network: nn.Module, path: str | PathLike[str], *, about: Mapping[str, Any] | None = None) -> None:
    """Write the tensors of a network to one .safetensors, .pt or .pth file, all or nothing.

    The same tensors give the same bytes. A .safetensors file also says `about` in its metadata, as JSON.
    """
    target = Path(path)
    # Copied, so that no tensor keeps the order in memory that it was computed in.
    tensors = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
        for name, tensor in network.state_dict().items()
    }
    if weights_suffix(target) == ".safetensors":
        # One entry at most: safetensors writes several in an order that changes from call to call.
        data = safetensors_bytes(tensors, metadata=None if about is None else {"about": json.dumps(about)})
    else:
        # Through memory: PyTorch would write the name of the temporary file into the archive.
        buffer = io.BytesIO()
        torch.save(tensors, buffer)
        data = buffer.getvalue()
    with naming(target), atomic_path(target) as temporary:
        temporary.write_bytes(data)


def _read_pickled(source: Path) -> Any:
    remedy = "save network.state_dict() with torch.save, or fetch the file again"
    try:
        _refuse_inflating(source)
        return torch.load(source, map_location="cpu", weights_only=True)
    except FileFormatError:
        raise
    except Exception as error:  # the unpickler meets bytes of any kind, and raises whatever they lead to
        # PyTorch's own advice, to load with weights_only=False, would run the file's code.
        found = str(error)
        if "Unsupported" in found or "weights_only" in found.lower() or "weights only" in found.lower():
            raise FileFormatError(
                f"{source} holds more than tensors, and reading it could run code, so it is refused; {remedy}"
            ) from error
        reason = found.strip().splitlines()[0] if found.strip() else type(error).__name__
        raise FileFormatError(
            f"{source} is not a PyTorch file of tensors, or is damaged or truncated ({reason}); {remedy}"
        ) from error


def _refuse_inflating(source: Path) -> None:
    """Raise if an archive says that it holds more bytes than it has: PyTorch stores tensors uncompressed."""
    if not zipfile.is_zipfile(source):
        return
    with zipfile.ZipFile(source) as archive:
        n_bytes = sum(member.file_size for member in archive.infolist())
    if n_bytes > source.stat().st_size:
        raise FileFormatError(
            f"{source} says that it holds {n_bytes:,} bytes but has {source.stat().st_size:,}; fetch it again"
        )


def _tensors_of(source: Path, document: Any) -> dict[str, Tensor]:
    if isinstance(document, Mapping):
        wrapped = [document[name] for name in WRAPPERS if isinstance(document.get(name), Mapping)]
        document = wrapped[0] if wrapped else document
    if not isinstance(document, Mapping):
        raise FileFormatError(
            f"{source} holds a {type(document).__name__} but weights are tensors by name; save network.state_dict()"
        )
    for name, tensor in document.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise FileFormatError(
                f"{source} holds a {type(tensor).__name__} under {name!r} but weights are tensors by name; save "
                f"network.state_dict()"
            )
        # One number may be shown as a tensor of any size, for which a network would then take memory.
        is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        if not is_plain or tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size():
            raise FileFormatError(f"{source} does not hold all numbers of {name}; save network.state_dict() again")
    # Nor may many names show the same numbers: a network has its own for each.
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in document.values()}
    if sum(tensor.numel() * tensor.element_size() for tensor in document.values()) > sum(storages.values()):
        raise FileFormatError(f"{source} has several names for the same numbers; save network.state_dict() again")
    return dict(document)


def matching_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors that have the expected names, shapes and kinds and hold finite numbers only; raise otherwise.

    Counts of training steps are left out where they are no numbers any more: half precision ends at 65,504.
    """
    missing = [name for name in expected if name not in tensors and not name.endswith(_OPTIONAL_SUFFIX)]
    if missing:
        raise FileFormatError(f"it lacks {some(missing)}; save all tensors of the network again")
    foreign = [name for name in tensors if name not in expected]
    if foreign:
        raise FileFormatError(f"the network has no {some(foreign)}; remove what is too much or pass another file")
    kept = {}
    for name, tensor in tensors.items():
        refuse_shape(name, tensor, tuple(expected[name].shape))
        dtype, is_count = expected[name].dtype, name.endswith(_OPTIONAL_SUFFIX)
        is_of_kind = is_count or tensor.is_floating_point() == dtype.is_floating_point
        if tensor.is_complex() or not is_of_kind:
            raise FileFormatError(f"{name} must hold {dtype} but holds {tensor.dtype}; pass another file")
        # As the network holds it: a number of double precision may be too large for it.
        is_finite = bool(tensor.to(torch.float64 if is_count else dtype).isfinite().all())
        if not is_finite and not is_count:
            raise FileFormatError(f"{name} holds NaN or infinity; every weight must be finite: fetch or save it again")
        if is_finite:
            kept[name] = tensor
    return kept


def refuse_shape(name: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
    """Raise if a tensor has another shape."""
    if tuple(tensor.shape) != expected:
        raise FileFormatError(f"{name} must have shape {expected} but has {tuple(tensor.shape)}; pass another file")


def some(names: Iterable[str]) -> str:
    """Return the first names of many.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    listed = list(names)
    shown = ", ".join(listed[:3]) or "0 tensors"
    return shown if len(listed) <= 3 else f"{shown} and {len(listed) - 3} more"
