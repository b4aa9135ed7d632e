"""GradNorm, SHE, NCI and FDBD: detectors that hold features against the head that reads them.

All need `head`, and X is features. GradNorm has nothing to learn; the others learn means of the features, so they
stream and merge.
"""

from numbers import Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gem_ood.batches import Batches
from gem_ood.detectors.head import Head
from gem_ood.detectors.head_reading import Chunk, LogitDetector
from gem_ood.detectors.packing import refuse_damaged, take_counts
from gem_ood.detectors.summing import SummedDetector
from gem_ood.errors import InputError
from gem_ood.scores import check_temperature, grad_norm
from gem_ood.scores.boundaries import boundary_distance, hopfield_energy, neural_collapse, weight_gaps

__all__ = ["FDBD", "NCI", "SHE", "GradNorm"]


class GradNorm(LogitDetector):
    """GradNorm of the last layer (Huang, Geng and Li, NeurIPS 2021), in closed form, without a backward pass.

    The score is ‖∂ KL(uniform ‖ softmax(logits/T)) / ∂W‖₁ = ‖x‖₁ · ‖softmax(logits/T) − 1/k‖₁ / T. The published code
    sums over the classes where the paper averages: its scores are k times these.

    Args:
        head: The classifier's last layer.
        temperature: T; 1 in the paper.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> GradNorm(head=Head([[50.0, 0.0], [0.0, 50.0]])).score_samples([[3.0, -1.0], [-2.0, 6.0]])
    array([4., 8.])
    """

    needs_head: ClassVar[bool] = True

    def __init__(
        self,
        *,
        head: Head | None = None,
        temperature: float = 1.0,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.temperature = temperature
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _check_options(self) -> None:
        super()._check_options()
        check_temperature(self.temperature)

    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        return grad_norm(features, logits, temperature=self.temperature)


class SHE(SummedDetector):
    """Simplified Hopfield energy (Zhang et al., ICLR 2023).

    The score is ⟨x, S_ŷ⟩: S_i is the mean of the training features of class i that the head classifies correctly, and
    ŷ the predicted class. The paper's inverse temperature scales an inner product with one pattern and changes no
    ranking; it is left out, as in the published code.

    A class without a correctly classified row has no pattern: `fit` refuses and names it, for its usual cause is
    labels in another order than the logits. After `partial_fit` and `merge`, where rows may be yet to come, scoring
    does.

    Args:
        head: The classifier's last layer.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> detector = SHE(head=Head([[1.0, 0.0], [0.0, 1.0]]))
    >>> detector.fit([[3.0, 0.0], [5.0, 0.0], [0.0, 2.0]], [0, 0, 1]).score_samples([[1.0, 0.5], [0.5, 1.0]])
    array([4., 2.])
    """

    needs_head: ClassVar[bool] = True

    def __init__(
        self,
        *,
        head: Head | None = None,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    @property
    def uses_labels(self) -> bool:
        """Whether labels matter to the fit: they tell which rows are classified correctly."""
        return True

    @property
    def patterns_(self) -> NDArray[np.float64]:
        """Mean of the correctly classified rows of each class, k × m."""
        patterns: NDArray[np.float64] = self._learned
        without = np.isnan(patterns[:, 0])
        if without.any():
            name = self.classes_[int(np.argmax(without))].item()
            raise InputError(
                f"class {name!r} has no correctly classified row, so it has no pattern ({np.count_nonzero(without)} of "
                f"{len(patterns)} classes have none); pass rows of every class, and check that the labels are in the "
                f"order of the head's logits"
            )
        return patterns

    def _learn(self, batches: Batches, *, n_features: int, classes: NDArray[Any] | None) -> None:
        super()._learn(batches, n_features=n_features, classes=classes)
        _ = self.patterns_  # refuses a class without a pattern

    def _terms(self, chunk: Chunk) -> dict[str, NDArray[np.float64]]:
        n_classes = chunk.logits.shape[1]
        correct = np.flatnonzero(np.argmax(chunk.logits, axis=1) == chunk.places)
        sums = np.zeros((n_classes, chunk.features.shape[1]))
        if chunk.places is None or len(correct) == 0:
            return {"counts": np.zeros(n_classes), "features": sums}
        rows = correct[np.argsort(chunk.places[correct], kind="stable")]
        present, starts = np.unique(chunk.places[rows], return_index=True)
        with np.errstate(over="ignore", invalid="ignore"):
            sums[present] = np.add.reduceat(chunk.features[rows], starts, axis=0, dtype=np.float64)
        return {"counts": np.bincount(chunk.places[rows], minlength=n_classes).astype(np.float64), "features": sums}

    def _settle(self, sums: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the patterns; NaN for a class that has none so far, which `patterns_` refuses."""
        counts = sums["counts"][:, np.newaxis]
        _refuse_overflow(sums["features"])
        return np.divide(sums["features"], counts, out=np.full_like(sums["features"], np.nan), where=counts > 0.0)

    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        return hopfield_energy(features, logits, self.patterns_)

    def _unpack_sums(self, tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
        sums = super()._unpack_sums(tensors)
        counts = take_counts(tensors, "sums.counts", len(sums["counts"]), may_be_empty=True)
        refuse_damaged(sums["features"][counts == 0.0].any(), "sums.features", "holds sums of no rows")
        return sums


class _CentredDetector(SummedDetector):
    """What NCI and FDBD share: they learn the mean of the features."""

    needs_head: ClassVar[bool] = True

    @property
    def mean_(self) -> NDArray[np.float64]:
        """Mean of the training features."""
        mean: NDArray[np.float64] = self._learned
        return mean

    def _terms(self, chunk: Chunk) -> dict[str, NDArray[np.float64]]:
        with np.errstate(over="ignore", invalid="ignore"):
            total = chunk.features.sum(axis=0, dtype=np.float64)
        return {"count": np.array([float(len(chunk.features))]), "features": total}

    def _settle(self, sums: dict[str, NDArray[np.float64]]) -> Any:
        _refuse_overflow(sums["features"])
        return sums["features"] / sums["count"]

    def _unpack_sums(self, tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
        take_counts(tensors, "sums.count", 1)
        return super()._unpack_sums(tensors)


class NCI(_CentredDetector):
    """The neural-collapse inspired detector of Liu and Qin (CVPR 2025).

    The score is ⟨w_ŷ, x − μ⟩ / ‖x − μ‖ + α·‖x‖₁, with w_ŷ the head's weight vector of the predicted class, not scaled
    to unit length, and μ the mean of all training features. A row equal to μ has a first term of 0.

    Args:
        head: The classifier's last layer.
        alpha: Weight of the feature norm. 0.0001 is the default of the authors' code, which chooses among 0.0001,
            0.001, 0.01 and 0.1 by validation outliers; 0 leaves the norm out.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> detector = NCI(head=Head([[5.0, 0.0], [0.0, 5.0]]), alpha=0.1).fit([[0.0, 0.0], [2.0, 2.0]])
    >>> detector.score_samples([[4.0, 5.0]])
    array([4.9])
    """

    def __init__(
        self,
        *,
        head: Head | None = None,
        alpha: float = 0.0001,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.alpha = alpha
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _check_options(self) -> None:
        super()._check_options()
        if not _is_weight(self.alpha):
            raise InputError(f"alpha is {self.alpha!r}; pass a finite number of at least 0, such as 0.0001")

    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        assert self.head is not None  # `_check_options` has seen to it
        return neural_collapse(features, logits, weight=self.head.weight, mean=self.mean_, alpha=self.alpha)


class FDBD(_CentredDetector):
    """The fast decision boundary based detector of Liu and Qin (ICML 2024).

    The score is the mean over the other classes c of |z_ŷ − z_c| / ‖w_ŷ − w_c‖, the distance from x to the boundary
    with c, divided by ‖x − μ‖, with μ the mean of all training features. The published code sums where the paper
    averages: its scores are k − 1 times these. Classes of equal weight vectors have no boundary between them and are
    left out of the mean; a row equal to μ has the largest score that float64 holds, or 0 on every boundary.

    Args:
        head: The classifier's last layer, of at least two unequal weight vectors.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> detector = FDBD(head=Head([[0.0, 0.0], [0.6, 0.8]])).fit([[3.0, 1.0], [3.0, 3.0]])
    >>> detector.score_samples([[3.0, 4.0]])
    array([2.5])
    """

    settling_options: ClassVar[tuple[str, ...]] = ("head",)

    def __init__(
        self,
        *,
        head: Head | None = None,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    @property
    def mean_(self) -> NDArray[np.float64]:
        """Mean of the training features."""
        mean: NDArray[np.float64] = self._learned[0]
        return mean

    def _settle(self, sums: dict[str, NDArray[np.float64]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        assert self.head is not None  # `_check_options` has seen to it
        return super()._settle(sums), weight_gaps(self.head.weight)

    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        mean, gaps = self._learned
        return boundary_distance(features, logits, gaps=gaps, mean=mean)


def _is_weight(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and 0.0 <= float(value) < np.inf


def _refuse_overflow(sums: NDArray[np.float64]) -> None:
    if not np.isfinite(sums).all():
        raise InputError("features are so large that their sums overflow float64; rescale the features")
