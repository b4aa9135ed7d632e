"""Scorers: a fitted detector's arithmetic as a small module of matrix products and log-sum-exp.

A scorer takes the rows that its detector takes, features or logits, and is differentiable in them. Its numbers are
buffers, made from the detector and so not part of a `state_dict`, in float64 unless asked otherwise: products of a few
hundred rows cost nothing beside a network, and a threshold is only as good as the scores on either side of it.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gem_ood.detectors import GEM, MSP, Detector, Energy, Mahalanobis, MaxLogit
from gem_ood.detectors.gaussian import GaussianDetector
from gem_ood.detectors.logits import LogitDetector
from gem_ood.errors import InputError
from gem_ood.gaussians import TiedGaussians

__all__ = ["ArrayScorer", "GaussianScorer", "LogitScorer", "Scorer", "scorer"]


class Scorer(nn.Module):
    """What all scorers share: one score per row, and the place of the class that the row is nearest to."""

    #: Whether gradients pass through, so that input noise and export are possible.
    is_differentiable = True

    def forward(self, rows: Tensor) -> Tensor:
        """Return one score per row; higher = more in-distribution."""
        return self.score_and_nearest(rows)[0]

    def score_and_nearest(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return one score per row and the place of its nearest class."""
        with _full_precision(rows):
            return self._score_and_nearest(rows)

    def ascent(self, rows: Tensor) -> Tensor:
        """Return what rises with the score and keeps a gradient where the score itself saturates."""
        with _full_precision(rows):
            return self._ascent(rows)

    def _score_and_nearest(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def _ascent(self, rows: Tensor) -> Tensor:
        return self._score_and_nearest(rows)[0]


@singledispatch
def scorer(detector: Detector, *, dtype: torch.dtype = torch.float64) -> Scorer:
    """Return the scoring of a fitted detector as a module, in this precision.

    A detector that has no such form is scored by its own arrays on the processor: it answers the same, but no
    gradient passes and it cannot be exported.

    >>> detector = GEM().fit([[0.0], [2.0], [10.0], [12.0]], [0, 0, 1, 1])
    >>> scorer(detector)(torch.tensor([[1.0], [11.0], [6.0]]))
    tensor([  0.0000,   0.0000, -11.8069], dtype=torch.float64)
    """
    if not isinstance(detector, Detector):
        raise InputError(f"detector is a {type(detector).__name__}; pass a detector such as GEM()")
    detector._require_fit()
    return ArrayScorer(detector)


@scorer.register
def _(detector: GaussianDetector, *, dtype: torch.dtype = torch.float64) -> Scorer:
    detector._require_fit()
    if type(detector) not in (GEM, Mahalanobis):
        return ArrayScorer(detector)
    return GaussianScorer(detector, dtype)


@scorer.register
def _(detector: LogitDetector, *, dtype: torch.dtype = torch.float64) -> Scorer:
    detector._check_options()
    return LogitScorer(detector, dtype) if type(detector) in (MSP, MaxLogit, Energy) else ArrayScorer(detector)


class _Gaussians(nn.Module):
    """Logits z·ν_i − ½‖ν_i‖² and half norms ½‖z‖² of rows, with z = (x − c) W, as `gem_ood.gaussians` has them (B7)."""

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

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        whitened = (rows - self.centre) @ self.whitener
        return whitened @ self.whitened_means.T + self.bias, 0.5 * (whitened * whitened).sum(1)


class GaussianScorer(Scorer):
    """GEM or Mahalanobis (P4, P7): the score of features under tied Gaussians, weighted or relative where asked.

    >>> detector = Mahalanobis().fit([[0.0], [2.0], [10.0], [12.0]], [0, 0, 1, 1])
    >>> GaussianScorer(detector)(torch.tensor([[3.0]]))
    tensor([-4.], dtype=torch.float64)
    """

    log_weights: Tensor | None

    def __init__(self, detector: GaussianDetector, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.normalize = detector.normalize
        self.takes_maximum = isinstance(detector, Mahalanobis)
        self.gaussians = _Gaussians(detector.gaussians_, dtype)
        self.background = _Gaussians(detector.background_, dtype) if detector.relative else None
        weights = None if _is_uniform(detector) else _buffer(detector.gaussians_.priors, dtype).log()
        self.register_buffer("log_weights", weights, persistent=False)

    def _score_and_nearest(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        rows = _in_precision(rows, self.gaussians.centre)
        if self.normalize:
            rows = _unit_length(rows)
        logits, half_norms = self.gaussians(rows)
        nearest = logits.argmax(1)
        if self.takes_maximum:
            scores = (2.0 * (logits.max(1).values - half_norms)).clamp(max=0.0)
        else:
            weighted = logits if self.log_weights is None else logits + self.log_weights
            scores = weighted.logsumexp(1) - half_norms
        if self.background is not None:
            around, half_around = self.background(rows)
            scores = scores - (around.logsumexp(1) - half_around)
        # What overflows is infinitely far from everything, and NaN is never in the distribution.
        return torch.where(half_norms < math.inf, scores, -math.inf), nearest


class LogitScorer(Scorer):
    """MSP, MaxLogit or Energy of logits, read from features through the head where the detector has one (P3, P5).

    >>> LogitScorer(Energy())(torch.zeros(1, 2))
    tensor([0.6931], dtype=torch.float64)
    """

    weight: Tensor | None
    bias: Tensor | None
    precision: Tensor

    def __init__(self, detector: LogitDetector, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.kind = type(detector)
        self.temperature = float(detector.temperature)
        head = detector.head
        self.register_buffer("weight", None if head is None else _buffer(head.weight, dtype), persistent=False)
        self.register_buffer("bias", None if head is None else _buffer(head.bias, dtype), persistent=False)
        self.register_buffer("precision", torch.zeros(0, dtype=dtype), persistent=False)

    def _score_and_nearest(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        logits = self._logits(rows)
        if self.kind is MaxLogit:
            scores = logits.max(1).values
        elif self.kind is MSP:
            scores = self._log_probability(logits).exp()
        else:
            scores = self.temperature * (logits / self.temperature).logsumexp(1)
        return scores, logits.argmax(1)

    def _ascent(self, rows: Tensor) -> Tensor:
        # A probability of one has no gradient left; its log-odds against the other classes have.
        return self._log_probability(self._logits(rows)) if self.kind is MSP else super()._ascent(rows)

    def _logits(self, rows: Tensor) -> Tensor:
        rows = _in_precision(rows, self.precision)
        return rows if self.weight is None or self.bias is None else rows @ self.weight.T + self.bias

    def _log_probability(self, logits: Tensor) -> Tensor:
        return (logits / self.temperature).log_softmax(1).max(1).values


class ArrayScorer(Scorer):
    """Any detector, scored by its own arrays on the processor; gradients do not pass."""

    is_differentiable = False

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = detector

    def _score_and_nearest(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        array = as_array(rows)
        nearest = np.zeros(len(array), dtype=np.intp)
        scores = self.detector._scores(self.detector._checked(array), nearest)
        dtype = torch.float32 if rows.device.type == "mps" else torch.float64
        return torch.from_numpy(scores).to(rows.device, dtype), torch.from_numpy(nearest).to(rows.device)


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


def _buffer(array: NDArray[np.float64], dtype: torch.dtype) -> Tensor:
    return torch.tensor(array, dtype=dtype)


def _in_precision(rows: Tensor, like: Tensor) -> Tensor:
    return rows.to(like.dtype)


def _is_uniform(detector: GaussianDetector) -> bool:
    return isinstance(detector.priors, str) and detector.priors == "uniform"


def _unit_length(rows: Tensor) -> Tensor:
    """Return rows of length one; a row of zeros stays, and squares of large entries do not overflow."""
    largest = rows.abs().amax(1, keepdim=True)
    rows = rows / torch.where(largest > 0.0, largest, 1.0)
    lengths = (rows * rows).sum(1, keepdim=True)
    return rows / torch.where(lengths > 0.0, lengths, 1.0).sqrt()
