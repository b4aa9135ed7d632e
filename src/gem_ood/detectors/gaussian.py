"""GEM and Mahalanobis: detectors that compare features with class means under one tied covariance."""

import warnings
from abc import abstractmethod
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils.validation import validate_data

from gem_ood.detectors.base import Batches, Detector
from gem_ood.detectors.packing import pack_gaussians, pack_statistics, unpack_gaussians, unpack_statistics
from gem_ood.errors import InputError, NotFittedError, RankWarning
from gem_ood.features import as_features, as_labels, chunks, refuse_non_finite, rows_per_chunk, unit_length
from gem_ood.gaussians import (
    Accumulator,
    CovariancePolicy,
    Priors,
    Statistics,
    TiedGaussians,
    check_policy,
    fourth_moment,
    merge,
)
from gem_ood.scores import gem_scores, mahalanobis_scores

__all__ = ["GEM", "GaussianDetector", "Mahalanobis"]

#: By how much the score of one row may differ between batches of different size, relative to the score or the rank.
FLOAT32_ROUNDING = 2e-6
FLOAT64_ROUNDING = 1e-9


class GaussianDetector(Detector):
    """What GEM and Mahalanobis share: statistics that stream and merge, and the Gaussians made from them."""

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
        """One Gaussian over all rows, whatever their class, that a relative score is measured against."""
        if self._background is None:
            _require_two_classes(self.statistics_)
            self._background = self._one_gaussian(self.statistics_.pooled())
        return self._background

    @property
    def classes_(self) -> NDArray[Any]:
        """Names of all classes, with or without rows."""
        return self.statistics_.classes

    def _one_gaussian(self, pooled: Statistics) -> TiedGaussians:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RankWarning)  # the class Gaussians have warned of it already
            return TiedGaussians.from_statistics(pooled, covariance=self.covariance)

    def _check_options(self) -> None:
        check_policy(self.covariance)
        if isinstance(self.priors, str) and self.priors not in ("uniform", "empirical"):
            raise InputError(f"priors is {self.priors!r}; pass 'uniform', 'empirical', or one weight per class")

    def collect(self, batches: Batches, *, classes: ArrayLike | None = None) -> Statistics:
        """Return the statistics of these batches as this detector would fit them, and leave the detector as it is.

        Rows are scaled to unit length where the detector asks for it. Statistics of parts of the data are joined by
        `gem_ood.gaussians.merge`, over processes by `gem_ood.torch.all_reduce`, and fitted by `fit_statistics`.

        >>> Mahalanobis().collect([([[0.0], [2.0]], ["a", "a"])]).means
        array([[1.]])
        """
        self._check_options()
        declared = None if classes is None else np.asarray(classes)
        accumulator: Accumulator | None = None
        for X, labels in batches:
            features, names = as_features(X), declared
            if labels is not None and names is None:
                names = np.unique(as_labels(labels, len(features)))
            if accumulator is None:
                accumulator = Accumulator(n_features=features.shape[1], classes=names)
            elif declared is None and names is not None and accumulator.is_labelled:
                accumulator.declare(names)
            accumulator.add(features, labels, prepare=unit_length if self.normalize else None)
        if accumulator is None:
            raise InputError("batches is empty; pass at least one batch")
        return accumulator.statistics()

    def _learn(self, batches: Batches, *, n_features: int, classes: NDArray[Any] | None) -> None:
        prepare = unit_length if self.normalize else None
        statistics = self.collect(batches, classes=classes)
        if self.relative:
            _require_two_classes(statistics)
        if self.covariance == "ledoit-wolf":
            statistics = replace(statistics, fourth_moment=fourth_moment(statistics, batches, prepare=prepare))
        self._adopt(statistics)
        self._gaussians = TiedGaussians.from_statistics(statistics, covariance=self.covariance, priors=self.priors)
        if self.relative:
            pooled = statistics.pooled()
            if self.covariance == "ledoit-wolf":
                moment = fourth_moment(pooled, _Unlabelled(batches), prepare=prepare)
                pooled = replace(pooled, fourth_moment=moment)
            self._background = self._one_gaussian(pooled)

    def fit_statistics(self, statistics: Statistics) -> Self:
        """Fit to rows by the statistics collected from them elsewhere: in another process or on another machine.

        The result is that of `fit` on those rows; the threshold, if any, is forgotten. With `normalize=True` the rows
        must have been scaled to unit length before they were collected, as this detector's own `collect` does.
        `covariance="ledoit-wolf"` needs statistics that hold a `fourth_moment`, and cannot be joined here with
        `relative=True`, which needs a second one, about the mean of all rows.

        >>> from gem_ood.gaussians import collect, merge
        >>> here, there = collect([[0.0], [2.0]], ["a", "a"]), collect([[10.0], [12.0]], ["b", "b"])
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
            accumulator.add(features, y, prepare=unit_length if self.normalize else None)
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
                classes = np.unique(as_labels(y, len(features)))
            return Accumulator(n_features=features.shape[1], classes=classes)
        if classes is not None and not np.array_equal(np.unique(np.asarray(classes)), accumulator.classes):
            raise InputError(
                f"classes differs from the {len(accumulator.classes)} classes that this fit began with; "
                f"declare all of them in the first call of partial_fit"
            )
        return accumulator

    def merge(self, other: Self) -> Self:
        """Return a new, uncalibrated detector fitted to the rows of both; neither of the two changes."""
        if type(other) is not type(self):
            raise InputError(f"cannot merge a {type(other).__name__} into a {type(self).__name__}; merge equal kinds")
        if other.normalize != self.normalize:
            raise InputError("one fit has normalize=True and the other False; merge fits made with the same options")
        joined: Self = clone(self)
        joined._adopt(merge(self.statistics_, other.statistics_))
        joined._gaussians = joined.gaussians_
        return joined

    def _slack(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        scored_narrow = not self.normalize and self.gaussians_.working_dtype(np.float32) == np.float32
        rounding = FLOAT32_ROUNDING if scored_narrow else FLOAT64_ROUNDING
        return rounding * np.maximum(np.abs(scores), float(self.gaussians_.rank))

    def _class_names(self, n_features: int) -> NDArray[Any]:
        return self.gaussians_.classes

    def _scores(self, features: NDArray[Any], nearest: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        if not self.normalize:
            return self._gaussian_scores(features, nearest)
        scores = np.empty(len(features))
        for rows in chunks(len(features), rows_per_chunk(features.shape[1])):
            refuse_non_finite(features[rows], first_row=rows.start)
            part = None if nearest is None else nearest[rows]
            scores[rows] = self._gaussian_scores(unit_length(features[rows]), part)
        return scores

    @abstractmethod
    def _gaussian_scores(self, features: NDArray[Any], nearest: NDArray[np.intp] | None) -> NDArray[np.float64]:
        """Score checked rows."""

    def _details(self, features: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        prepared = unit_length(features) if self.normalize else features
        return self.gaussians_.posterior(prepared), np.sqrt(self.gaussians_.squared_distances(prepared))

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        tensors, values = pack_statistics(self.statistics_)
        for name, gaussians in (("gaussians", self.gaussians_), ("background", self._background)):
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
        raise InputError("relative=True compares classes with all rows together; pass labels of at least two classes")


class _Unlabelled:
    """The same batches without their labels."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Any:
        return ((X, None) for X, _ in self._batches)


