"""Extraction: one pass of a network over each set, to features and logits in memory, kept on disk if asked."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from gem_ood.detectors import Head
from gem_ood.errors import InputError
from gem_ood.experiments.digests import loader_digest, network_digest
from gem_ood.experiments.extracted import CACHE_FORMAT, Extracted, FeatureCache
from gem_ood.experiments.image_sets import ImageSet
from gem_ood.experiments.networks.pixels import normalized
from gem_ood.experiments.paper_numbers import ODIN_TEMPERATURE
from gem_ood.features import is_count
from gem_ood.torch import ODIN
from gem_ood.torch.batches import Batch, Unpack, logits_of
from gem_ood.torch.layers import FeatureReader, Layer
from gem_ood.torch.modes import unwrapped, without_compilation
from gem_ood.torch.pooling import Pool
from gem_ood.torch.row_gradients import is_plain_linear
from gem_ood.torch.scorers import as_array
from gem_ood.torch.streaming import Reading, read_loader, refuse_non_finite_rows, require_loader, row_count

__all__ = ["Extractor", "ImageBatches", "OnRows", "Source"]

#: What inputs come as: images in memory, a data set, or a loader that yields batches.
Source = ImageSet | Dataset[Any] | Iterable[Any]

#: Called with the name of a set, how many of its rows are done, and how many there are if that is known.
OnRows = Callable[[str, int, int | None], None]

#: A head's logits and the network's own differ by the rounding of float32 sums, or of half precision.
HEAD_TOLERANCE = 1e-2

#: How many images are run to see that kept features are still those of the network, and how far rounding, such as that
#: of another number of threads, may move them.
PROBED_ROWS, PROBE_TOLERANCE, ROUNDING = 8, 1e-3, 1e-7


@dataclass(frozen=True)
class ImageBatches:
    """Images in memory as batches of normalised tensors and labels, in the order of the rows.

    >>> white = ImageSet("white", np.full((3, 4, 4, 3), 255, dtype=np.uint8))
    >>> [tuple(images.shape) for images, _ in ImageBatches(white, 2, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))]
    [(2, 3, 4, 4), (1, 3, 4, 4)]
    """

    images: ImageSet
    batch_size: int
    mean: Sequence[float]
    std: Sequence[float]
    dtype: torch.dtype = torch.float32

    @property
    def dataset(self) -> ImageSet:
        """The images, under the name by which loaders are asked for what they read."""
        return self.images

    def __len__(self) -> int:
        return math.ceil(len(self.images) / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, NDArray[np.int64] | None]]:
        for start in range(0, len(self.images), self.batch_size):
            rows = slice(start, start + self.batch_size)
            inputs = normalized(self.images.images[rows], mean=self.mean, std=self.std)
            yield inputs.to(self.dtype), None if self.images.labels is None else self.images.labels[rows]


class Extractor:
    """A network and where its features are read; each set passes through it once.

    Args:
        model: Any classifier; images in memory need one that takes them normalised.
        layer: As `gem_ood.torch.OODModel`.
        pool: As `gem_ood.torch.OODModel`.
        pixel_mean: What is subtracted from the colours of images in memory; the network's own unless given.
        pixel_std: What they are divided by.
        batch_size: Of images in memory and data sets.
        cache: A folder to keep features in, or None.
        unpack: From what a loader yields to (inputs, labels), where it yields something else.
        on_rows: Told how far each pass is.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        layer: Layer = "auto",
        pool: Pool = "mean",
        pixel_mean: Sequence[float] | None = None,
        pixel_std: Sequence[float] | None = None,
        batch_size: int = 200,
        cache: FeatureCache | None = None,
        unpack: Unpack | None = None,
        on_rows: OnRows | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"model is a {type(model).__name__}; pass a torch.nn.Module")
        if not is_count(batch_size):
            raise InputError(f"batch_size must be a whole number, at least 1, but is {batch_size!r}; pass 200, say")
        self.model = without_compilation(model)
        inner = unwrapped(self.model)
        self._reader = FeatureReader(self.model, layer, pool)
        self._batch_size = int(batch_size)
        self._unpack, self._on_rows, self._cache = unpack, on_rows, cache
        self._mean = _three(pixel_mean, "pixel_mean") or _three(getattr(inner, "pixel_mean", None), "model.pixel_mean")
        self._std = _three(pixel_std, "pixel_std") or _three(getattr(inner, "pixel_std", None), "model.pixel_std")
        self._network: str | None = None
        self._settings = {"layer": repr(self._reader.layer), "pool": repr(pool)}
        self._can_keep = not callable(self._reader.layer) and not callable(pool)
        #: What could not be kept, and why.
        self.notes: list[str] = []

    def check(self, source: Source, name: str, *, is_read_twice: bool = False) -> None:
        """Raise now, rather than after the passes over other sets, if this is nothing that can be read."""
        batches = self._batches(source, name)
        if is_read_twice and isinstance(batches, Iterator):
            raise InputError(
                f"{name} can be read only once, but ODIN's step needs a second pass; pass a DataLoader or a list"
            )

    def __call__(self, source: Source, name: str, *, with_labels: bool = True) -> Extracted:
        """Return features, logits and labels of every row of a set, which errors and progress call by this name."""
        batches = self._batches(source, name)
        key = self._key(source, batches, name, kind="features", with_labels=with_labels)
        kept = self._kept(key, lambda kept: self._gives_again(batches, kept, name))
        if kept is None:
            kept = self._pass(batches, name, with_labels)
            self._keep(key, kept, name)
        try:
            return Extracted(kept["features"], kept["logits"], kept.get("labels"))
        except InputError as error:
            raise InputError(f"{name}: {error}") from error

    def head(self, rows: Extracted) -> Head | None:
        """Return the last layer, if the features are its input and its output is the logits of these rows."""
        name = self._reader.name
        layer = None if name is None else unwrapped(self.model).get_submodule(name)
        if not isinstance(layer, nn.Linear) or not is_plain_linear(layer) or rows.logits is None:
            return None
        weight = as_array(layer.weight)
        if weight.shape != (rows.logits.shape[1], rows.features.shape[1]):
            return None
        head = Head(weight, None if layer.bias is None else as_array(layer.bias))
        some = slice(0, 1000)
        difference = np.abs(head.logits(rows.features[some]) - rows.logits[some]).max()
        return head if difference <= HEAD_TOLERANCE * (1.0 + np.abs(rows.logits[some]).max()) else None

    def odin(self, source: Source, name: str, *, noise: float) -> NDArray[np.float64]:
        """Return ODIN's score of every row with a step of this size in units of the pixels, which needs the inputs."""
        batches = self._batches(source, name)
        key = self._key(source, batches, name, kind="odin", noise=noise, temperature=ODIN_TEMPERATURE)
        std = self._std if isinstance(source, ImageSet) else None
        guard = ODIN(self.model, noise=noise, temperature=ODIN_TEMPERATURE, channel_std=std)

        def score(some: Iterable[Any]) -> NDArray[np.float64]:
            return guard.score_samples(some, unpack=self._unpack, progress=False)

        kept = self._kept(key, lambda kept: _are_close(score(_first(batches)), kept["scores"]))
        if kept is None:
            total = row_count(batches)
            parts, n_done = [], 0
            for batch in batches:
                parts.append(score([batch]))
                n_done += len(parts[-1])
                self._tell(name, n_done, total)
            kept = {"scores": np.concatenate(parts)}
            self._keep(key, kept, name)
        return kept["scores"]

    # One pass

    def _pass(self, batches: Iterable[Any], name: str, with_labels: bool) -> dict[str, NDArray[Any]]:
        features: list[NDArray[Any]] = []
        logits: list[NDArray[Any]] = []
        labels: list[NDArray[Any]] = []
        n_done, total = 0, row_count(batches)
        for batch, reading in self._readings(batches, name):
            features.append(as_array(reading.rows))
            logits.append(as_array(reading.logits))
            if with_labels and batch.labels is not None:
                labels.append(batch.labels)
            n_done += len(features[-1])
            self._tell(name, n_done, total)
        if not n_done:
            raise InputError(f"{name} has no row; pass a loader or a set with at least one")
        if labels and len(labels) < len(features):
            raise InputError(f"{name} has labels in some batches only; let all of them have labels, or none")
        if len({part.dtype.kind in "iufb" for part in labels}) > 1:
            raise InputError(
                f"the labels of {name} are numbers in one batch and text in another; name all classes in one way"
            )
        found = {"features": _joined(features), "logits": _joined(logits)}
        return found | ({"labels": np.concatenate(labels)} if labels else {})

    def _readings(self, batches: Iterable[Any], name: str) -> Iterator[tuple[Batch, Reading]]:
        """Yield each batch and what was read of it; errors are said of the set."""
        try:
            for place, (batch, reading) in enumerate(
                read_loader(self.model, batches, self._read, purpose=name, unpack=self._unpack, progress=False)
            ):
                logits = f"batch {place} of the loader (counted from 0): the model's logits"
                refuse_non_finite_rows(reading.logits, logits)
                yield batch, reading
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        except RuntimeError as error:  # the model's own, of inputs that it does not take
            error.add_note(f"while the model was run on {name}")
            raise

    def _read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Reading:
        output, features = self._reader.run(self.model, args, kwargs, logits_of)
        logits = logits_of(output)
        if len(features) != len(logits):
            raise InputError(
                f"the model gave {len(logits)} rows of logits but {len(features)} rows of features in layer "
                f"{self._reader.name!r}; pass pool= a function that makes one row per input, or layer= another layer"
            )
        return Reading(logits, features)

    def _batches(self, source: Source, name: str) -> Iterable[Any]:
        if isinstance(source, ImageSet):
            if self._mean is None or self._std is None:
                raise InputError(
                    f"{name} holds images, and a {type(unwrapped(self.model)).__name__} does not say how they are "
                    f"normalised; pass pixel_mean and pixel_std, three numbers each, or a loader of ready inputs"
                )
            return ImageBatches(source, self._batch_size, self._mean, self._std, dtype=_dtype_of(self.model))
        if isinstance(source, Dataset) and not isinstance(source, IterableDataset | DataLoader):
            return DataLoader(source, batch_size=self._batch_size)
        try:
            require_loader(source)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        return source

    def _tell(self, name: str, n_done: int, total: int | None) -> None:
        if self._on_rows is not None:
            self._on_rows(name, n_done, total)

    # What was kept

    def _key(self, source: Source, batches: Iterable[Any], name: str, **what: Any) -> dict[str, Any] | None:
        """Return what the results depend on: weights, data, how they are read. None where nothing is kept."""
        if self._cache is None:
            return None
        if not self._can_keep:
            self._note("No features were kept: layer or pool is a function, which cannot be told from another")
            return None
        data: dict[str, Any]
        if isinstance(source, ImageSet):
            data = {"images": source.digest, "mean": list(self._mean or ()), "std": list(self._std or ())}
        elif isinstance(batches, Iterator):  # reading it for its digest would use it up
            self._note(f"The features of {name} were not kept: it can be read only once")
            return None
        else:
            try:
                data = {"inputs": loader_digest(batches, self.model, self._unpack)}
            except InputError as error:
                raise InputError(f"{name}: {error}") from error
        self._network = self._network or network_digest(self.model)
        return {"format": CACHE_FORMAT, "network": self._network, **self._settings, **data, **what}

    def _kept(
        self, key: dict[str, Any] | None, is_right: Callable[[dict[str, NDArray[Any]]], bool]
    ) -> dict[str, NDArray[Any]] | None:
        """Return what an earlier run kept, if the network as it is now still gives the first rows of it.

        No digest sees all that a network's code may depend on, such as the functions that its forward calls.
        """
        found = None if key is None or self._cache is None else self._cache.find(key)
        return found if found is not None and is_right(found) else None

    def _gives_again(self, batches: Iterable[Any], kept: Mapping[str, NDArray[Any]], name: str) -> bool:
        _, reading = next(self._readings(_first(batches), name))
        pairs = ((reading.rows, kept["features"]), (reading.logits, kept["logits"]))
        return all(_are_close(as_array(rows), found) for rows, found in pairs)

    def _keep(self, key: dict[str, Any] | None, found: Mapping[str, NDArray[Any]], name: str) -> None:
        if key is None or self._cache is None:
            return
        try:
            self._cache.keep(key, found)
        except InputError as error:  # a full disk must not cost the pass that is already done
            self._note(f"The features of {name} were not kept: {error}")

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def _first(batches: Iterable[Any]) -> list[Any]:
    """Return the first batch, of images in memory only a few."""
    if isinstance(batches, ImageBatches):
        few = batches.images.take(np.arange(min(PROBED_ROWS, len(batches.images))))
        batches = replace(batches, images=few)
    return list(islice(batches, 1))


