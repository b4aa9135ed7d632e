"""reproduce: the paper's tables from its data sets and weights, wherever these are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gem_ood.comparison.scoring import check_sets
from gem_ood.errors import InputError
from gem_ood.experiments import data_sets
from gem_ood.experiments.data_sets.loading import check_images
from gem_ood.experiments.extracted import FeatureCache
from gem_ood.experiments.obtaining import default_folder, fetch_missing, weights_file
from gem_ood.experiments.paper_numbers import PAPER, PAPER_METHODS, PAPER_SETS
from gem_ood.experiments.protocol import Protocol
from gem_ood.experiments.results import Experiment
from gem_ood.experiments.running import Methods, OnMethod, OnProgress, check_choices, run
from gem_ood.experiments.sources import ARCHIVES
from gem_ood.experiments.stored import check_name, folded
from gem_ood.features import is_count
from gem_ood.storage import as_path

if TYPE_CHECKING:
    from gem_ood.experiments.image_sets import ImageSet
    from gem_ood.experiments.networks import CifarResNet, WideResNet

__all__ = ["reproduce"]

#: How many pictures of a folder become a set of its own: as many as the paper's Places365 has.
LIMIT = 10_000


def reproduce(
    name: str,
    *,
    data: str | PathLike[str] | None = None,
    weights: str | PathLike[str] | None = None,
    download: bool = False,
    sets: Sequence[str] = PAPER_SETS,
    ood: Mapping[str, str | PathLike[str]] | None = None,
    limit: int = LIMIT,
    methods: Methods = PAPER_METHODS,
    protocol: Protocol | None = None,
    odin_noise: float = 0.0,
    device: str = "auto",
    batch_size: int = 200,
    cache: str | PathLike[str] | None = None,
    on_bytes: OnProgress | None = None,
    on_rows: OnProgress | None = None,
    on_method: OnMethod | None = None,
) -> Experiment:
    """Return the paper's tables for CIFAR-10 or CIFAR-100 (P44 to P48), beside the paper's numbers.

    Everything that is needed is looked for before anything is read or computed. Nothing is downloaded unless asked.

    Args:
        name: "cifar10" or "cifar100".
        data: The folder that holds the data sets, in any usual layout; a folder of the user's cache unless given.
        weights: The network's weights: a WideResNet or a CIFAR ResNet, `.pt` or `.safetensors`. Unless given, the
            published WideResNet-40-2 is looked for in `data`.
        download: Fetch what is missing into `data`, checked against its published checksum.
        sets: Which of the paper's out-of-distribution sets.
        ood: Other sets by name: folders or archives of pictures, or arrays of them. One that bears the name of a set of
            the paper is taken for it, in whichever of its usual layouts.
        limit: At most so many pictures of Places365 and of each set that is not the paper's, drawn by the protocol's
            seed; 0 is all.
        methods: As `run`.
        protocol: As `run`.
        odin_noise: As `run`.
        device: "cpu", "cuda" and the like, or "auto" for a GPU where there is one.
        batch_size: As `run`.
        cache: As `run`.
        on_bytes: Told how far each download is: its name, the bytes done, and in all.
        on_rows: Told how far each set is, while it is read and while it passes through the network.
        on_method: As `run`.

    Raises:
        InputError: A set or the weights are not there; the message says where they were looked for, and the remedy.
    """
    from gem_ood.extras import require_extra

    require_extra("torch", "torch", purpose="networks")
    from gem_ood.experiments.networks.devices import resolved_device

    check_name(name)
    methods = check_choices(methods, protocol, odin_noise=odin_noise)
    others = _checked_folders(ood or {})
    wanted = _checked_sets(sets, others)
    for option, value, least in (("batch_size", batch_size, 1), ("limit", limit, 0)):
        if not is_count(value, least=least):
            raise InputError(f"{option} must be a whole number, at least {least}, but is {value!r}; pass another")
    place = resolved_device(device)
    if cache is not None:
        FeatureCache(as_path(cache, "cache"))
    folder = default_folder() if data is None else as_path(data, "data")
    network = None if weights is None else _checked_network(as_path(weights, "weights"), name)
    if download:
        fetch_missing([name, *wanted], folder, on_bytes=on_bytes)
    _require_sets(name, wanted, folder)
    file = Path(weights) if weights else weights_file(name, folder, download=download, on_bytes=on_bytes)
    network = network or _checked_network(file, name)
    drawing = protocol or Protocol()
    reading = _Reading(folder, drawing.seed, limit, on_rows)
    train, test, outside = reading.set(name, "train"), reading.set(name, "test"), reading.others(wanted, others)
    result = run(
        network.to(place),
        train,
        test,
        outside,
        methods=methods,
        protocol=drawing,
        odin_noise=odin_noise,
        batch_size=batch_size,
        cache=cache,
        name=name,
        paper=PAPER[name],
        on_rows=on_rows,
        on_method=on_method,
        progress=False,
    )
    sources = {key: found.source for key, found in {f"{name} (train)": train, name: test, **outside}.items()}
    return replace(result, notes=(_about_network(network, file), *result.notes), sources=sources)


class _Reading:
    """Reads sets, and tells how far it is."""

    def __init__(self, folder: Path, seed: int, limit: int, on_rows: OnProgress | None) -> None:
        self._folder, self._seed, self._limit, self._on_rows = folder, seed, limit, on_rows

    def set(self, name: str, split: str, own: Path | None = None) -> "ImageSet":
        """Return a set of the paper, from the folder of all or from one of its own."""
        return data_sets.load(
            name,
            own or self._folder,
            split=split,
            limit=self._limit if name in data_sets.DEFAULT_LIMITS else None,
            seed=self._seed,
            is_own=own is not None,
            on_images=self._told(f"read {name} {split}"),
        )

    def others(self, wanted: Sequence[str], folders: Mapping[str, Path]) -> "dict[str, ImageSet]":
        """Return the out-of-distribution sets, the paper's in the order of its tables."""
        found = {key: self.set(key, "test", folders.get(key)) for key in PAPER_SETS if key in {*wanted, *folders}}
        for key, path in folders.items():
            if key not in found:
                told = self._told(f"read {key}")
                found[key] = data_sets.load_images(path, key, limit=self._limit, seed=self._seed, on_images=told)
        return found

    def _told(self, title: str) -> Callable[[int, int], None] | None:
        on_rows = self._on_rows
        return None if on_rows is None else lambda n_done, n_total: on_rows(title, n_done, n_total)


