"""Obtaining: which data sets and weights a folder lacks, and their public archives downloaded into it."""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

from gem_ood.errors import InputError, MissingExtraError
from gem_ood.experiments import data_sets
from gem_ood.experiments.downloading import fetch
from gem_ood.experiments.sources import ARCHIVES, WEIGHTS
from gem_ood.extras import require_extra

__all__ = ["default_cache", "default_folder", "fetch_missing", "weights_file"]

#: Told the name of a file, the bytes of it that are done, and those in all if that is known.
OnBytes = Callable[[str, int, int | None], None]


def default_folder() -> Path:
    """Return the folder of the user's cache where data sets are kept unless another is named."""
    require_extra("data", "pooch", purpose="data sets")
    import pooch

    return Path(pooch.os_cache("gem-ood"))


def default_cache() -> Path | None:
    """Return the folder of the user's cache where features are kept, None if nothing says where that is."""
    try:
        return default_folder() / "features"
    except MissingExtraError:
        return None


def fetch_missing(names: Sequence[str], folder: str | PathLike[str], *, on_bytes: OnBytes | None = None) -> None:
    """Download the archives of those data sets that a folder does not hold in any layout, each as `fetch` does."""
    for name in names:
        splits = ("train", "test") if name.startswith("cifar") else ("test",)  # all that its archive holds
        there = Path(folder).exists() and all(
            data_sets.find(name, folder, split=split, is_whole=True) for split in splits
        )
        if not there:
            fetch(ARCHIVES[name], folder, on_bytes=_told(on_bytes, ARCHIVES[name].file_name))


def weights_file(name: str, folder: Path, *, download: bool, on_bytes: OnBytes | None = None) -> Path:
    """Return the file of the published weights in a folder; downloaded, and checked, if that is asked for."""
    published = WEIGHTS[name]
    if download:
        return fetch(published, folder, on_bytes=_told(on_bytes, published.file_name))
    if not (folder / published.file_name).is_file():
        raise InputError(
            f"{folder} does not hold {published.file_name}, the published weights; pass the file of weights, or "
            f"download=True (--download), or train a network with gem-ood train {name}"
        )
    return folder / published.file_name


def _told(on_bytes: OnBytes | None, name: str) -> Callable[[int, int | None], None] | None:
    return None if on_bytes is None else lambda n_done, n_total: on_bytes(name, n_done, n_total)