def _are_close(rows: NDArray[Any], kept: NDArray[Any]) -> bool:
    """Return whether rows are the first of those that were kept, but for rounding."""
    first = kept[: len(rows)]
    # By how far kept rows differ from each other: scores at a high temperature are nearly all alike.
    limit = PROBE_TOLERANCE * float(np.ptp(kept)) + ROUNDING * float(np.abs(first).max(initial=0.0))
    return rows.shape == first.shape and bool(np.abs(rows - first).max(initial=0.0) <= limit)


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    whole = np.concatenate(parts)
    return whole.astype(np.float32) if whole.dtype == np.float16 else whole


def _dtype_of(model: nn.Module) -> torch.dtype:
    """Return the precision of a model's first weights, which its inputs have too."""
    found = (tensor.dtype for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point())
    return next(found, torch.float32)


def _three(values: Sequence[float] | None, name: str) -> tuple[float, ...] | None:
    if values is None:
        return None
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):  # no sequence, or not of numbers
        numbers = ()
    is_std = name.endswith("std")
    if len(numbers) != 3 or not np.isfinite(numbers).all() or (is_std and min(numbers) <= 0.0):
        raise InputError(f"{name} is {values!r}; pass three numbers, for red, green and blue{', above 0' * is_std}")
    return numbers