def _checked_folders(ood: Mapping[str, str | PathLike[str]]) -> dict[str, Path]:
    check_sets(ood)
    folders = folded({key: as_path(path, f"ood[{key!r}]") for key, path in ood.items()})
    for key, path in folders.items():
        if key in PAPER:
            raise InputError(f"{key!r} is the name of an in-distribution set; give the other set another name")
        if key not in PAPER_SETS:
            check_images(path, key)
        elif not path.exists():
            raise InputError(f"{path} of the set {key!r} does not exist; pass a folder or an archive of pictures")
        elif data_sets.find(key, path, is_own=True) is None:
            raise InputError(
                f"{path} does not hold {data_sets.TITLES[key]} in any usual layout; pass what does, or give these "
                f"pictures a name that is none of the paper's"
            )
    return folders


def _checked_sets(sets: Sequence[str], others: Mapping[str, Path]) -> tuple[str, ...]:
    """Return the sets of the paper that are read from the folder of all."""
    if not isinstance(sets, Sequence):
        raise InputError(f"sets is a {type(sets).__name__}; pass names of {', '.join(PAPER_SETS)}")
    chosen = (sets,) if isinstance(sets, str) else tuple(sets)
    for one in chosen:
        if one not in PAPER_SETS:
            raise InputError(f"the paper has no set {one!r}; choose among {', '.join(PAPER_SETS)}")
        if chosen.count(one) > 1:
            raise InputError(f"the set {one!r} is named twice; name each once")
    if not chosen and not others:
        raise InputError("there is no out-of-distribution set; name some of the paper's, or others")
    return tuple(one for one in chosen if one not in others)


def _require_sets(name: str, wanted: Sequence[str], folder: Path) -> None:
    """Raise one error for all that is missing."""
    needed = [(name, "train"), (name, "test"), *((key, "test") for key in wanted)]
    if not folder.exists():
        names = ", ".join(dict.fromkeys(key for key, _ in needed))
        raise InputError(f"{folder} does not exist; pass the folder that holds {names}, or download=True (--download)")
    missing = {key: split for key, split in needed if data_sets.find(key, folder, split=split) is None}
    if len(missing) == 1:
        ((key, split),) = missing.items()
        data_sets.load(key, folder, split=split)  # which says what was looked for, and where
    if missing:
        there = [key for key in wanted if key not in missing]
        instead = f", or choose among the sets that are there ({', '.join(there)})" if there else ""
        archives = ", ".join(ARCHIVES[key].file_name for key in missing)
        raise InputError(
            f"{folder} does not hold {', '.join(missing)}; looked for {archives} and every other usual layout, up to "
            f"three folders below; pass the folder that does, or download=True (--download){instead}"
        )


def _checked_network(file: Path, name: str) -> "WideResNet | CifarResNet":
    """Return the network of a file of weights; raise if it was not trained on as many classes as this set has."""
    from gem_ood.experiments.networks import load_network

    network = load_network(file)
    head = network.get_submodule("fc" if hasattr(network, "fc") else "linear")
    if head.out_features != data_sets.N_CLASSES[name]:
        raise InputError(
            f"{file} holds a network of {head.out_features} logits but {data_sets.TITLES[name]} has "
            f"{data_sets.N_CLASSES[name]} classes; pass weights that were trained on it"
        )
    return network


def _about_network(network: Any, file: Path) -> str:
    n_parameters = sum(parameter.numel() for parameter in network.parameters())
    return f"Network: {type(network).__name__}, {n_parameters:,} parameters, weights {file.name}"
