"""ReAct, ASH, SCALE and DICE: detectors that shape activations or weights before the energy.

All need a head: X is the features that it reads, taken after the average pooling where there is one. Verdicts name
the class of the largest unshaped logit.
"""

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gem_ood.batches import Batches
from gem_ood.detectors.head import Head
from gem_ood.detectors.head_reading import Chunk, LogitDetector, feature_slack
from gem_ood.detectors.packing import number, refuse_damaged, take, take_counts
from gem_ood.detectors.summing import SummedDetector
from gem_ood.quantiles import RELATIVE_ERROR, count_values, exact_quantile, pack_counts, quantile, unpack_counts
from gem_ood.scores import energy
from gem_ood.scores.shaping import (
    AshVariant,
    ash,
    check_share,
    check_variant,
    clip_activations,
    contribution_mask,
    scale,
)

__all__ = ["ASH", "DICE", "SCALE", "ReAct"]

#: What ASH removes on ImageNet in its paper.
PAPER_SHARES: dict[AshVariant, float] = {"s": 0.9, "b": 0.65, "p": 0.6}

#: Activations of less than this size are counted as zeros.
SMALLEST_BINNED = 2.0**-63


class ReAct(SummedDetector):
    """The energy of rectified activations (Sun, Guo and Li, NeurIPS 2021).

    The score is log Σ_i exp(w_i · min(h, c) + b_i), with the clip c the quantile of all training activations, pooled
    over the units. Their published code finds it from some 2,000 validation images; here it is that of all rows of the
    fit.

    `fit` and `fit_batches` find the quantile exactly, as NumPy's linear one, in about three passes over the rows and
    bounded memory. `partial_fit` and `merge` read each row once and are within 2⁻¹¹ (0.05 %) of it, and so is a `share`
    that is changed after the fit.

    Args:
        head: The classifier's last layer; X is the features it reads.
        share: The share of the training activations that lie below the clip; p = 90 in the paper is 0.9.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> detector = ReAct(head=Head([[1.0], [1.0]]), share=0.5).fit([[1.0], [2.0], [3.0]])
    >>> detector.clip_
    2.0
    >>> detector.score_samples([[9.0]])
    array([2.69314718])
    """

    needs_head: ClassVar[bool] = True
    settling_options: ClassVar[tuple[str, ...]] = ("share",)

    def __init__(
        self,
        *,
        head: Head | None = None,
        share: float = 0.9,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.share = share
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    @property
    def clip_(self) -> float:
        """The size that activations are held at."""
        clip: float = self._learned
        return clip

    def _check_options(self) -> None:
        super()._check_options()
        check_share(self.share)

    def _terms(self, chunk: Chunk) -> dict[str, NDArray[np.float64]]:
        return {"activations": count_values(chunk.features)}

    def _settle(self, sums: dict[str, NDArray[np.float64]]) -> float:
        return quantile(sums["activations"], float(self.share))

    def _settle_fit(self, batches: Batches, sums: dict[str, NDArray[np.float64]]) -> float:
        return exact_quantile(batches, sums["activations"], float(self.share))

    def _settle_loaded(self, sums: dict[str, NDArray[np.float64]], values: dict[str, Any]) -> float:
        clip, counts = number(values["clip"], "clip"), sums["activations"]
        if counts[0] or counts[-1]:  # activations so large that only their number is known
            return clip
        least, most = quantile(counts, 0.0), quantile(counts, 1.0)
        slack = 2.0 * RELATIVE_ERROR * max(abs(least), abs(most)) + SMALLEST_BINNED
        is_within = least - slack <= clip <= most + slack
        refuse_damaged(not is_within, "clip", f"is {clip}, which is no quantile of the activations")
        return clip

    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        return energy(self._logits(clip_activations(features, self.clip_)))

    def _pack_sums(self, sums: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[Any]]:
        return {"activations": pack_counts(sums["activations"])}  # of half a million bins few are not empty

    def _unpack_sums(self, tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
        counts = unpack_counts(take(tensors, "activations", (None,), kind="i"))
        assert self.head is not None  # `_check_options` has seen to it
        refuse_damaged(counts.sum() % self.head.n_features, "activations", "is not of whole rows")
        return {"activations": counts}

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        tensors, values = super()._state()
        return tensors, values | {"clip": self.clip_}


class _RowShaping(LogitDetector):
    """What ASH and SCALE share: each row is shaped by itself, so there is nothing to learn."""

    needs_head: ClassVar[bool] = True

    @property
    @abstractmethod
    def _share(self) -> float:
        """The share of each row's activations that counts as low."""

    def _check_options(self) -> None:
        super()._check_options()
        check_share(self._share)

    def _slack(self, scores: NDArray[np.float64], counts: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        return feature_slack(scores, counts)  # sharpening multiplies the rounding of terms that cancel


class ASH(_RowShaping):
    """The energy of pruned activations (ASH; Djurisic, Bozanic, Ashok and Liu, ICLR 2023).

    In each row the lowest `share` of the m activations is set to zero. With s₁ the sum of the row before, s₂ after, and
    k the number kept, the kept ones stay as they are (ASH-P), become s₁/k (ASH-B), or are multiplied by exp(s₁/s₂)
    (ASH-S). The score is the energy log Σ_i exp(logit_i) of the shaped row's logits.

    Rows are shaped after the average pooling and k is m − round(share·m), as in the published code; the paper's text
    sets to zero what is below the percentile, which is the same but for ties. At least one activation is kept, and of
    equal ones the first. A row whose kept activations sum to zero or less, which no network with a ReLU gives but the
    row of zeros, is shaped to zeros by ASH-S: the limit of the formula as s₂ falls to zero. Activations that sharpening
    would bring beyond 1e200, and factors beyond exp(700), are held there.

    Args:
        head: The classifier's last layer; X is the features it reads.
        variant: `"s"` (scale; what the published settings run), `"b"` (binarise) or `"p"` (prune only).
        share: The share of each row's activations to remove; None for the paper's on ImageNet: 0.9 (ASH-S), 0.65
            (ASH-B) and 0.6 (ASH-P). Of 64 activations 0.9 keeps 6.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> detector = ASH(head=Head([[1.0, 0.0], [0.0, 1.0]]), variant="b", share=0.5).fit([[1.0, 2.0], [2.0, 1.0]])
    >>> detector.score_samples([[1.0, 99.0]])
    array([100.])
    """

    def __init__(
        self,
        *,
        head: Head | None = None,
        variant: AshVariant = "s",
        share: float | None = None,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.variant = variant
        self.share = share
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _check_options(self) -> None:
        check_variant(self.variant)
        super()._check_options()

    @property
    def _share(self) -> float:
        return PAPER_SHARES[self.variant] if self.share is None else self.share

    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        return energy(self._logits(ash(features, variant=self.variant, share=self._share)))


class SCALE(_RowShaping):
    """The energy of scaled activations (SCALE; Xu, Chen, Franchi and Yao, ICLR 2024).

    Each row is multiplied by exp(s₁/s₂), with s₁ the sum of its m activations and s₂ that of its m − round(share·m)
    largest: the factor of ASH-S without the pruning. The score is the energy of the scaled row's logits. Rows of
    s₂ ≤ 0 and products beyond 1e200 are as in `ASH`. The published code sums the k largest, which is followed; the
    paper's text sums those above the percentile, which is the same but for ties.

    Args:
        head: The classifier's last layer; X is the features it reads.
        share: The share of each row's activations that s₂ leaves out; p = 85 in the published settings is 0.85.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> detector = SCALE(head=Head([[1.0, 1.0]]), share=0.5).fit([[1.0, 2.0], [2.0, 1.0]])
    >>> detector.score_samples([[3.0, 3.0]]) / np.exp(2.0)
    array([6.])
    """

    def __init__(
        self,
        *,
        head: Head | None = None,
        share: float = 0.85,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.share = share
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        return energy(self._logits(scale(features, share=self.share)))

    @property
    def _share(self) -> float:
        return self.share


class _Sparse(NamedTuple):
    mean: NDArray[np.float64]
    mask: NDArray[np.bool_]
    head: Head


class DICE(SummedDetector):
    """The energy of a sparse last layer (DICE; Sun and Li, ECCV 2022).

    The contribution of a weight is its product with the mean training activation that it reads. Weights whose
    contribution is not above the quantile `share` of all k·m contributions are set to zero, the bias stays, and the
    score is the energy log Σ_i exp((m_i ∘ w_i) · h + b_i), with m_i the mask of class i. The quantile over the whole
    matrix, by linear interpolation, is that of the published code; the paper keeps the largest (1 − share)·k·m, which
    is the same but for ties. Where all contributions are equal no weight is kept, and all rows score the same.

    Args:
        head: The classifier's last layer; X is the features it reads.
        share: The share of the weights to remove: p = 0.9 in the paper on CIFAR, 0.7 on ImageNet.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> detector = DICE(head=Head([[1.0, 2.0], [3.0, -4.0]]), share=0.5).fit([[0.0, 0.75], [2.0, 0.75]])
    >>> detector.mask_
    array([[False,  True],
           [ True, False]])
    """

    needs_head: ClassVar[bool] = True
    settling_options: ClassVar[tuple[str, ...]] = ("head", "share")

    def __init__(
        self,
        *,
        head: Head | None = None,
        share: float = 0.9,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.share = share
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    @property
    def mean_(self) -> NDArray[np.float64]:
        """The mean activation of each unit on the training rows."""
        mean: NDArray[np.float64] = self._learned.mean
        return mean

    @property
    def mask_(self) -> NDArray[np.bool_]:
        """Which weights of the head are kept, k × m."""
        mask: NDArray[np.bool_] = self._learned.mask
        return mask

    def _check_options(self) -> None:
        super()._check_options()
        check_share(self.share)

    def _terms(self, chunk: Chunk) -> dict[str, NDArray[np.float64]]:
        with np.errstate(over="ignore", invalid="ignore"):  # a sum that overflows is refused when the mask is made
            total: NDArray[np.float64] = chunk.features.sum(axis=0, dtype=np.float64)
        return {"activations": total, "rows": np.array([len(chunk.features)], dtype=np.float64)}

    def _settle(self, sums: dict[str, NDArray[np.float64]]) -> _Sparse:
        assert self.head is not None  # `_check_options` has seen to it
        mean = sums["activations"] / sums["rows"]
        mask = contribution_mask(self.head.weight, mean, self.share)
        return _Sparse(mean, mask, Head(np.where(mask, self.head.weight, 0.0), self.head.bias))

    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        sparse: _Sparse = self._learned
        return energy(sparse.head.logits(features))

    def _unpack_sums(self, tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
        take_counts(tensors, "sums.rows", 1)
        return super()._unpack_sums(tensors)
