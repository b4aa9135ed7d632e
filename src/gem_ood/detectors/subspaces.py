"""ViM and Residual: detectors that measure what the principal subspace of the features leaves of a row.

X is features, with a head or without.
"""

from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import validate_data

from gem_ood.batches import Batches, reduce_rows
from gem_ood.detectors.base import Detector
from gem_ood.detectors.head import Head
from gem_ood.detectors.head_reading import HeadDetector
from gem_ood.detectors.naming import labels_met
from gem_ood.detectors.packing import claim, number, pack_statistics, refuse_damaged, take, unpack_statistics
from gem_ood.errors import InputError, NotFittedError
from gem_ood.features import as_features, is_count
from gem_ood.gaussians import Accumulator, Statistics, merge
from gem_ood.scores.subspaces import ResidualSpace, residual, residual_space, virtual_logit

__all__ = ["Residual", "ViM"]

#: By how much the length of a residual may move between batches of different size, relative to the usual length of a
#: whole row.
RESIDUAL_ROUNDING = 1e-12

#: How far rounding may bring the products of residual directions away from 1 and 0.
BASIS_ROUNDING = 1e-8


def _is_dimension(value: object) -> bool:
    return value is None or is_count(value)


def _head_origin(head: Head) -> NDArray[np.float64]:
    """Return −W⁺b, the shortest vector of logits nearest to 0; singular values that are rounding count as 0."""
    return np.asarray(-np.linalg.lstsq(head.weight, head.bias)[0])


class _Collected(NamedTuple):
    """The statistics of all rows as one class, and the labels met."""

    statistics: Statistics
    found: set[Any]


