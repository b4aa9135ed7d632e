"""GaussianDetector: what the detectors share that compare features with class means under one tied covariance."""

import operator
import warnings
from abc import abstractmethod
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import validate_data

from gem_ood.batches import Batches, reduce_rows
from gem_ood.detectors.base import Detector
from gem_ood.detectors.packing import pack_gaussians, pack_statistics, unpack_gaussians, unpack_statistics
from gem_ood.errors import InputError, NotFittedError, RankWarning
from gem_ood.features import as_features, chunks, refuse_non_finite, rows_per_chunk, unit_length
from gem_ood.gaussians import (
    Accumulator,
    CovariancePolicy,
    Factor,
    Priors,
    Statistics,
    TiedGaussians,
    check_policy,
    factorize,
    fourth_moment,
    merge,
    tied_covariance,
)
from gem_ood.gaussians.labels import distinct_labels
from gem_ood.gaussians.summing import Prepare

__all__ = ["GaussianDetector"]

#: By how much the score of one row may differ between batches of different size, relative to the score or the rank.
FLOAT32_ROUNDING = 4e-6
FLOAT64_ROUNDING = 1e-9

#: By how much an entry of a row scaled to length one may differ between batches: a few steps of float64.
UNIT_ROUNDING = 1e-15


class GaussianDetector(Detector):
    """What Gaussian detectors share: statistics that stream and merge, and the Gaussians made from them."""

    covariance: CovariancePolicy
    normalize: bool
    priors: Priors = "uniform"
    relative: bool = False
    _accumulator: Accumulator | None = None
    _statistics: Statistics | None = None
    _gaussians: TiedGaussians | None = None
    _background: TiedGaussians | None = None

    @property
    def uses_labels(self) -> bool:
        """Whether labels matter to the fit: they tell the classes apart."""
        return True

    @property
    def statistics_(self) -> Statistics:
        """Counts, class means and scatter of the rows seen."""
        if self._statistics is None:
            if self._accumulator is None:
                raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit(features, labels) first")
            self._statistics = self._accumulator.statistics()
        return self._statistics

    @property
    def gaussians_(self) -> TiedGaussians:
        """The class Gaussians; after `partial_fit` they are made when first asked for."""
        if self._gaussians is None:
            self._gaussians = TiedGaussians.from_statistics(
                self.statistics_, covariance=self.covariance, priors=self.priors
            )
        return self._gaussians

    @property
    def background_(self) -> TiedGaussians:
        """One Gaussian over all rows, whatever their class, that a relative score is measured against.

        Where the tied covariance lacks rank, it is a Gaussian on the directions that the class distances use.
        """
        if self._background is None:
            _require_two_classes(self.statistics_)
            self._background = self._one_gaussian(self.statistics_.pooled())
        return self._background

    @property
    def classes_(self) -> NDArray[Any]:
        """Names of all classes, with or without rows."""
        return self.statistics_.classes

    def _one_gaussian(self, pooled: Statistics) -> TiedGaussians:
        classes = self.gaussians_
        whitener = classes.factor.whitener
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RankWarning)  # the class Gaussians have warned of it already
            if classes.rank == classes.n_features:
                return TiedGaussians.from_statistics(pooled, covariance=self.covariance)
            # A direction in which only the class means differ has no variance within classes, and the class distances
            # leave it out. Were it counted here, the farther out a row is, the more in-distribution it would seem.
            matrix, share = tied_covariance(pooled, self.covariance)
            inner = factorize(whitener.T @ matrix @ whitener)
        factor = Factor(whitener @ inner.whitener, classes.log_determinant + inner.log_determinant)
        return TiedGaussians(pooled.classes, pooled.means, np.ones(1), matrix, factor, share)

    def _check_options(self) -> None:
        super()._check_options()
        check_policy(self.covariance)
        if isinstance(self.priors, str) and self.priors not in ("uniform", "empirical"):
            raise InputError(f"priors is {self.priors!r}; pass 'uniform', 'empirical', or one weight per class")

    def collect(self, batches: Batches, *, classes: ArrayLike | None = None) -> Statistics:
        """Return the statistics of these batches as this detector would fit them, and leave the detector as it is.

        Rows are scaled to unit length where the detector asks for it. Statistics of parts of the data are joined by
        `gem_ood.gaussians.merge`, over processes by `gem_ood.torch.all_reduce`, and fitted by `fit_statistics`.

        >>> from gem_ood import Mahalanobis
        >>> Mahalanobis().collect([([[0.0], [2.0]], ["a", "a"])]).means
        array([[1.]])
        """
        self._check_options()
        return self._collect(batches, None if classes is None else np.asarray(classes))

    @property
    def _prepare(self) -> Prepare | None:
        return unit_length if self.normalize else None

    def _collect(self, batches: Batches, classes: NDArray[Any] | None, n_features: int | None = None) -> Statistics:
        work = partial(_collect_part, n_features=n_features, classes=classes, prepare=self._prepare)
        return reduce_rows(batches, work, merge)

    def _with_fourth_moment(self, statistics: Statistics, batches: Batches) -> Statistics:
        """Return the statistics as the covariance wants them: ledoit-wolf reads the rows once more."""
        if self.covariance != "ledoit-wolf":
            return statistics
        work = partial(_fourth_moment, statistics=statistics.without_scatter(), prepare=self._prepare)
        return replace(statistics, fourth_moment=reduce_rows(batches, work, operator.add))

    def _learn(self, batches: Batches, *, n_features: int, classes: NDArray[Any] | None) -> None:
        statistics = self._collect(batches, classes, n_features)
        if self.relative:
            _require_two_classes(statistics)
        statistics = self._with_fourth_moment(statistics, batches)
        self._adopt(statistics)
        self._gaussians = TiedGaussians.from_statistics(statistics, covariance=self.covariance, priors=self.priors)
        if self.relative:
            self._background = self._one_gaussian(self._with_fourth_moment(statistics.pooled(), batches))

    def fit_statistics(self, statistics: Statistics) -> Self:
        """Fit to rows by the statistics collected from them elsewhere: in another process or on another machine.

        The result is that of `fit` on those rows; the threshold, if any, is forgotten. With `normalize=True` the rows
        must have been scaled to unit length before they were collected, as this detector's own `collect` does.
        `covariance="ledoit-wolf"` needs statistics that hold a `fourth_moment`, and cannot be joined here with
        `relative=True`, which needs a second one, about the mean of all rows.

        >>> from gem_ood.gaussians import collect, merge
        >>> here, there = collect([[0.0], [2.0]], ["a", "a"]), collect([[10.0], [12.0]], ["b", "b"])
        >>> from gem_ood import Mahalanobis
        >>> Mahalanobis().fit_statistics(merge(here, there)).score_samples([[1.0], [3.0]])
        array([ 0., -4.])
        """
        self._check_options()
        if not isinstance(statistics, Statistics):
            raise InputError(
                f"statistics is of type {type(statistics).__name__}; pass gem_ood.gaussians.Statistics, such as "
                f"collect(features, labels) returns"
            )
        if self.calibration is not None:
            raise InputError(
                "calibration holds rows back from fit and cannot from statistics; set it to None and calibrate"
            )
        refuse_non_finite(statistics.means, name="statistics.means", remedy="collect again")
        refuse_non_finite(statistics.scatter, name="statistics.scatter", remedy="collect again")
        with self._all_or_nothing():
            self.__dict__.pop("feature_names_in_", None)
            self._adopt(statistics)
            self._gaussians = self.gaussians_
            if self.relative:
                self._background = self.background_
        return self

    def _adopt(self, statistics: Statistics) -> None:
        self._statistics, self._accumulator = statistics, None
        self._gaussians = self._background = None
        self.n_features_in_ = statistics.n_features
        self._forget_calibration()

    def partial_fit(self, X: ArrayLike, y: ArrayLike | None = None, *, classes: ArrayLike | None = None) -> Self:
        """Add a batch of rows to what was learned; the threshold, if any, is forgotten.

        Args:
            X: Rows of features.
            y: Their labels; None in every batch for one Gaussian.
            classes: All class names, in the first call; without it, the classes are those of the first batch.
        """
        self._check_options()
        if self.covariance == "ledoit-wolf":
            raise InputError(
                "covariance='ledoit-wolf' needs two passes over all rows, so it cannot stream; use fit or "
                "fit_batches, or covariance='oas', which streams"
            )
        features = as_features(X)
        with self._all_or_nothing():
            accumulator = self._opened(features, y, classes)
            self._check_width(features, accumulator.n_features)
            validate_data(self, X, reset="n_features_in_" not in self.__dict__, skip_check_array=True)
            accumulator.add(features, y, prepare=self._prepare)
            self._accumulator, self.n_features_in_ = accumulator, features.shape[1]
            self._statistics = self._gaussians = self._background = None
            self._forget_calibration()
        return self

    def _opened(self, features: NDArray[Any], y: ArrayLike | None, classes: ArrayLike | None) -> Accumulator:
        """Return the accumulator to add a batch to: the one at work, one that resumes, or a new one."""
        accumulator = self._accumulator
        if accumulator is None and self._statistics is not None:
            accumulator = Accumulator.resume(self._statistics)
        if accumulator is None:
            if classes is None and y is not None:
                classes = distinct_labels(y, len(features))
            return Accumulator(n_features=features.shape[1], classes=classes)
        if classes is not None and not np.array_equal(np.unique(np.asarray(classes)), accumulator.classes):
            raise InputError(
                f"classes differs from the {len(accumulator.classes)} classes that this fit began with; "
                f"declare all of them in the first call of partial_fit"
            )
        return accumulator

    def merge(self, other: Self) -> Self:
        """Return a new, uncalibrated detector fitted to the rows of both; neither of the two changes."""
        joined = self._merged(other)
        joined._adopt(merge(self.statistics_, other.statistics_))
        joined._gaussians = joined.gaussians_
        if joined.relative:
            joined._background = joined.background_
        return joined

    def _slack(self, scores: NDArray[np.float64], counts: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        is_wide = self.normalize or self.relative
        scored_narrow = not is_wide and self.gaussians_.working_dtype(np.float32) == np.float32
        rounding = FLOAT32_ROUNDING if scored_narrow else FLOAT64_ROUNDING
        sizes = np.maximum(np.abs(scores), float(self.gaussians_.rank))
        slack = rounding * sizes
        if self.normalize:  # rows of length one, rounded, then stretched by the whitener along directions of no spread
            step = UNIT_ROUNDING * float(np.linalg.norm(self.gaussians_.factor.whitener))
            slack = np.maximum(slack, step * (step + np.sqrt(2.0 * sizes)))
        return np.asarray(slack)

    def _class_names(self, n_features: int) -> NDArray[Any]:
        return self.gaussians_.classes

    def _scores(self, features: NDArray[Any], nearest: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        # A relative score is a small difference of two large ones, of which float32 would leave little.
        widens = self.relative and features.dtype in (np.float16, np.float32)
        if not (self.normalize or widens):
            return self._gaussian_scores(features, nearest)
        scores = np.empty(len(features))
        for rows in chunks(len(features), rows_per_chunk(features.shape[1])):
            refuse_non_finite(features[rows], first_row=rows.start)
            part = None if nearest is None else nearest[rows]
            wide = unit_length(features[rows]) if self.normalize else features[rows].astype(np.float64)
            scores[rows] = self._gaussian_scores(wide, part)
        return scores

    @staticmethod
    def _difference(scores: NDArray[np.float64], background: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return relative scores; a row whose distances overflow float64 is infinitely far from everything."""
        with np.errstate(invalid="ignore"):
            scores -= background
        scores[~np.isfinite(scores)] = -np.inf
        return scores

    @abstractmethod
    def _gaussian_scores(self, features: NDArray[Any], nearest: NDArray[np.intp] | None) -> NDArray[np.float64]:
        """Score checked rows."""

    def _details(self, features: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        prepared = unit_length(features) if self.normalize else features
        return self.gaussians_.posterior(prepared), np.sqrt(self.gaussians_.squared_distances(prepared))

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        tensors, values = pack_statistics(self.statistics_)
        background = self.background_ if self.relative else None
        for name, gaussians in (("gaussians", self.gaussians_), ("background", background)):
            if gaussians is not None:
                more, values[name] = pack_gaussians(gaussians, name)
                tensors |= more
        return tensors, values

    def _restore(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        self._adopt(unpack_statistics(tensors, values))
        self._gaussians = unpack_gaussians(tensors, values["gaussians"], "gaussians")
        if "background" in values:
            self._background = unpack_gaussians(tensors, values["background"], "background")


def _require_two_classes(statistics: Statistics) -> None:
    if np.count_nonzero(statistics.counts) < 2:
        raise InputError(
            "a relative score compares classes with all rows together; pass labels of at least two classes"
        )


def _collect_part(
    batches: Batches, *, n_features: int | None, classes: NDArray[Any] | None, prepare: Prepare | None
) -> Statistics:
    """Return the statistics of these rows, which must have the width, if it is given; classes not given are found."""
    accumulator: Accumulator | None = None
    for X, labels in batches:
        features, names = as_features(X), classes
        if labels is not None and names is None:
            names = distinct_labels(labels, len(features))
        if accumulator is None:
            accumulator = Accumulator(n_features=n_features or features.shape[1], classes=names)
        elif classes is None and names is not None and accumulator.is_labelled:
            accumulator.declare(names)
        accumulator.add(features, labels, prepare=prepare)
    if accumulator is None:
        raise InputError("batches is empty; pass at least one batch")
    return accumulator.statistics(is_last=True)


def _fourth_moment(batches: Batches, *, statistics: Statistics, prepare: Prepare | None) -> float:
    return fourth_moment(statistics, batches if statistics.is_labelled else _Unlabelled(batches), prepare=prepare)


class _Unlabelled:
    """The same batches without their labels."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Any:
        return ((X, None) for X, _ in self._batches)
