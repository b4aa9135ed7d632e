"""Digests: by which features are found again, of a network and of what a loader yields."""

import hashlib
from collections.abc import Iterable, Mapping
from itertools import chain
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gem_ood.torch.batches import Unpack, as_batch
from gem_ood.torch.modes import unwrapped

__all__ = ["loader_digest", "network_digest"]


def network_digest(model: nn.Module) -> str:
    """Return a SHA-256 of a model: its parts, their settings and code, and all weights and buffers.

    >>> network_digest(nn.Linear(2, 2)) == network_digest(nn.Linear(2, 2))
    False
    """
    inner = unwrapped(model)
    found = hashlib.sha256(repr(inner).encode())
    for name, part in inner.named_modules(remove_duplicate=False):
        kind = type(part)
        settings = {key: value for key, value in sorted(vars(part).items()) if _is_setting(key, value)}
        found.update(f"\n{name} {kind.__module__}.{kind.__qualname__} {settings}".encode())
        hooks = (*part._forward_pre_hooks.values(), *part._forward_hooks.values())
        functions = (getattr(kind, "forward", None), *vars(part).values(), *hooks)
        for function in functions:
            found.update(f"{getattr(function, '__qualname__', '')}".encode())
            found.update(_code_of(getattr(function, "__code__", None)))
    # Buffers that a state_dict leaves out matter as much as others.
    every = (inner.named_parameters(remove_duplicate=False), inner.named_buffers(remove_duplicate=False))
    for name, tensor in chain(*every):  # under each of its names: which layers share a tensor matters
        _add_value(found, (name, tensor))
    return found.hexdigest()


def _is_setting(name: str, value: object) -> bool:
    """Return whether an attribute of a module says how it computes; its mode is set for each pass."""
    parts = value if isinstance(value, tuple | list) else (value,)
    return (
        not name.startswith("_") and name != "training" and all(isinstance(part, str | int | float) for part in parts)
    )


def _code_of(code: CodeType | None) -> bytes:
    """Return what a function does, so that a forward that was rewritten is another network; no names of files."""
    if code is None:
        return b""
    inner = [_code_of(part) if isinstance(part, CodeType) else repr(part).encode() for part in code.co_consts]
    return b"\n".join([code.co_code, repr(code.co_names).encode(), *inner])


def loader_digest(batches: Iterable[Any], model: nn.Module, unpack: Unpack | None) -> str:
    """Return a SHA-256 of every input and label that a loader yields, in its order."""
    found = hashlib.sha256()
    for item in batches:
        batch = as_batch(item, model, unpack)
        _add_value(found, (batch.args, batch.kwargs, None if batch.labels is None else batch.labels.tolist()))
    return found.hexdigest()


def _add_value(found: "hashlib._Hash", value: Any) -> None:
    """Add a tensor, an array, anything that prints as what it is, or tuples, lists and mappings of these."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiubc":
        value = torch.from_numpy(np.array(value))
    if isinstance(value, Tensor):
        found.update(f"({value.dtype} {tuple(value.shape)})".encode())
        found.update(_bytes_of(value))
    elif isinstance(value, Mapping):
        _add_value(found, list(value.items()))
    elif isinstance(value, tuple | list):
        found.update(f"[{len(value)}".encode())
        for part in value:
            _add_value(found, part)
    else:
        found.update(f"({value!r})".encode())


def _bytes_of(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().data) if flat.numel() else b""
