"""Batches: files of many pictures each, as the publishers of CIFAR and SVHN keep them."""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments.data_sets.catalogue import SIDE, DataSet
from gem_ood.experiments.data_sets.matlab import read_matlab
from gem_ood.experiments.data_sets.pickled import read_pickle
from gem_ood.experiments.data_sets.trees import Tree, shown

__all__ = ["FORMS", "batch_files", "find_batches", "label_checked", "lacking", "missing_files", "read_batches"]

#: The official versions, in the order in which they are preferred, and how their files end.
FORMS = {"binary": ".bin", "python": "", "matlab": ".mat"}

_STEMS: dict[str, dict[str, tuple[str, ...]]] = {
    "cifar10": {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
    "cifar100": {"train": ("train",), "test": ("test",)},
    "svhn": {"train": ("train_32x32",), "test": ("test_32x32",)},
}

_PIXELS = 3 * SIDE * SIDE

#: Pixels (n, 32, 32, 3) and labels.
Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]


def batch_files(known: DataSet, split: str, form: str) -> tuple[str, ...]:
    """Return what the files of a split are called in this version, () where there is no such version.

    >>> from gem_ood.experiments.data_sets.catalogue import entry
    >>> batch_files(entry("cifar10"), "test", "binary"), batch_files(entry("svhn"), "test", "binary")
    (('test_batch.bin',), ())
    """
    if known.name not in _STEMS or (known.name == "svhn" and form != "matlab"):
        return ()
    return tuple(stem + FORMS[form] for stem in _STEMS[known.name][split])


def find_batches(names: Sequence[str], known: DataSet, split: str, form: str) -> list[str]:
    """Return which of a tree's files are those of a split in this version, in their order; some may be missing."""
    found: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (name.count("/"), name)):
        found.setdefault(PurePosixPath(name).name.lower(), name)
    return [found[file] for file in batch_files(known, split, form) if file in found]


def missing_files(names: Sequence[str], known: DataSet, split: str, form: str) -> list[str]:
    """Return which files of a split in this version are not among those that `find_batches` found.

    >>> from gem_ood.experiments.data_sets.catalogue import entry
    >>> missing_files(["b/data_batch_1.bin", "b/data_batch_4.bin"], entry("cifar10"), "train", "binary")
    ['data_batch_2.bin', 'data_batch_3.bin', 'data_batch_5.bin']
    """
    there = {PurePosixPath(name).name.lower() for name in names}
    return [file for file in batch_files(known, split, form) if file not in there]


def lacking(path: Path, names: Sequence[str], known: DataSet, split: str, form: str) -> InputError:
    """Return the error that says which files of a split a folder or an archive lacks."""
    return InputError(
        f"{shown(path)} lacks {', '.join(missing_files(names, known, split, form))} of {known.title}'s {split} split "
        f"({form} version); put all {len(batch_files(known, split, form))} files there"
    )


def read_batches(tree: Tree, names: Sequence[str], known: DataSet, form: str) -> Batch:
    """Return the pictures and labels of these files of a tree, one after another."""
    decode = _DECODERS[form]
    by_name = {}
    for name, read in tree.read(names):
        pixels, labels = decode(read(), tree.title(name), known)
        by_name[name] = pixels, label_checked(labels, len(pixels), known, tree.title(name))
    if len(by_name) < len(names):
        raise FileFormatError(
            f"{shown(tree.path)} gave {len(by_name)} of {len(names)} files: it was changed while it was read; read it "
            f"again"
        )
    batches = [by_name[name] for name in names]
    if len(batches) == 1:
        return batches[0]
    return np.concatenate([pixels for pixels, _ in batches]), np.concatenate([labels for _, labels in batches])


