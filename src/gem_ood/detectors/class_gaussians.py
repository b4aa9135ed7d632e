"""ClassGaussians: features compared with one Gaussian per class, each with a covariance of its own."""

from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import validate_data

from gem_ood.batches import Batches
from gem_ood.detectors.base import Detector
from gem_ood.detectors.packing import (
    claim,
    class_names,
    number,
    refuse_damaged,
    take,
    take_counts,
    take_priors,
    take_whitener,
)
from gem_ood.errors import InputError, NotFittedError
from gem_ood.features import as_features, chunks, refuse_non_finite, rows_per_chunk, unit_length
from gem_ood.gaussians import Factor, Priors, Statistics, check_policy
from gem_ood.gaussians.class_statistics import ClassStatistics, add_fourth_moments, collect_classes, merge_classes
from gem_ood.gaussians.labels import distinct_labels
from gem_ood.gaussians.separate import ClassCovariance, SeparateGaussians

__all__ = ["ClassGaussians"]

#: By how much the score of one row may differ between batches of different size, relative to the score or the rank.
ROUNDING = 1e-9

#: How far rounding may bring a log-determinant away from that of the whitener, relative to itself or the width.
DETERMINANT_ROUNDING = 1e-6

CLASS_POLICIES = ("empirical", "pooled", "oas", "ledoit-wolf")


