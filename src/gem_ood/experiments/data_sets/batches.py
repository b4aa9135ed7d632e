"""Batches: files of many pictures each, as the publishers of CIFAR and SVHN keep them."""

import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import FileFormatError, InputError
from gem_ood.experiments.data_sets.catalogue import SIDE, DataSet
from gem_ood.experiments.data_sets.pickled import read_pickle
from gem_ood.experiments.data_sets.trees import Tree, shown
from gem_ood.numpy_format import one_line

__all__ = ["FORMS", "batch_files", "find_batches", "label_checked", "read_batches"]

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


def read_batches(tree: Tree, names: Sequence[str], known: DataSet, split: str, form: str) -> Batch:
    """Return the pictures and labels of these files of a tree, one after another."""
    expected = batch_files(known, split, form)
    if len(names) < len(expected):
        there = {PurePosixPath(name).name.lower() for name in names}
        missing = ", ".join(file for file in expected if file not in there)
        raise InputError(
            f"{shown(tree.path)} lacks {missing} of {known.title}'s {split} split ({form} version); put all "
            f"{len(expected)} files there"
        )
    decode = _DECODERS[form]
    by_name = {}
    for name, read in tree.read(names):
        pixels, labels = decode(read(), tree.title(name), known)
        by_name[name] = pixels, label_checked(labels, len(pixels), known, tree.title(name))
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
    arrays = _matlab_arrays(data, title, (pixel_name, label_name))
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


def _matlab_arrays(data: bytes, title: str, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    from scipy.io import loadmat, whosmat

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Shapes first: a header that lies must not ask for more memory than the largest set takes.
            found = {name: (shape, kind) for name, shape, kind in whosmat(io.BytesIO(data))}
            if all(_is_numeric(*found.get(name, ((), ""))) for name in names):
                arrays: dict[str, NDArray[Any]] = loadmat(io.BytesIO(data), variable_names=list(names))
                return {name: np.asarray(arrays[name]) for name in names}
    except NotImplementedError as error:
        raise FileFormatError(
            f"{title} is of MATLAB's version 7.3, which cannot be read; save it with save(..., '-v7')"
        ) from error
    except Exception as error:  # SciPy's reader raises whatever the damaged bytes lead it to
        raise FileFormatError(
            f"{title} is no MATLAB file, or is truncated or damaged ({one_line(error)[:200]}); fetch it again"
        ) from error
    there = ", ".join(f"{name} {kind} {shape}" for name, (shape, kind) in list(found.items())[:8]) or "nothing"
    raise FileFormatError(
        f"{title} holds {there}, but not both {names[0]} and {names[1]} as numbers; it is truncated or damaged, or of "
        f"another data set: fetch it again"
    )


def _is_numeric(shape: tuple[int, ...], kind: str) -> bool:
    most = 1 << 31  # bytes; SVHN's largest part has 531,131 pictures of 3,072
    return kind in ("uint8", "int8", "uint16", "int16", "int32", "int64", "double", "single") and (
        0 < int(np.prod(shape, dtype=object)) <= most
    )


def _planes(pixels: NDArray[Any], title: str) -> NDArray[np.uint8]:
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != _PIXELS or not len(pixels):
        raise FileFormatError(
            f"{title} has data of shape {pixels.shape} and dtype {pixels.dtype} but uint8 of (n, {_PIXELS}) was "
            f"expected; fetch it again"
        )
    return _colours_last(pixels)


def _colours_last(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))