def label_checked(labels: NDArray[Any], n_images: int, known: DataSet, title: str) -> NDArray[np.int64]:
    """Return labels as whole numbers, if there is one per picture and each is that of a class."""
    flat = labels.reshape(-1)
    if flat.dtype.kind == "f" and np.array_equal(flat, np.rint(flat)):  # MATLAB's numbers
        flat = flat.astype(np.int64)
    if flat.shape != (n_images,) or flat.dtype.kind not in "iu":
        raise FileFormatError(
            f"{title} has labels of shape {labels.shape} and dtype {labels.dtype} for {n_images} pictures; one whole "
            f"number per picture was expected: fetch it again"
        )
    if known.name == "svhn":
        flat = np.where(flat == 10, 0, flat)  # as it is published, the digit 0 has the label 10
    if n_images and not 0 <= int(flat.min()) <= int(flat.max()) < known.n_classes:
        raise FileFormatError(
            f"{title} has labels from {flat.min()} to {flat.max()} but {known.title}'s are 0 to {known.n_classes - 1}; "
            f"the file is damaged or of another data set: fetch it again"
        )
    return flat.astype(np.int64)


def _binary(data: bytes, title: str, known: DataSet) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Take records of a label (CIFAR-100: the coarse one, then the fine one) and the planes of red, green and blue."""
    n_labels = 2 if known.name == "cifar100" else 1
    record = n_labels + _PIXELS
    if not data or len(data) % record:
        raise FileFormatError(
            f"{title} has {len(data):,} bytes, which is no multiple of {known.title}'s records of {record} bytes; it "
            f"is truncated or of another data set: fetch it again"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, record)
    return _colours_last(records[:, n_labels:]), records[:, n_labels - 1]


def _python(data: bytes, title: str, known: DataSet) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    entries = read_pickle(data, title)
    name = "fine_labels" if known.name == "cifar100" else "labels"
    pixels, labels = entries.get("data"), entries.get(name)
    if isinstance(labels, list) and all(type(label) is int for label in labels):
        labels = np.array([min(max(label, -1), 1 << 20) for label in labels], dtype=np.int64)
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, np.ndarray):
        found = (
            ", ".join(f"{key[:40]} ({type(value).__name__})" for key, value in list(entries.items())[:8]) or "nothing"
        )
        raise FileFormatError(f"{title} holds {found}, but not data and {name} of {known.title}; pass its own files")
    return _planes(pixels, title), labels


def _matlab(data: bytes, title: str, known: DataSet) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    pixel_name, label_name = {"svhn": ("X", "y"), "cifar100": ("data", "fine_labels")}.get(
        known.name, ("data", "labels")
    )
    arrays = read_matlab(data, title, (pixel_name, label_name))
    pixels = arrays[pixel_name]
    if known.name != "svhn":
        return _planes(pixels, title), arrays[label_name]
    if pixels.ndim == 3:  # MATLAB drops a last axis of one
        pixels = pixels[..., np.newaxis]
    if pixels.dtype != np.uint8 or pixels.shape[:3] != (SIDE, SIDE, 3) or pixels.ndim != 4 or not pixels.size:
        raise FileFormatError(
            f"{title} has an X of shape {pixels.shape} and dtype {pixels.dtype} but uint8 of (32, 32, 3, n) was "
            f"expected; pass SVHN's cropped digits ({', '.join(batch_files(known, 'test', 'matlab'))})"
        )
    return np.ascontiguousarray(pixels.transpose(3, 0, 1, 2)), arrays[label_name]


_DECODERS: dict[str, Callable[[bytes, str, DataSet], tuple[NDArray[np.uint8], NDArray[Any]]]] = {
    "binary": _binary,
    "python": _python,
    "matlab": _matlab,
}


def _planes(pixels: NDArray[Any], title: str) -> NDArray[np.uint8]:
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != _PIXELS or not len(pixels):
        raise FileFormatError(
            f"{title} has data of shape {pixels.shape} and dtype {pixels.dtype} but uint8 of (n, {_PIXELS}) was "
            f"expected; fetch it again"
        )
    return _colours_last(pixels)


def _colours_last(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))