class ClassGaussians(Detector):
    """The log-density of features under one Gaussian per class, each with its own covariance.

    The score is log Σ_k π_k N(x; μ_k, Σ_k), the feature density of Mukhoti et al. (Deep Deterministic Uncertainty,
    CVPR 2023): quadratic discriminant analysis where Lee et al. (2018) tie the covariance. The weights are the paper's;
    its code has none. With `variant="nearest"` the score is max_k log N(x; μ_k, Σ_k), the form of Winkens et al.
    (arXiv:2007.05566, 2020), which knows no priors. The divisor of a covariance is the number of rows of its class.

    A covariance has m² numbers, so each class wants many more rows than features. A class whose covariance lacks rank,
    as with dead units, is refused: its density could not be compared with those of other classes. Shrinkage mends that,
    and `covariance="pooled"`, which draws every class towards the tied covariance the more the fewer rows it has
    (regularised discriminant analysis; Friedman, 1989), works on whatever directions the tied covariance has.
    The nearest class is the one of the highest density.

    Args:
        priors: `"empirical"` (class frequencies), `"uniform"`, or one weight per class.
        covariance: `"empirical"`, `"oas"`, `"ledoit-wolf"` (two passes), or a shrinkage share in [0, 1], of each class;
            or `"pooled"`, shrunk to the tied covariance.
        normalize: Scale every row to unit length first.
        variant: `"mixture"`, the log-density of all classes together, or `"nearest"`, of the likeliest class alone.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> X, y = [[-1.0], [1.0], [6.0], [14.0]], ["narrow", "narrow", "wide", "wide"]
    >>> detector = ClassGaussians().fit(X, y)
    >>> detector.score_samples([[0.0], [3.0], [17.0]]).round(2)
    array([-1.6 , -4.34, -4.53])
    >>> detector.verdicts([[2.0], [3.0]]).nearest_class
    array(['narrow', 'wide'], dtype='<U6')
    """

    _statistics: ClassStatistics | None = None
    _gaussians: SeparateGaussians | None = None

    def __init__(
        self,
        *,
        priors: Priors = "empirical",
        covariance: ClassCovariance = "empirical",
        normalize: bool = False,
        variant: Literal["mixture", "nearest"] = "mixture",
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.priors = priors
        self.covariance = covariance
        self.normalize = normalize
        self.variant = variant
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    @property
    def uses_labels(self) -> bool:
        """Whether labels matter to the fit: they tell the classes apart."""
        return True

    @property
    def statistics_(self) -> ClassStatistics:
        """Count, mean and scatter of each class."""
        if self._statistics is None:
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit(features, labels) first")
        return self._statistics

    @property
    def gaussians_(self) -> SeparateGaussians:
        """The class Gaussians; after `partial_fit` and `merge` they are made when first asked for."""
        if self._gaussians is None:
            self._gaussians = SeparateGaussians.from_statistics(
                self.statistics_, covariance=self.covariance, priors=self.priors
            )
        return self._gaussians

    @property
    def classes_(self) -> NDArray[Any]:
        """Names of all classes, with or without rows."""
        return self.statistics_.classes

    def _check_options(self) -> None:
        super()._check_options()
        if isinstance(self.covariance, str) and self.covariance not in CLASS_POLICIES:
            raise InputError(f"covariance is {self.covariance!r}; pass one of {', '.join(CLASS_POLICIES)}, or a share")
        if not isinstance(self.covariance, str):
            check_policy(self.covariance)
        if isinstance(self.priors, str) and self.priors not in ("uniform", "empirical"):
            raise InputError(f"priors is {self.priors!r}; pass 'empirical', 'uniform', or one weight per class")
        if self.variant not in ("mixture", "nearest"):
            raise InputError(f"variant is {self.variant!r}; pass 'mixture' or 'nearest'")

    def _collect(self, batches: Batches, classes: ArrayLike | None) -> ClassStatistics:
        return collect_classes(batches, classes=classes, prepare=unit_length if self.normalize else None)

    def _learn(self, batches: Batches, *, n_features: int, classes: NDArray[Any] | None) -> None:
        statistics = self._collect(batches, classes)
        if self.covariance == "ledoit-wolf":
            statistics = add_fourth_moments(statistics, batches, prepare=unit_length if self.normalize else None)
        self._statistics, self._gaussians = statistics, None
        self._gaussians = self.gaussians_

    def partial_fit(self, X: ArrayLike, y: ArrayLike | None = None, *, classes: ArrayLike | None = None) -> Self:
        """Add a batch of rows to what was learned; the threshold, if any, is forgotten.

        Whether every class has rows enough is looked at when the first score is asked for.

        Args:
            X: Rows of features.
            y: Their labels; None in every batch for one Gaussian.
            classes: All class names, in the first call; without it, the classes are those of the first batch.
        """
        self._check_options()
        self._refuse_two_passes()
        features, before = as_features(X), self._statistics
        if before is None and classes is None and y is not None:
            classes = distinct_labels(y, len(features))
        if before is not None:
            if classes is not None and not np.array_equal(np.unique(np.asarray(classes)), before.classes):
                raise InputError(
                    f"classes differs from the {len(before.parts)} classes that this fit began with; "
                    f"declare all of them in the first call of partial_fit"
                )
            classes = before.classes if before.is_labelled else None
        with self._all_or_nothing():
            if before is not None:
                self._check_width(features, before.n_features)
            validate_data(self, X, reset=before is None, skip_check_array=True)
            batch = self._collect([(features, y)], classes)
            self._statistics = batch if before is None else merge_classes(before, batch)
            self._gaussians, self.n_features_in_ = None, features.shape[1]
            self._forget_calibration()
        return self

    def merge(self, other: Self) -> Self:
        """Return a new, uncalibrated detector fitted to the rows of both; neither of the two changes."""
        joined = self._merged(other)
        self._refuse_two_passes()
        joined._statistics = merge_classes(self.statistics_, other.statistics_)
        return joined

    def _refuse_two_passes(self) -> None:
        if self.covariance == "ledoit-wolf":
            raise InputError(
                "covariance='ledoit-wolf' needs two passes over all rows, so it cannot stream or merge; use fit or "
                "fit_batches, or covariance='oas', which can"
            )

    def _slack(self, scores: NDArray[np.float64], counts: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        return ROUNDING * np.maximum(np.abs(scores), float(self.n_features_in_))

    def _class_names(self, n_features: int) -> NDArray[Any]:
        return self.gaussians_.classes

    def _scores(self, features: NDArray[Any], nearest: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        gaussians, scores = self.gaussians_, np.empty(len(features))
        with np.errstate(divide="ignore"):
            log_priors = np.log(gaussians.priors)
        for rows in chunks(len(features), rows_per_chunk(features.shape[1] + gaussians.n_classes)):
            refuse_non_finite(features[rows], first_row=rows.start)
            densities = gaussians.log_densities(unit_length(features[rows]) if self.normalize else features[rows])
            if nearest is not None:
                np.argmax(densities, axis=1, out=nearest[rows])
            if self.variant == "nearest":
                np.max(densities, axis=1, out=scores[rows])
            else:
                densities += log_priors
                np.logaddexp.reduce(densities, axis=1, out=scores[rows])
        return scores

    def _details(self, features: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        prepared = unit_length(features) if self.normalize else features
        return self.gaussians_.posterior(prepared), np.sqrt(self.gaussians_.squared_distances(prepared))

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        parts, gaussians = self.statistics_.parts, self.gaussians_
        tensors: dict[str, NDArray[Any]] = {
            "statistics.counts": self.statistics_.counts,
            "statistics.means": np.concatenate([part.means for part in parts]),
            "statistics.scatters": np.stack([part.scatter for part in parts]),
            "statistics.resolutions": np.array([part.resolution for part in parts]),
            "gaussians.priors": gaussians.priors,
            "gaussians.whiteners": np.stack([factor.whitener for factor in gaussians.factors]),
            "gaussians.log_determinants": np.array([factor.log_determinant for factor in gaussians.factors]),
            "gaussians.shrinkages": gaussians.shrinkages,
        }
        values = {
            "classes": self.classes_.tolist(),
            "is_labelled": self.statistics_.is_labelled,
            "fourth_moments": [part.fourth_moment for part in parts],
        }
        return tensors, values

    def _restore(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        classes = class_names(values["classes"], is_sorted=True)
        means = take(tensors, "statistics.means", (len(classes), None))
        dimension = means.shape[1]
        counts = take_counts(tensors, "statistics.counts", len(classes), kind="i")
        scatters = take(tensors, "statistics.scatters", (len(classes), dimension, dimension))
        resolutions = take(tensors, "statistics.resolutions", (len(classes),))
        moments = values["fourth_moments"]
        refuse_damaged(len(moments) != len(classes), "fourth_moments", "is not one per class")
        refuse_damaged((scatters.diagonal(axis1=1, axis2=2) < 0.0).any(), "statistics.scatters", "has negative squares")
        is_labelled = claim(values["is_labelled"], "is_labelled")
        self._statistics = ClassStatistics(
            tuple(
                Statistics(
                    classes=classes[at : at + 1],
                    counts=counts[at : at + 1],
                    means=means[at : at + 1],
                    scatter=scatters[at],
                    resolution=number(float(resolutions[at]), "statistics.resolutions", least=0.0, most=1.0),
                    fourth_moment=None if moments[at] is None else number(moments[at], "fourth_moments", least=0.0),
                    is_labelled=is_labelled,
                )
                for at in range(len(classes))
            )
        )
        present = counts > 0
        n_present = int(present.sum())
        whiteners = take_whitener(tensors, "gaussians.whiteners", (n_present, dimension, None))
        log_determinants = take(tensors, "gaussians.log_determinants", (n_present,))
        _refuse_other_determinants(whiteners, log_determinants)
        shrinkages = take(tensors, "gaussians.shrinkages", (n_present,))
        refuse_damaged(((shrinkages < 0.0) | (shrinkages > 1.0)).any(), "gaussians.shrinkages", "holds no shares")
        self._gaussians = SeparateGaussians(
            classes=classes[present],
            class_means=means[present],
            priors=take_priors(tensors, "gaussians.priors", n_present),
            factors=tuple(Factor(*pair) for pair in zip(whiteners, log_determinants.tolist(), strict=True)),
            shrinkages=shrinkages,
        )
        self.n_features_in_ = dimension


def _refuse_other_determinants(whiteners: NDArray[np.float64], log_determinants: NDArray[np.float64]) -> None:
    """Raise if a log-determinant is not that of the covariance that its whitener belongs to, where all have full rank.

    On fewer directions the whitener alone does not tell.
    """
    dimension, rank = whiteners.shape[1:]
    if rank < dimension:
        return
    for whitener, log_determinant in zip(whiteners, log_determinants, strict=True):
        off = abs(log_determinant + 2.0 * np.linalg.slogdet(whitener)[1])
        is_off = not off <= DETERMINANT_ROUNDING * max(abs(log_determinant), dimension)
        refuse_damaged(is_off, "gaussians.log_determinants", "does not fit the whiteners")
