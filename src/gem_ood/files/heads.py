"""The linear head of a classifier, read from a file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.detectors import Head
from gem_ood.errors import InputError
from gem_ood.features import as_labels
from gem_ood.files.reading import refuse_unreadable
from gem_ood.files.sources import Member

__all__ = ["read_head", "read_head_classes"]


def read_head(path: str | os.PathLike[str]) -> Head:
    """Return the head of a `.npz` or `.safetensors` file that holds "weight" (classes × features) and "bias".

    A saved part of a PyTorch model serves too, if just one name ends in ".weight" ("fc.weight", "fc.bias"). A
    file without a bias gives a head without one.
    """
    members = _members(Path(path))
    weight = _weight(Path(path), members)
    bias = members.get(weight.removesuffix("weight") + "bias")
    return Head(_whole(members[weight]), None if bias is None else _whole_bias(bias))


def read_head_classes(path: str | os.PathLike[str]) -> NDArray[Any] | None:
    """Return the array "classes" of a head's file, the class names in the order of the logits, or None without one."""
    members = _members(Path(path))
    classes = members.get("classes")
    if classes is None:
        return None
    classes.refuse_as_labels()
    names = as_labels(classes.rows(0, classes.shape[0]), classes.shape[0], name=classes.title)
    n_logits = members[_weight(Path(path), members)].shape[0]
    if len(names) != n_logits:
        raise InputError(
            f"{classes.title} has {len(names)} names but 'weight' has {n_logits} rows; write one name per logit"
        )
    if len(np.unique(names)) < len(names):
        raise InputError(f"{classes.title} has a name twice; write each class once, in the order of the logits")
    return names


def _members(path: Path) -> Mapping[str, Member]:
    if refuse_unreadable(path, (".npz", ".safetensors")) == ".npz":
        from gem_ood.files.numpy_members import npz_members

        return npz_members(path)
    from gem_ood.files.safetensors_members import safetensors_members

    return safetensors_members(path)


def _weight(path: Path, members: Mapping[str, Member]) -> str:
    """Return the name of the one weight."""
    weights = [name for name in members if name == "weight" or name.endswith(".weight")]
    if len(weights) != 1:
        held = ", ".join(repr(name) for name in members) or "no array"
        raise InputError(f"{path} must hold one 'weight' but has {len(weights)}; it holds {held}")
    members[weights[0]].refuse_as_features()
    return weights[0]


def _whole(member: Member) -> NDArray[np.float64]:
    return np.asarray(member.rows(0, member.shape[0]), dtype=np.float64)


def _whole_bias(member: Member) -> NDArray[np.float64]:
    member.refuse_as_labels()
    return _whole(member).ravel()
