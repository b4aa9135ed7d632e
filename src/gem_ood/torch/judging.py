"""Judging: from rows to score, p-value, verdict and nearest class, all in tensors."""

import math
from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gem_ood.detectors import Detector
from gem_ood.torch.rounding import feature_rounding, largest_move
from gem_ood.torch.scorers import Scorer, precise, scorer

__all__ = ["Judge", "OODResult"]

#: By how much two scores may differ, relative to them, that are equal but for rounding and then rounded to float32.
FLOAT32_ROUNDING = 2.0 * torch.finfo(torch.float32).eps


class OODResult(NamedTuple):
    """What a guarded model answers, one entry per input; p-value and verdict are None until it is calibrated.

    Attributes:
        logits: The model's own logits, n × k.
        score: Higher = more in-distribution.
        p_value: The conformal p-value under "in-distribution"; small speaks for out.
        is_ood: The verdict.
        nearest_class: The label of the class that the input is nearest to; the place in `detector.classes_` where
            labels are strings.
    """

    logits: Tensor
    score: Tensor
    p_value: Tensor | None
    is_ood: Tensor | None
    nearest_class: Tensor


class Judge(nn.Module):
    """A fitted detector's scorer, threshold and calibration scores, made once after each fit or calibration.

    It moves with the model from device to device but keeps its own precision: half a model may be rounded, a
    threshold may not.
    """

    labels: Tensor
    threshold: Tensor | None
    calibration: Tensor | None
    ranks: Tensor | None

    def __init__(self, detector: Detector, *, n_columns: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.scorer: Scorer = scorer(detector, dtype=dtype)
        self.register_buffer("labels", torch.tensor(_labels(detector, n_columns)), persistent=False)
        calibrated = detector.is_calibrated
        threshold = _rounded_down(_exact(detector.offset_), dtype) if calibrated else None
        ordered = _rounded_down(_exact(detector.calibration_scores_), dtype) if calibrated else None
        self.register_buffer("threshold", threshold, persistent=False)
        self.register_buffer("calibration", ordered, persistent=False)
        self.n_rows = detector.threshold_.n_rows if calibrated else 0
        ranks = detector.calibration_ranks_ if calibrated else None
        if ranks is not None:  # the rank of the first score above, and the last of all where there is none
            ranks = np.append(ranks, self.n_rows + 1)
        self.register_buffer("ranks", None if ranks is None else torch.tensor(ranks), persistent=False)
        self._detector, self._made_from = detector, detector.__dict__.copy()

    def is_of(self, detector: Detector, device: torch.device) -> bool:
        """Whether this is what the detector says now, on this device: a fit replaces what was learned before."""
        now, then = detector.__dict__, self._made_from
        same = detector is self._detector and len(now) == len(then) and self.labels.device == device
        return same and all(then.get(name, self) is value for name, value in now.items())

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
        """Return score, p-value, verdict and the label of the nearest class of each row."""
        scores, nearest = self.scorer.score_and_nearest(rows)
        # What cannot be scored is not in the distribution; eager passes have raised before.
        scores = torch.where(scores.isnan(), -math.inf, scores)
        labels = self.labels[nearest]
        if self.threshold is None or self.calibration is None:
            return scores, None, None, labels
        return scores, self._p_values(scores), scores < self.threshold, labels

    @torch.no_grad()
    def rounding(self, rows: Tensor) -> Tensor:
        """Return how far the score of each row may move when its input comes in a batch of another size.

        That is the largest change of the score when the row is moved by the rounding of the network in a few fixed
        directions. A score that is or becomes infinite is allowed none.
        """
        steps = feature_rounding(rows.dtype) * rows.abs().amax(1, keepdim=True)
        return largest_move(self.scorer, rows.to(precise(rows)), steps)

    def _p_values(self, scores: Tensor) -> Tensor:
        assert self.calibration is not None
        if torch.onnx.is_in_onnx_export() or torch.compiler.is_exporting():
            at_or_below = _count_at_or_below(self.calibration, scores)
        else:
            at_or_below = torch.searchsorted(self.calibration, scores.detach(), right=True)
        rank = 1 + at_or_below if self.ranks is None else self.ranks[at_or_below]
        return rank.to(scores.dtype) / (self.n_rows + 1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        bounds = {"threshold": self.threshold, "calibration": self.calibration}
        super()._apply(lambda tensor: _in_own_precision(fn, tensor), recurse)  # type: ignore[no-untyped-call]
        for name, bound in bounds.items():
            if bound is not None:
                device = _device_after(fn, bound)
                if precise(device) == torch.float64:
                    self._buffers[name] = bound.to(device).to(self.scorer.dtype)
                else:
                    self._buffers[name] = _rounded_down(bound, torch.float32).to(device)
        return self


def _labels(detector: Detector, n_columns: int) -> NDArray[np.int64]:
    """Return the label of each class that rows are compared with; for strings, its place among all class names."""
    compared = detector._class_names(n_columns)
    if compared.dtype.kind in "iu":
        return compared.astype(np.int64)
    # A class that was declared but had no rows is among the names and has no Gaussian.
    return np.flatnonzero(np.isin(getattr(detector, "classes_", compared), compared)).astype(np.int64)


def _exact(values: NDArray[np.float64] | float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _in_own_precision(fn: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """Return the tensor where `fn` would put it, in its own precision; where that does not exist, on the processor."""
    if not tensor.is_floating_point():
        return fn(tensor)
    device = _device_after(fn, tensor)
    is_lacking = tensor.dtype == torch.float64 and precise(device) != torch.float64
    return tensor.to("cpu" if is_lacking else device)


def _device_after(fn: Callable[[Tensor], Tensor], tensor: Tensor) -> torch.device:
    return fn(tensor.new_empty(0, dtype=torch.float32)).device


def _rounded_down(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return values in this precision, never above what they were: a row that ties must not fall out."""
    if values.dtype == torch.float64 and dtype == torch.float32:
        values = torch.where(values.isinf(), values, values - FLOAT32_ROUNDING * values.abs())
    return values.to(dtype)


def _count_at_or_below(ordered: Tensor, scores: Tensor) -> Tensor:
    """Return how many of the ordered values are at or below each score, by halving steps that any runtime has."""
    steps = max(1, math.ceil(math.log2(len(ordered) + 1)))
    padding = ordered.new_full(((1 << steps) - len(ordered),), math.inf)
    padded = torch.cat([ordered, padding])
    count = torch.zeros_like(scores, dtype=torch.int64)
    for step in (1 << power for power in reversed(range(steps))):
        count = count + step * (padded[count + step - 1] <= scores).to(torch.int64)
    return count.clamp(max=len(ordered))