class GEM(GaussianDetector):
    """The Gaussian mixture based Energy Measurement of Morteza and Li (AAAI 2022), on features (P7, P17–P19).

    The score is log Σ_i exp(−½ d²(x, μ_i)), the log-density of the class mixture up to a constant.

    Args:
        priors: `"uniform"` (the paper's), `"empirical"` (class frequencies), or one weight per class (P8).
        covariance: `"empirical"` (divisor N), `"oas"`, `"ledoit-wolf"` (two passes), or a shrinkage share in [0, 1].
        normalize: Scale every row to unit length first (B8).
        relative: Subtract the score under one Gaussian fitted to all rows (B9).
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(400, 2)) + 9.0 * (np.arange(400) % 2)[:, None], np.arange(400) % 2
    >>> detector = GEM().fit(X[:200], y[:200]).calibrate(X[200:], tpr=0.95)
    >>> detector.predict([[0.0, 0.0], [9.0, 9.0], [4.5, 4.5]])
    array([ 1,  1, -1])
    >>> GEM().fit(X, y).predict(X)
    Traceback (most recent call last):
        ...
    gem_ood.errors.NotCalibratedError: this GEM has no threshold yet; call calibrate(held_out_features, tpr=0.95) with
    in-distribution rows that the fit has not seen
    """

    def __init__(
        self,
        *,
        priors: Priors = "uniform",
        covariance: CovariancePolicy = "empirical",
        normalize: bool = False,
        relative: bool = False,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.priors = priors
        self.covariance = covariance
        self.normalize = normalize
        self.relative = relative
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _gaussian_scores(self, features: NDArray[Any], nearest: NDArray[np.intp] | None) -> NDArray[np.float64]:
        log_weights = None
        if not (isinstance(self.priors, str) and self.priors == "uniform"):
            with np.errstate(divide="ignore"):
                log_weights = np.log(self.gaussians_.priors)
        scores = gem_scores(self.gaussians_, features, log_weights=log_weights, nearest=nearest)
        if self.relative:
            with np.errstate(invalid="ignore"):
                scores -= gem_scores(self.background_, features)
            scores[np.isnan(scores)] = -np.inf  # beyond float64 in both: infinitely far from everything
        return scores


class Mahalanobis(GaussianDetector):
    """The Mahalanobis detector of Lee et al. (2018) on one feature layer: max_i −d²(x, μ_i) (P4).

    Args:
        covariance: `"empirical"` (divisor N), `"oas"`, `"ledoit-wolf"` (two passes), or a shrinkage share in [0, 1].
        normalize: Scale every row to unit length first.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> detector = Mahalanobis().fit([[0.0], [2.0], [10.0], [12.0]], ["a", "a", "b", "b"])
    >>> detector.score_samples([[1.0], [3.0]])
    array([ 0., -4.])
    """

    def __init__(
        self,
        *,
        covariance: CovariancePolicy = "empirical",
        normalize: bool = False,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.covariance = covariance
        self.normalize = normalize
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _gaussian_scores(self, features: NDArray[Any], nearest: NDArray[np.intp] | None) -> NDArray[np.float64]:
        return mahalanobis_scores(self.gaussians_, features, nearest=nearest)