class _SubspaceDetector(HeadDetector):
    """What ViM and Residual share: the statistics of all rows and the residual space made from them."""

    dimension: int | None
    _space: ResidualSpace | None = None
    _usual_length: float = 0.0

    @property
    def reads_logits(self) -> bool:
        """Whether X is logits: never."""
        return False

    @property
    def space_(self) -> ResidualSpace:
        """The residual directions and their origin."""
        if self._space is None:
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit(features, labels) first")
        return self._space

    def _check_options(self) -> None:
        super()._check_options()
        if not _is_dimension(self.dimension):
            raise InputError(
                f"dimension is {self.dimension!r}; pass a whole number of at least 1, or None for a choice by width"
            )

    def _principal_dimension(self, n_features: int) -> int:
        if self.dimension is None:
            return 1000 if n_features >= 1500 else 512 if n_features >= 768 else n_features // 2
        if self.dimension >= n_features:
            raise InputError(
                f"dimension is {self.dimension} but features has {n_features} columns, so no residual is left; pass a "
                f"dimension below {n_features}"
            )
        return int(self.dimension)

    def _n_logits(self, n_features: int) -> int:
        return 1 if self.head is None else self.head.n_classes

    def _logits(self, features: NDArray[Any]) -> NDArray[Any]:
        """Without a head all rows are one class."""
        return np.zeros((len(features), 1)) if self.head is None else self.head.logits(features)

    def _collect(self, batches: Batches, n_features: int) -> _Collected:
        return reduce_rows(batches, partial(_collect_part, kind=type(self), n_features=n_features), _joined)

    def _make_space(self, statistics: Statistics) -> None:
        mean, covariance = statistics.means[0], statistics.scatter / statistics.n_rows
        origin = mean if self.head is None else _head_origin(self.head)
        dimension = self._principal_dimension(statistics.n_features)
        self._space = residual_space(covariance, mean, origin=origin, dimension=dimension)
        self._usual_length = float(np.sqrt(np.trace(covariance)) + np.linalg.norm(mean - origin))

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        tensors, values = super()._state()
        tensors |= {"space.origin": self.space_.origin, "space.basis": self.space_.basis}
        return tensors, values | {"holds_all": self.space_.holds_all, "usual_length": self._usual_length}

    def _restore(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        super()._restore(tensors, values)
        origin = take(tensors, "space.origin", (None,))
        self._check_head(len(origin))
        basis = take(tensors, "space.basis", (len(origin), None))
        products = basis.T @ basis
        is_orthonormal = products.size > 0 and np.abs(products - np.eye(len(products))).max() <= BASIS_ROUNDING
        refuse_damaged(not is_orthonormal, "space.basis", "holds no orthonormal directions")
        self._space = ResidualSpace(origin, basis, holds_all=claim(values["holds_all"], "holds_all"))
        self._usual_length = number(values["usual_length"], "usual_length", least=0.0)
        self.n_features_in_ = len(origin)


class ViM(_SubspaceDetector):
    """Virtual-logit matching (Wang, Li, Feng and Zhang, CVPR 2022).

    About the origin o = −W⁺b, which the head maps to logits nearest to 0, the eigenvectors of E[(x − o)(x − o)ᵀ] with
    the D largest eigenvalues span the principal subspace; r(x) is the length of what it leaves of x − o. The score is
    log Σ exp(logit) − α·r(x), with α = Σ max logit / Σ r over the training rows. It ranks rows as the paper's, the
    softmax probability of the virtual logit α·r(x), does, and is what the published code computes.

    α needs the subspace first, so the rows are read twice: `fit` or `fit_batches`, no `partial_fit`. Training rows
    without a residual, or with a mean largest logit that is not positive, give no α that means anything: `fit` refuses.

    Args:
        head: The classifier's last layer.
        dimension: D. By default the paper's 1,000 of at least 1,500 features (of at least 2,048 in the published code)
            and 512 of at least 768; of fewer, which the paper does not treat, half.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> detector = ViM(head=Head([[1.0, 0.0], [2.0, 0.0]])).fit([[4.0, 1.0], [4.0, -1.0]])
    >>> detector.alpha_, detector.score_samples([[40.0, 0.0], [40.0, 5.0]])
    (8.0, array([80., 40.]))
    """

    needs_head: ClassVar[bool] = True

    alpha_: float

    def __init__(
        self,
        *,
        head: Head | None = None,
        dimension: int | None = None,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.dimension = dimension
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _learn(self, batches: Batches, *, n_features: int, classes: NDArray[Any] | None) -> None:
        self._check_head(n_features)
        dimension = self._principal_dimension(n_features)
        statistics, found = self._collect(batches, n_features)
        self._make_space(statistics)
        work = partial(self._blank()._matched, space=self.space_, n_features=n_features)
        largest, lengths = reduce_rows(batches, work, _added)
        if self.space_.holds_all or not lengths > 0.0:
            raise InputError(
                f"the {statistics.n_rows} rows lie within {dimension} principal dimensions, so they leave no residual "
                f"to match with the logits; pass a smaller dimension, or more rows"
            )
        if not largest > 0.0 or not np.isfinite(largest / lengths):
            raise InputError(
                f"the largest logit of the rows is {largest / statistics.n_rows:.3g} on average, and a positive one is "
                f"needed to scale the residual by; check the head, or use Residual, which does not read the logits"
            )
        self.alpha_ = largest / lengths
        self._name_logits(found, classes, n_features, anew=True)

    def _matched(self, batches: Batches, *, space: ResidualSpace, n_features: int) -> tuple[float, float]:
        """Return the sums of the largest logits and of the lengths of the residuals of these rows."""
        largest = lengths = 0.0
        for chunk in self._chunks(batches, n_features):
            largest += float(chunk.logits.max(axis=1).sum())
            lengths += float(space.norms(chunk.features).sum())
        return largest, lengths

    def _slack(self, scores: NDArray[np.float64], counts: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        return RESIDUAL_ROUNDING * np.maximum(np.abs(scores), self.alpha_ * self._usual_length)

    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        return virtual_logit(features, logits, self.space_, alpha=self.alpha_)

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        tensors, values = super()._state()
        return tensors, values | {"alpha": self.alpha_}

    def _restore(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        super()._restore(tensors, values)
        self.alpha_ = number(values["alpha"], "alpha")
        refuse_damaged(self.alpha_ <= 0.0, "alpha", f"is {self.alpha_} and does not scale a residual")
        refuse_damaged(self.space_.holds_all, "holds_all", "leaves no residual")


class Residual(_SubspaceDetector):
    """The residual of ViM alone, which its paper compares with (Wang, Li, Feng and Zhang, CVPR 2022).

    The score is −r(x), minus the length of what the principal subspace of dimension D leaves of x − o. With a head the
    origin is o = −W⁺b, as in the paper; without one it is the mean of the training features, and the subspace that of
    principal component analysis. X is features either way. One pass suffices, so it streams and merges. The subspace
    has no more dimensions than the training rows span: where they are few, they leave no residual themselves.

    Args:
        head: The classifier's last layer, where the paper's origin is wanted.
        dimension: D. By default the paper's 1,000 of at least 1,500 features (of at least 2,048 in the published code)
            and 512 of at least 768; of fewer, which the paper does not treat, half.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> detector = Residual().fit([[4.0, 1.0], [-4.0, 1.0], [4.0, 1.5], [-4.0, 0.5]])
    >>> detector.score_samples([[9.0, 1.0], [9.0, 3.0]]).round(1)
    array([-0.6, -1.4])
    """

    _accumulator: Accumulator | None = None
    _statistics: Statistics | None = None

    def __init__(
        self,
        *,
        head: Head | None = None,
        dimension: int | None = None,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.head = head
        self.dimension = dimension
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    @property
    def statistics_(self) -> Statistics:
        """Count, mean and scatter of the rows seen."""
        if self._statistics is None:
            if self._accumulator is None:
                raise NotFittedError("this Residual is not fitted yet; call fit(features, labels) first")
            self._statistics = self._accumulator.statistics()
        return self._statistics

    @property
    def space_(self) -> ResidualSpace:
        """The residual directions and their origin; after `partial_fit` they are found when first asked for."""
        if self._space is None:
            self._make_space(self.statistics_)
        return super().space_

    def _learn(self, batches: Batches, *, n_features: int, classes: NDArray[Any] | None) -> None:
        self._check_head(n_features)
        self._principal_dimension(n_features)
        self._statistics, found = self._collect(batches, n_features)
        self._accumulator = None
        self._make_space(self._statistics)
        self._name_logits(found, classes, n_features, anew=True)

    def partial_fit(self, X: ArrayLike, y: ArrayLike | None = None, *, classes: ArrayLike | None = None) -> Self:
        """Add a batch of rows to what was learned; the threshold, if any, is forgotten.

        Args:
            X: Rows of features.
            y: Their labels, which only name the logits.
            classes: All class names in the order of the logits, where they are not 0 to k − 1.
        """
        self._check_options()
        is_first = "n_features_in_" not in self.__dict__
        with self._all_or_nothing():
            features = as_features(X) if is_first else self._checked(X)
            validate_data(self, X, reset=is_first, skip_check_array=True)
            self.n_features_in_ = features.shape[1]
            self._check_head(self.n_features_in_)
            self._principal_dimension(self.n_features_in_)
            self._name_logits(labels_met(y, len(features)), classes, self.n_features_in_, anew=is_first)
            accumulator = self._accumulator
            if accumulator is None:
                accumulator = (
                    Accumulator(n_features=self.n_features_in_) if is_first else Accumulator.resume(self.statistics_)
                )
            accumulator.add(features)
            self._accumulator, self._statistics, self._space = accumulator, None, None
            self._forget_calibration()
        return self

    def merge(self, other: Self) -> Self:
        """Return a new, uncalibrated detector fitted to the rows of both; neither of the two changes."""
        joined = self._merged(other)
        joined._statistics = merge(self.statistics_, other.statistics_)
        joined._make_space(joined._statistics)
        joined._join_names(self, other)
        return joined

    def _slack(self, scores: NDArray[np.float64], counts: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        return RESIDUAL_ROUNDING * np.maximum(np.abs(scores), self._usual_length)

    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        return residual(features, self.space_)

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        tensors, values = super()._state()
        collected, values["statistics"] = pack_statistics(self.statistics_)
        return tensors | collected, values

    def _restore(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        super()._restore(tensors, values)
        statistics = unpack_statistics(tensors, values["statistics"])
        refuse_damaged(len(statistics.classes) != 1, "statistics", "is not of all rows together")
        self._check_width(statistics.means, self.n_features_in_)
        self._statistics = statistics


def _collect_part(batches: Batches, *, kind: type[Detector], n_features: int) -> _Collected:
    accumulator = Accumulator(n_features=n_features)
    found: set[Any] = set()
    for X, y in batches:
        features = as_features(X)
        kind._check_width(features, n_features)
        accumulator.add(features)
        found |= labels_met(y, len(features))
    return _Collected(accumulator.statistics(is_last=True), found)


def _joined(one: _Collected, other: _Collected) -> _Collected:
    return _Collected(merge(one.statistics, other.statistics), one.found | other.found)


def _added(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return one[0] + other[0], one[1] + other[1]
