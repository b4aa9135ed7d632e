"""Whole loaders: what a guard reads is judged, batch by batch, and its verbs answer for every input of a loader."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gem_ood.detectors import Detector, Verdicts
from gem_ood.errors import InputError
from gem_ood.torch.batches import Arguments, Batch, Unpack, first_rows, mapped
from gem_ood.torch.judging import Judge, OODResult
from gem_ood.torch.scorers import as_array
from gem_ood.torch.streaming import Reading, read_loader

__all__ = ["LoaderGuard", "Scored"]


class Scored(NamedTuple):
    """The scores of calibration rows, how far rounding may move each, and the rows' number of columns if there are any.

    `rounding` is what the network may do to a score when the same input comes in a batch of another size.
    """

    scores: NDArray[np.float64]
    rounding: NDArray[np.float64]
    n_columns: int | None


class LoaderGuard(nn.Module, ABC):
    """A guard that reads and judges whole loaders; a subclass says how a batch is read."""

    model: nn.Module
    detector: Detector
    dtype: torch.dtype
    _judge: Judge | None
    _example: Arguments | None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a pickle holds: everything but the inputs that `export_onnx` would use."""
        return {**self.__dict__, "_example": None}

    # What a subclass provides

    @abstractmethod
    def _read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Reading:
        """Return logits and the rows that the detector is fitted to."""

    @abstractmethod
    def _read_to_score(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Reading:
        """Return logits and the rows that are scored."""

    @abstractmethod
    def _require_detector(self) -> None:
        """Raise if the detector cannot score."""

    @abstractmethod
    def _check_width(self, detector: Detector, width: int) -> None:
        """Raise if the detector takes rows of another width."""

    def _rounding(self, reading: Reading) -> Tensor:
        """Return how far the network's rounding may move the score of each row between batches of different size."""
        return self._current_judge(reading.rows).rounding(reading.rows)

    # Verbs

    def score_samples(
        self, loader: Iterable[Any], *, unpack: Unpack | None = None, progress: bool = True
    ) -> NDArray[np.float64]:
        """Return the score of every input of a loader; higher = more in-distribution."""
        scores = []
        for _, reading in self._readings(loader, "score", unpack, progress, to_score=True):
            with torch.inference_mode():
                scores.append(_as_float64(self._current_judge(reading.rows).scorer(reading.rows)))
        _require_rows(scores)
        return np.concatenate(scores)

    def verdicts(self, loader: Iterable[Any], *, unpack: Unpack | None = None, progress: bool = True) -> Verdicts:
        """Return score, nearest class and, once calibrated, p-value and verdict of every input of a loader."""
        results = []
        for _, reading in self._readings(loader, "score", unpack, progress, to_score=True):
            with torch.inference_mode():
                results.append(self._judged(reading)[1:])
        _require_rows(results)
        columns: dict[str, Any] = {}
        for name, parts in zip(OODResult._fields[1:], zip(*results, strict=True), strict=True):
            columns[name] = None if parts[0] is None else np.concatenate([part.cpu().numpy() for part in parts])
        names = getattr(self.detector, "classes_", np.empty(0))
        if names.dtype.kind not in "iuf":  # tensors hold no strings, but arrays do
            columns["nearest_class"] = names[columns["nearest_class"]]
        return Verdicts(**columns)

    def features(
        self, loader: Iterable[Any], *, unpack: Unpack | None = None, progress: bool = True
    ) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Return the rows that the detector takes, one per input of a loader, and the labels if it has any.

        They serve the array detectors, or a feature file, in place of the model.
        """
        rows, labels = [], []
        for batch, reading in self._readings(loader, "features", unpack, progress, to_score=False):
            rows.append(as_array(reading.rows))
            labels.append(batch.labels)
        _require_rows(rows)
        known = [part for part in labels if part is not None]
        return np.concatenate(rows), np.concatenate(known) if len(known) == len(rows) else None

    def _readings(
        self, loader: Iterable[Any], purpose: str, unpack: Unpack | None, progress: bool, *, to_score: bool
    ) -> Generator[tuple[Batch, Reading]]:
        if to_score:
            self._require_detector()
        read = self._read_to_score if to_score else self._read
        found = read_loader(self.model, loader, read, purpose=purpose, unpack=unpack, progress=progress)
        for batch, reading in found:
            self._remember(batch.args, batch.kwargs)
            yield batch, reading

    def _calibration_scores(self, readings: Iterable[tuple[Batch, Reading]], *, may_be_empty: bool) -> Scored:
        scores: list[NDArray[np.float64]] = []
        rounding: list[NDArray[np.float64]] = []
        n_columns = None
        for _, reading in readings:
            judge = self._current_judge(reading.rows)
            with torch.inference_mode():
                scores.append(_as_float64(judge.scorer.evidence(reading.rows)))
                rounding.append(_as_float64(self._rounding(reading)))
            n_columns = reading.rows.shape[1]
        if not may_be_empty:
            _require_rows(scores)
        none = [np.empty(0)]
        return Scored(np.concatenate(scores or none), np.concatenate(rounding or none), n_columns)

    # Judging

    def _judged(self, reading: Reading) -> OODResult:
        score, p_value, is_ood, nearest = self._current_judge(reading.rows)(reading.rows)
        return OODResult(
            reading.logits, score, p_value, is_ood, nearest if reading.nearest is None else reading.nearest
        )

    def _current_judge(self, rows: Tensor) -> Judge:
        judge = self._judge
        if judge is not None and torch.compiler.is_dynamo_compiling():
            return judge
        self._check_width(self.detector, rows.shape[1])
        if judge is not None and judge.is_of(self.detector, rows.device):
            return judge
        made: Judge = self._new_judge(rows.shape[1], rows.device)
        return made

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _new_judge(self, n_columns: int, device: torch.device | None) -> Judge:
        with torch.inference_mode(False):  # what is made in inference mode cannot take part in gradients later
            judge = Judge(self.detector, n_columns=n_columns, dtype=self.dtype).to(device)
        self._judge = judge
        return judge

    def _remember(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Keep two inputs for `export_onnx`, which must run the model once."""
        if self._example is None:
            example: Arguments = mapped(first_rows((args, dict(kwargs)), 2), lambda part: part.detach().cpu().clone())
            self._example = example


def _require_rows(parts: Sequence[Any]) -> None:
    if not parts:
        raise InputError("the loader yielded no batch; pass one with at least one row")


def _as_float64(tensor: Tensor) -> NDArray[np.float64]:
    return as_array(tensor).astype(np.float64)
