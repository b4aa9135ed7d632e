"""Stored features: the paper's tables from files of features, without pictures or a network."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from gem_ood.detectors import Head
from gem_ood.detectors.cataloguing import lacking
from gem_ood.errors import InputError
from gem_ood.experiments import data_sets
from gem_ood.experiments.extracted import Extracted
from gem_ood.experiments.paper_numbers import PAPER, PAPER_METHODS, PAPER_SETS
from gem_ood.experiments.protocol import Protocol
from gem_ood.experiments.results import Experiment
from gem_ood.experiments.running import Methods, OnMethod, OnProgress, check_choices, run_features
from gem_ood.files import open_features, read_head
from gem_ood.files.reading import READABLE

__all__ = ["StoredFeatures", "check_name", "folded", "read_stored_features", "reproduce_features"]


@dataclass(frozen=True)
class StoredFeatures:
    """The features of one network on every set, as files hold them."""

    train: Extracted
    test: Extracted
    ood: Mapping[str, Extracted]
    head: Head | None


def read_stored_features(folder: str | PathLike[str], on_rows: OnProgress | None = None) -> StoredFeatures:
    """Return the features of a folder with `train`, `test` and one `ood_NAME` file per set, and perhaps `head`.

    Files are those of `gem_ood.files`: `.npz`, `.npy`, `.parquet`, `.csv` or `.safetensors`; train needs labels.
    """
    directory = Path(folder)
    if not directory.is_dir():
        raise InputError(f"{directory} is not a folder; pass one with train.npz, test.npz and ood_NAME.npz, say")
    found = _by_stem(directory)
    outside = folded({stem.removeprefix("ood_"): path for stem, path in found.items() if stem.startswith("ood_")})
    outside = {name: outside[name] for name in (*PAPER_SETS, *outside) if name in outside}  # in the paper's order
    for needed in ("train", "test"):
        if needed not in found:
            raise InputError(f"{directory} has no file {needed} ({', '.join(READABLE)}); put one there")
    if not outside:
        raise InputError(f"{directory} has no file ood_NAME ({', '.join(READABLE)}); put at least one there")

    def read(path: Path, name: str, with_labels: bool) -> Extracted:
        file = open_features(path, labels=None if with_labels else False)
        features, labels, n_read = [], [], 0
        for rows, row_labels in file:
            features.append(rows)
            labels += [] if row_labels is None else [row_labels]
            n_read += len(rows)
            if on_rows is not None:
                on_rows(name, n_read, file.n_rows)
        return Extracted(np.concatenate(features), labels=np.concatenate(labels) if labels else None)

    train, test = (read(found[part], part, with_labels=True) for part in ("train", "test"))
    if train.labels is None:
        raise InputError(f"{found['train']} has no labels, but class means need them; add an array 'labels'")
    sets = {name: read(path, name, with_labels=False) for name, path in outside.items()}
    return StoredFeatures(train, test, sets, read_head(found["head"]) if "head" in found else None)


def reproduce_features(
    name: str,
    folder: str | PathLike[str],
    *,
    methods: Methods = PAPER_METHODS,
    protocol: Protocol | None = None,
    on_rows: OnProgress | None = None,
    on_method: OnMethod | None = None,
) -> Experiment:
    """Return the paper's tables from stored features, beside the paper's numbers for CIFAR-10 or CIFAR-100.

    Needs neither PyTorch nor pictures. Sets that are named as the paper's (textures, svhn, places365, lsun-c, lsun-r,
    isun) stand beside its numbers.

    Args:
        name: "cifar10" or "cifar100": whose printed numbers to compare with.
        folder: As `read_stored_features`.
        methods: As `run`.
        protocol: As `run`.
        on_rows: Told how far each file is read.
        on_method: As `run`.

    >>> import tempfile
    >>> rng = np.random.default_rng(0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for part in ("train", "test"):
    ...         np.savez(f"{folder}/{part}.npz", features=rng.normal(size=(200, 4)), labels=np.arange(200) % 10)
    ...     np.savez(f"{folder}/ood_svhn.npz", features=6.0 + rng.normal(size=(80, 4)))
    ...     result = reproduce_features("cifar10", folder, methods=["gem"])
    >>> result.value("gem", "auroc", "svhn"), result.printed("gem", "auroc", "svhn")
    (1.0, 0.9759)
    """
    check_name(name)
    methods = check_choices(methods, protocol)
    stored = read_stored_features(folder, on_rows)
    _check_stored(stored, name, folder, methods)
    return run_features(
        stored.train,
        stored.test,
        stored.ood,
        head=stored.head,
        methods=methods,
        protocol=protocol,
        name=name,
        paper=PAPER[name],
        on_method=on_method,
    )


def _by_stem(directory: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(directory.iterdir()):
        if path.suffix.lower() in READABLE:
            if path.stem in found:
                raise InputError(f"{found[path.stem]} and {path} are both {path.stem}; leave one of them there")
            found[path.stem] = path
    return found


def _check_stored(stored: StoredFeatures, name: str, folder: str | PathLike[str], methods: Methods) -> None:
    """Raise if features are of another network than one of this set's, or lack what methods read."""
    n_classes = data_sets.N_CLASSES[name]
    assert stored.train.labels is not None  # refused where it is read
    n_found = stored.head.n_classes if stored.head is not None else len(np.unique(stored.train.labels))
    if n_found != n_classes:
        what = "a head of" if stored.head is not None else "labels of"
        raise InputError(
            f"{folder} holds {what} {n_found} classes but {data_sets.TITLES[name]} has {n_classes}; pass features of a "
            f"network that was trained on it"
        )
    for part, found in (("train", stored.train), ("test", stored.test)):
        if found.labels is not None and (
            found.labels.dtype.kind != "i" or not np.isin(found.labels, range(n_classes)).all()
        ):
            raise InputError(f"the labels of {part} in {folder} must be whole numbers from 0 to {n_classes - 1}")
    unread = [] if methods == "all" or stored.head else [one for one in methods if lacking(one) is not None]
    if unread:
        raise InputError(
            f"{folder} has no file head, the classifier's last layer, which {', '.join(unread)} read; put it there, or "
            f"choose other methods"
        )


def folded(named: Mapping[str, Path]) -> dict[str, Path]:
    """Return sets by name, those of the paper by its own: they count in any case, and as tables call them."""
    own = {called.lower(): name for name in PAPER_SETS for called in (name, data_sets.TITLES[name])}
    folded: dict[str, Path] = {}
    for name, path in named.items():
        settled = own.get(name.lower(), name)
        if settled in folded:
            raise InputError(f"{folded[settled]} and {path} are both {settled}; leave one of them out")
        folded[settled] = path
    return folded


def check_name(name: str) -> None:
    """Raise if the paper has no table for this in-distribution set."""
    if not isinstance(name, str) or name not in PAPER:
        raise InputError(f"the paper has no table for {name!r}; pass {' or '.join(map(repr, PAPER))}")
