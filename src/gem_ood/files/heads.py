"""The linear head of a classifier, read from a file."""

import os
from pathlib import Path

import numpy as np

from gem_ood.detectors import Head
from gem_ood.errors import InputError
from gem_ood.files.reading import refuse_unreadable
from gem_ood.files.sources import Member

__all__ = ["read_head"]


def read_head(path: str | os.PathLike[str]) -> Head:
    """Return the head of a `.npz` or `.safetensors` file that holds "weight" (classes × features) and "bias".

    A saved part of a PyTorch model serves too, if just one name ends in ".weight" ("fc.weight", "fc.bias"). A
    file without a bias gives a head without one.
    """
    path = Path(path)
    suffix = refuse_unreadable(path, (".npz", ".safetensors"))
    if suffix == ".npz":
        from gem_ood.files.numpy_members import npz_members as members_of
    else:
        from gem_ood.files.safetensors_members import safetensors_members as members_of
    members = members_of(path)
    weights = [name for name in members if name == "weight" or name.endswith(".weight")]
    if len(weights) != 1:
        held = ", ".join(repr(name) for name in members) or "no array"
        raise InputError(f"{path} must hold one 'weight' but has {len(weights)}; it holds {held}")
    weight = members[weights[0]]
    weight.refuse_as_features()
    bias = members.get(weights[0].removesuffix("weight") + "bias")
    return Head(_whole(weight), None if bias is None else _whole_bias(bias))


def _whole(member: Member) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.asarray(member.rows(0, member.shape[0]), dtype=np.float64)


def _whole_bias(member: Member) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    member.refuse_as_labels()
    return _whole(member).ravel()
