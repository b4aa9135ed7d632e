"""Streaming: one pass of a model over a loader, as rows for a detector, with a progress bar on a terminal."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from gem_ood.errors import InputError
from gem_ood.features import refuse_non_finite
from gem_ood.progress import RowProgress
from gem_ood.torch.batches import Batch, Unpack, as_batch, moved
from gem_ood.torch.modes import evaluating
from gem_ood.torch.scorers import as_array

__all__ = ["Reading", "RowBatches", "device_of", "read_loader", "refuse_non_finite_rows", "require_loader", "row_count"]

#: Rows are handed to the fit in groups of at least so many: updating a wide covariance costs a pass over it each time.
ROWS_PER_GROUP = 1024


class Reading(NamedTuple):
    """What one forward pass gave: the model's logits, the rows that the detector takes, and the class if it is known.

    `nearest` is None where the detector itself knows the nearest class; `members` is the logits of each classifier,
    as it gave them, where several were asked.
    """

    logits: Tensor
    rows: Tensor
    nearest: Tensor | None = None
    members: Sequence[Tensor] | None = None


Read = Callable[[tuple[Any, ...], Any], Reading]


def read_loader(
    model: nn.Module, loader: Iterable[Any], read: Read, *, purpose: str, unpack: Unpack | None, progress: bool
) -> Iterator[tuple[Batch, Reading]]:
    """Yield each batch of the loader and what was read of it, with the model in evaluation mode and no gradients."""
    require_loader(loader)
    device = device_of(model)
    n_rows = 0
    with _bar(purpose, row_count(loader), progress) as on_rows:
        for place, item in enumerate(loader):
            batch = as_batch(item, model, unpack)
            with evaluating(model), torch.inference_mode():
                reading = read(moved(batch.args, device), moved(batch.kwargs, device))
            refuse_non_finite_rows(reading.rows, f"batch {place} of the loader (counted from 0): the model's features")
            if batch.labels is not None and len(batch.labels) != len(reading.rows):
                raise InputError(
                    f"batch {place} of the loader (counted from 0) has {len(batch.labels)} labels but the model gave "
                    f"{len(reading.rows)} rows; let it yield one label per input"
                )
            n_rows += len(reading.rows)
            on_rows(n_rows)
            yield batch, reading


def require_loader(loader: Any) -> None:
    """Raise if this is data without batches, which would be read one input at a time.

    >>> require_loader([torch.zeros(2, 3)])
    """
    kind = type(loader).__name__
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise InputError(f"loader is a {kind}, which yields single inputs; pass DataLoader(dataset, batch_size=256)")
    if isinstance(loader, Tensor | np.ndarray | Mapping) or not isinstance(loader, Iterable):
        raise InputError(f"loader is a {kind}; pass a DataLoader, or a list of batches such as [(inputs, labels)]")


class RowBatches:
    """A loader as the re-iterable batches of rows and labels that `Detector.fit_batches` takes.

    Each pass over it runs the model over the loader once. Labels are handed on unless left aside; where they are
    needed, a batch without them is refused.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        readings: Callable[[], Generator[tuple[Batch, Reading]]],
        *,
        with_labels: bool,
        need_labels: bool,
    ) -> None:
        self._loader, self._readings = loader, readings
        self._with_labels, self._need_labels = with_labels, need_labels
        self._passes: list[Generator[tuple[Batch, Reading]]] = []

    def close(self) -> None:
        """End every pass, and its progress bar, that a failed fit has left halfway."""
        for opened in self._passes:
            opened.close()

    def __iter__(self) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
        if self._passes and isinstance(self._loader, Iterator):
            raise InputError("this fit needs a second pass, but the loader can be read only once; pass a DataLoader")
        rows: list[NDArray[Any]] = []
        labels: list[NDArray[Any] | None] = []
        self._passes.append(self._readings())
        for place, (batch, reading) in enumerate(self._passes[-1]):
            rows.append(as_array(reading.rows))
            labels.append(_require_labels(batch, place) if self._need_labels else batch.labels)
            if sum(map(len, rows)) >= ROWS_PER_GROUP:
                yield self._joined(rows, labels)
                rows, labels = [], []
        if rows:
            yield self._joined(rows, labels)

    def _joined(
        self, rows: list[NDArray[Any]], labels: list[NDArray[Any] | None]
    ) -> tuple[NDArray[Any], NDArray[Any] | None]:
        known = [part for part in labels if part is not None]
        is_labelled = self._with_labels and len(known) == len(labels)
        if is_labelled and len({part.dtype.kind in "iub" for part in known}) > 1:
            raise InputError("labels are numbers in one batch and text in another; name all classes in one way")
        return np.concatenate(rows), np.concatenate(known) if is_labelled else None


def _require_labels(batch: Batch, place: int) -> NDArray[Any]:
    if batch.labels is None:
        raise InputError(
            f"batch {place} of the loader (counted from 0) has no labels, but class means need them; let it yield "
            f"(inputs, labels) or a mapping with 'labels', or pass one_class=True to fit one Gaussian to all rows"
        )
    return batch.labels


def device_of(model: nn.Module) -> torch.device | None:
    """Return the device of the model's first parameter or buffer; None if it has neither.

    >>> device_of(nn.Linear(1, 1))
    device(type='cpu')
    """
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def refuse_non_finite_rows(rows: Tensor, name: str) -> None:
    """Raise, naming the first row and column that hold NaN or infinity.

    >>> refuse_non_finite_rows(torch.zeros(2, 2), "features")
    """
    if not bool(torch.isfinite(rows).all()):
        refuse_non_finite(as_array(rows), name=name, remedy="mend the input or the model")


def row_count(loader: Iterable[Any]) -> int | None:
    """Return how many rows a loader has, where it tells; a sampler may leave some of the data set out.

    >>> row_count([torch.zeros(2, 3)]) is None
    True
    """
    for source in ("sampler", "dataset"):
        try:
            return len(getattr(loader, source))
        except (AttributeError, TypeError, NotImplementedError):
            continue
    return None


@contextmanager
def _bar(purpose: str, total: int | None, progress: bool) -> Iterator[Callable[[int], None]]:
    if not progress:
        yield lambda n_rows: None
        return
    with RowProgress() as bar:
        yield bar.watch(purpose, total)
