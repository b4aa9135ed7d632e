"""Scorers: a fitted detector's arithmetic as a small module of matrix products and log-sum-exp.

A scorer takes the rows that its detector takes, features or logits, and is differentiable in them. Its numbers are
buffers, made from the detector and so not part of a `state_dict`, in float64 unless asked otherwise: products of a few
hundred rows cost nothing beside a network, and a threshold is only as good as the scores on either side of it. Scores
asked for in float32 are computed in float32 only where they lose nothing by it, as the arrays' own are.
"""

import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gem_ood.detectors import GEM, MSP, Detector, Energy, Mahalanobis, MaxLogit, RelativeMahalanobis
from gem_ood.detectors.gaussian_base import GaussianDetector
from gem_ood.detectors.head_reading import LogitDetector
from gem_ood.errors import InputError
from gem_ood.gaussians import TiedGaussians

__all__ = ["ArrayScorer", "GaussianScorer", "LogitScorer", "Scorer", "scorer"]


class Scorer(nn.Module, ABC):
    """What all scorers share: one score per row, and the place of the class that the row is nearest to."""

    #: Whether gradients pass through, so that input noise and export are possible.
    is_differentiable = True

    #: How many columns rows have; None where the detector takes any.
    n_columns: int | None = None

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"dtype is {dtype}; pass torch.float64 or torch.float32")
        self.dtype = dtype

    def forward(self, rows: Tensor) -> Tensor:
        """Return one score per row; higher = more in-distribution."""
        return self.score_and_nearest(rows)[0]

    def score_and_nearest(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return one score per row and the place of its nearest class."""
        self._check(rows)
        with _full_precision(rows):
            scores, nearest = self._score_and_nearest(rows)
        dtype = self.dtype if precise(rows) == torch.float64 else torch.float32
        return scores.to(dtype).to(rows.device), nearest.to(rows.device)

    def evidence(self, rows: Tensor) -> Tensor:
        """Return what a threshold is calibrated on: the score of each row, or one score per part of a combination."""
        return self.forward(rows)

    def ascent(self, rows: Tensor) -> Tensor:
        """Return what rises with the score and keeps a gradient where the score itself saturates."""
        self._check(rows)
        with _full_precision(rows):
            return self._ascent(rows)

    def _check(self, rows: Tensor) -> None:
        given: Any = rows
        if not isinstance(given, Tensor):
            how = "torch.from_numpy(rows)" if isinstance(given, np.ndarray) else "torch.tensor(rows)"
            raise InputError(f"rows is a {type(given).__name__}; pass a tensor: {how}")
        if rows.ndim != 2 or self.n_columns not in (None, rows.shape[1]):
            columns = "columns" if self.n_columns is None else self.n_columns
            raise InputError(f"rows has shape {tuple(rows.shape)} but this scorer takes rows × {columns}; pass those")

    @abstractmethod
    def _score_and_nearest(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score of each row and the place of its nearest class, for rows that were checked."""

    def _ascent(self, rows: Tensor) -> Tensor:
        return self._score_and_nearest(rows)[0]


@singledispatch
def scorer(detector: Detector, *, dtype: torch.dtype = torch.float64) -> Scorer:
    """Return the scoring of a fitted detector as a module whose scores have this precision.

    A detector that has no such form is scored by its own arrays on the processor: it answers the same, but no
    gradient passes and it cannot be exported.

    >>> detector = GEM().fit([[0.0], [2.0], [10.0], [12.0]], [0, 0, 1, 1])
    >>> scorer(detector)(torch.tensor([[1.0], [11.0], [6.0]]))
    tensor([  0.0000,   0.0000, -11.8069], dtype=torch.float64)
    """
    if not isinstance(detector, Detector):
        raise InputError(f"detector is a {type(detector).__name__}; pass a detector such as GEM()")
    detector._require_fit()
    return ArrayScorer(detector, dtype)


@scorer.register
def _(detector: GaussianDetector, *, dtype: torch.dtype = torch.float64) -> Scorer:
    detector._require_fit()
    if type(detector) not in (GEM, Mahalanobis, RelativeMahalanobis):
        return ArrayScorer(detector, dtype)
    return GaussianScorer(detector, dtype)


@scorer.register
def _(detector: LogitDetector, *, dtype: torch.dtype = torch.float64) -> Scorer:
    detector._check_options()
    return (LogitScorer if type(detector) in (MSP, MaxLogit, Energy) else ArrayScorer)(detector, dtype)


class _Gaussians(nn.Module):
    """Logits z·ν_i − ½‖ν_i‖² above the best class's, that class, and ½‖z − ν_best‖², with z = (x − c) W (B7).

    As in `gem_ood.gaussians.kernel`, so that torch and arrays keep the same digits.
    """

    centre: Tensor
    whitener: Tensor
    whitened_means: Tensor
    bias: Tensor

    def __init__(self, gaussians: TiedGaussians, dtype: torch.dtype) -> None:
        super().__init__()
        means = gaussians.whitened_means
        self.register_buffer("centre", _buffer(gaussians.centre, dtype), persistent=False)
        self.register_buffer("whitener", _buffer(gaussians.factor.whitener, dtype), persistent=False)
        self.register_buffer("whitened_means", _buffer(means, dtype), persistent=False)
        self.register_buffer("bias", _buffer(-0.5 * np.sum(means**2, axis=1), dtype), persistent=False)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        whitened = (rows - self.centre) @ self.whitener
        logits = whitened @ self.whitened_means.T + self.bias
        largest, best = logits.max(1)
        difference = whitened - self.whitened_means[best]
        return logits - largest[:, None], best, 0.5 * (difference * difference).sum(1)


class GaussianScorer(Scorer):
    """GEM or Mahalanobis (P4, P7), or a relative one: the score of features under tied Gaussians, weighted where asked.

    >>> detector = Mahalanobis().fit([[0.0], [2.0], [10.0], [12.0]], [0, 0, 1, 1])
    >>> GaussianScorer(detector)(torch.tensor([[3.0]]))
    tensor([-4.], dtype=torch.float64)
    """

    log_weights: Tensor | None

    def __init__(self, detector: GaussianDetector, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(dtype)
        self.n_columns = detector.gaussians_.n_features
        self.normalize = detector.normalize
        self.takes_maximum = isinstance(detector, Mahalanobis | RelativeMahalanobis)
        inside = _working_dtype(detector, dtype)
        self.gaussians = _Gaussians(detector.gaussians_, inside)
        self.background = _Gaussians(detector.background_, inside) if detector.relative else None
        weights = None if _is_uniform(detector) else _buffer(detector.gaussians_.priors, inside).log()
        self.register_buffer("log_weights", weights, persistent=False)

    def _score_and_nearest(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        rows = _in_precision(rows, self.gaussians.centre)
        if self.normalize:
            rows = _unit_length(rows)
        logits, best, half_distances = self.gaussians(rows)
        is_near = half_distances < math.inf  # what overflows is infinitely far from everything; NaN is never near
        nearest = torch.where(is_near, best, 0)
        if self.takes_maximum:
            scores = 0.0 - 2.0 * half_distances  # at a class mean it is 0, not −0
        else:
            weighted = logits if self.log_weights is None else logits + self.log_weights
            scores = weighted.logsumexp(1) - half_distances
        if self.background is not None:
            _, _, half_around = self.background(rows)
            scores = scores + (2.0 * half_around if self.takes_maximum else half_around)
            is_near = is_near & (half_around < math.inf)
        return torch.where(is_near, scores, -math.inf), nearest


class LogitScorer(Scorer):
    """MSP, MaxLogit or Energy of logits, read from features through the head where the detector has one (P3, P5).

    >>> LogitScorer(Energy())(torch.zeros(1, 2))
    tensor([0.6931], dtype=torch.float64)
    """

    weight: Tensor | None
    bias: Tensor | None
    precision: Tensor

    def __init__(self, detector: LogitDetector, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(dtype)
        self.kind = type(detector)
        self.temperature = float(getattr(detector, "temperature", 1.0))
        head = detector.head
        self.n_columns = getattr(detector, "n_features_in_", None) if head is None else head.n_features
        self.register_buffer("weight", None if head is None else _buffer(head.weight), persistent=False)
        self.register_buffer("bias", None if head is None else _buffer(head.bias), persistent=False)
        # Rounding a logit of a thousand to float32 would change a probability by more than it may.
        self.register_buffer("precision", torch.zeros(0, dtype=torch.float64), persistent=False)

    def _score_and_nearest(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        logits = self._logits(rows)
        if self.kind is MaxLogit:
            scores = logits.max(1).values
        elif self.kind is MSP:
            scores = (logits / self.temperature).log_softmax(1).max(1).values.exp()
        else:
            scores = self.temperature * (logits / self.temperature).logsumexp(1)
        # An infinite logit is a fault of the model, not a sure sign of a class.
        return torch.where(scores < math.inf, scores, -math.inf), logits.argmax(1)

    def _ascent(self, rows: Tensor) -> Tensor:
        logits = self._logits(rows)
        if self.kind is not MSP or logits.shape[1] == 1:
            return super()._ascent(rows)
        # A probability of one has no gradient left; its log-odds against the other classes have, with the same sign.
        largest, place = (logits / self.temperature).max(1)
        others = (logits / self.temperature).scatter(1, place[:, None], -math.inf)
        return largest - others.logsumexp(1)

    def _logits(self, rows: Tensor) -> Tensor:
        rows = _in_precision(rows, self.precision)
        return rows if self.weight is None or self.bias is None else rows @ self.weight.T + self.bias


class ArrayScorer(Scorer):
    """Any detector, scored by its own arrays on the processor; gradients do not pass."""

    is_differentiable = False

    def __init__(self, detector: Detector, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(dtype)
        self.detector = detector

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _score_and_nearest(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        array = as_array(rows)
        nearest = np.zeros(len(array), dtype=np.intp)
        scores = self.detector._scores(self.detector._checked(array), nearest)
        return torch.from_numpy(scores), torch.from_numpy(nearest)

    def evidence(self, rows: Tensor) -> Tensor:
        """Return the detector's own evidence."""
        self._check(rows)
        return torch.from_numpy(self.detector.evidence(as_array(rows)))


def precise(place: Tensor | torch.device) -> torch.dtype:
    """Return float64, or float32 on Apple's devices, which lack it.

    >>> precise(torch.device("cpu")), precise(torch.device("mps"))
    (torch.float64, torch.float32)
    """
    device = place.device if isinstance(place, Tensor) else place
    return torch.float32 if device.type == "mps" else torch.float64


def as_array(rows: Tensor) -> NDArray[Any]:
    """Return a tensor's numbers as an array, in float32 where NumPy lacks the type.

    >>> as_array(torch.ones(1, 2, dtype=torch.bfloat16)).dtype
    dtype('float32')
    """
    rows = rows.detach()
    if rows.dtype not in (torch.float16, torch.float32, torch.float64):
        rows = rows.float()
    return rows.cpu().numpy()


def _full_precision(rows: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which autocast, if it is on, does not round the products."""
    kind = rows.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def _buffer(array: NDArray[np.float64], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(array, dtype=dtype)


def _working_dtype(detector: GaussianDetector, dtype: torch.dtype) -> torch.dtype:
    """Return the precision to compute in: that of the arrays, and float64 for the difference of two scores."""
    narrow = not (detector.normalize or detector.relative) and dtype == torch.float32
    is_safe = narrow and detector.gaussians_.working_dtype(np.float32) == np.float32
    return torch.float32 if is_safe else torch.float64


def _in_precision(rows: Tensor, like: Tensor) -> Tensor:
    """Return rows where the scorer's numbers are: those in float64 stay on the processor if the device lacks it."""
    return rows.to(like.device).to(like.dtype)


def _is_uniform(detector: GaussianDetector) -> bool:
    return isinstance(detector.priors, str) and detector.priors == "uniform"


def _unit_length(rows: Tensor) -> Tensor:
    """Return rows of length one; a row of zeros stays, and squares of large entries do not overflow."""
    largest = rows.abs().amax(1, keepdim=True)
    rows = rows / torch.where(largest > 0.0, largest, 1.0)
    lengths = (rows * rows).sum(1, keepdim=True)
    return rows / torch.where(lengths > 0.0, lengths, 1.0).sqrt()
