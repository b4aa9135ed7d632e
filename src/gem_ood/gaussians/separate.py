"""SeparateGaussians: k Gaussians that each have a covariance of their own.

The log-determinants of the classes differ and enter every density, so each class must have full rank.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cholesky, solve_triangular

from gem_ood.errors import InputError, RankWarning
from gem_ood.features import as_features
from gem_ood.gaussians.class_statistics import ClassStatistics
from gem_ood.gaussians.covariance import CovariancePolicy, Factor, factorize, tied_covariance
from gem_ood.gaussians.distances import distances
from gem_ood.gaussians.kernel import Kernel
from gem_ood.gaussians.statistics import Statistics
from gem_ood.gaussians.tied import LOG_TWO_PI, Priors, normalized, resolve_priors

__all__ = ["ClassCovariance", "SeparateGaussians"]

#: The policies of a tied covariance, each for every class by itself, and shrinkage of the classes to their tied one.
ClassCovariance = CovariancePolicy | Literal["pooled"]


@dataclass(frozen=True, eq=False)
class SeparateGaussians:
    """Class means, priors and the factor of each class's own covariance; all arrays are read-only.

    Attributes:
        classes: Names of the classes, one per mean.
        class_means: k × m.
        priors: Mixture weights, summing to one.
        factors: The whitener and log-determinant of each class's covariance, all of one rank.
        shrinkages: The share of each covariance that is shrinkage.

    >>> from gem_ood.gaussians import collect_classes
    >>> batches = [([[-1.0], [1.0], [6.0], [14.0]], ["a", "a", "b", "b"])]
    >>> SeparateGaussians.from_statistics(collect_classes(batches)).squared_distances([[2.0]])
    array([[4., 4.]])
    """

    classes: NDArray[Any]
    class_means: NDArray[np.float64]
    priors: NDArray[np.float64]
    factors: tuple[Factor, ...]
    shrinkages: NDArray[np.float64]

    def __post_init__(self) -> None:
        for array in (self.class_means, self.priors, self.shrinkages, *(factor.whitener for factor in self.factors)):
            array.flags.writeable = False

    @classmethod
    def from_statistics(
        cls, statistics: ClassStatistics, *, covariance: ClassCovariance = "empirical", priors: Priors = "uniform"
    ) -> "SeparateGaussians":
        """Return the Gaussians fitted to these statistics; a class without rows is left out.

        Args:
            statistics: What one pass over the rows left of each class.
            covariance: `"empirical"` (divisor: the rows of the class), `"oas"`, `"ledoit-wolf"`, or a shrinkage share
                in [0, 1], of each class by itself; or `"pooled"`: with S_k the scatter and n_k the rows of a class,
                (S_k + ν Σ) / (n_k + ν) for the tied covariance Σ of rank r: as if each class had ν = r + 2 rows more,
                of the tied covariance. It needs no class to have many rows or full rank.
            priors: `"uniform"`, `"empirical"` (class frequencies), or one weight per declared class.

        Raises:
            InputError: The covariance of a class lacks rank. On fewer directions its density would be one per length,
                area or volume of another dimension, which cannot be compared with those of the other classes.
        """
        if statistics.n_rows == 0:
            raise InputError("the fit has no rows; pass at least two")
        weights = resolve_priors(priors, statistics.tied())
        present = [part for part in statistics.parts if part.n_rows > 0]
        if covariance == "pooled":
            fitted = _pooled_factors(present, statistics.tied())
        else:
            fitted = [_factor(part, covariance) for part in present]
        return cls(
            classes=np.concatenate([part.classes for part in present]),
            class_means=np.concatenate([part.means for part in present]),
            priors=weights,
            factors=tuple(factor for factor, _ in fitted),
            shrinkages=np.array([share for _, share in fitted]),
        )

    @property
    def n_classes(self) -> int:
        """How many Gaussians there are."""
        return len(self.class_means)

    @property
    def n_features(self) -> int:
        """How many features a row has."""
        return int(self.class_means.shape[1])

    @cached_property
    def log_normalizers(self) -> NDArray[np.float64]:
        """Log sqrt((2π)^m |Σ_k|) of each class."""
        log_determinants = np.array([factor.log_determinant for factor in self.factors])
        return 0.5 * (self.factors[0].rank * LOG_TWO_PI + log_determinants)

    @cached_property
    def _kernels(self) -> tuple[Kernel, ...]:
        # With the class mean itself as the centre, the only whitened mean is zero.
        origin, wide = np.zeros((1, self.factors[0].rank)), np.dtype(np.float64)
        pairs = zip(self.class_means, self.factors, strict=True)
        return tuple(Kernel.of(mean, factor.whitener, origin, wide) for mean, factor in pairs)

    def exponents(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return −½ d²(x, μ_k; Σ_k), n × k; −inf where a distance is beyond float64."""
        features = as_features(X, min_rows=0)
        if features.shape[1] != self.n_features:
            raise InputError(
                f"features has {features.shape[1]} columns but the fit has {self.n_features}; pass the same features"
            )
        stacked = np.empty((len(features), self.n_classes))
        if len(features) == 0:
            return stacked
        for code, kernel in enumerate(self._kernels):
            np.negative(distances(kernel, features, has_sums=False).halves, out=stacked[:, code])
        return stacked

    def squared_distances(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return squared Mahalanobis distances to each class mean under that class's covariance, n × k."""
        return -2.0 * self.exponents(X)

    def log_densities(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the log-density of each row under each class, n × k."""
        densities = self.exponents(X)
        densities -= self.log_normalizers
        return densities

    def log_density(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the log-density of each row under the mixture, log Σ_k π_k N(x; μ_k, Σ_k)."""
        return np.asarray(np.logaddexp.reduce(self._joint(X), axis=1))

    def posterior(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the Bayes posterior p(class | x), n × k: quadratic discriminant analysis.

        A row infinitely far from every class tells nothing, and has the priors.

        >>> from gem_ood.gaussians import collect_classes
        >>> batches = [([[-1.0], [1.0], [9.0], [11.0]], ["a", "a", "b", "b"])]
        >>> SeparateGaussians.from_statistics(collect_classes(batches)).posterior([[5.0]])
        array([[0.5, 0.5]])
        """
        return normalized(self._joint(X), self.priors)

    def _joint(self, X: ArrayLike) -> NDArray[np.float64]:
        joint = self.log_densities(X)
        with np.errstate(divide="ignore"):
            joint += np.log(self.priors)
        return joint


def _factor(part: Statistics, policy: CovariancePolicy) -> tuple[Factor, float]:
    """Return the factor of a class's covariance and its share of shrinkage; a class without full rank is refused."""
    name, n_rows = part.classes[0].item(), part.n_rows
    matrix, share = tied_covariance(part, policy)
    if not np.diag(matrix).any():
        raise InputError(
            f"class {name!r} has no spread (rows: {n_rows}), so it has no covariance of its own; pass more rows of it, "
            f"or use a tied covariance, as GEM does"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)  # it is an error here
        factor = factorize(matrix, magnitudes=np.abs(part.means[0]), resolution=part.resolution, n_rows=n_rows)
    if factor.rank < part.n_features:
        raise InputError(
            f"the covariance of class {name!r} has rank {factor.rank} of {part.n_features} dimensions "
            f"(rows: {n_rows}); its density cannot be compared with those of other classes. Pass covariance='oas' or a "
            f"shrinkage share such as 0.1, more rows of that class, or fewer features"
        )
    return factor, share


def _pooled_factors(parts: Sequence[Statistics], tied: Statistics) -> list[tuple[Factor, float]]:
    """Return the factors of covariances shrunk to the tied one, all on the directions that this has.

    Where the tied covariance is white, a class has (S_k + ν I) / (n_k + ν), which is never singular.
    """
    matrix, _ = tied_covariance(tied)
    common = factorize(
        matrix, magnitudes=np.abs(tied.means).max(axis=0), resolution=tied.resolution, n_rows=tied.n_rows
    )
    weight = common.rank + 2
    factors = []
    for part in parts:
        white = common.whitener.T @ part.scatter @ common.whitener
        white.flat[:: common.rank + 1] += weight
        white /= part.n_rows + weight
        lower = cholesky(white, lower=True)
        whitener = solve_triangular(lower, common.whitener.T, lower=True).T
        log_determinant = common.log_determinant + 2.0 * float(np.log(np.diag(lower)).sum())
        factors.append((Factor(np.ascontiguousarray(whitener), log_determinant), weight / (part.n_rows + weight)))
    return factors
