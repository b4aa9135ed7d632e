"""TiedGaussians: k Gaussians that share one covariance, fitted and ready to use.

Every distance comes from one whitening product and one n × k product (B7): with z = (x − c) W and ν_i = (μ_i − c) W,
the logits z·ν_i − ½‖ν_i‖² are −½ d²(x, μ_i) up to what all classes share, which the distance to the best class gives
(`kernel`). The common centre c is subtracted first, so no offset is ever squared.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gem_ood.errors import InputError
from gem_ood.features import as_features, chunks, refuse_non_finite, rows_per_chunk
from gem_ood.gaussians.covariance import CovariancePolicy, Factor, factorize, tied_covariance
from gem_ood.gaussians.distances import Distances, distances
from gem_ood.gaussians.kernel import Consumer, Floats, Kernel, Terms
from gem_ood.gaussians.statistics import Statistics

__all__ = ["Priors", "TiedGaussians"]

Priors = str | ArrayLike

#: Scores are predicted to keep this accuracy in float32, or float64 is used instead. What is promised is 1e-6 for rows
#: that spread as those of the fit do; far out in a direction of large variance, an error can be some three times that.
FLOAT32_ERROR_LIMIT = 1.2e-6

#: Weights given in float32 sum to one no better than this.
PRIORS_TOLERANCE = 1e-6

#: In fewer dimensions a distance can be so near to zero that no relative accuracy is left in float32.
SMALLEST_FLOAT32_RANK = 32

#: Parameters within these bounds keep clear of float32's own, about 1e-38 and 1e38, in every product.
FLOAT32_RANGE = (1e-15, 1e15)

LOG_TWO_PI = float(np.log(2.0 * np.pi))


@dataclass(frozen=True, eq=False)
class TiedGaussians:
    """Class means, priors and one tied covariance with its factor; all arrays are read-only.

    Attributes:
        classes: Names of the classes, one per mean.
        class_means: k × m.
        priors: Mixture weights, summing to one.
        covariance: m × m, as estimated or given.
        factor: The whitener and log-determinant of the covariance.
        shrinkage: The share of the covariance that is shrinkage.

    >>> gaussians = TiedGaussians.from_parameters([[0.0, 0.0], [4.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]])
    >>> gaussians.squared_distances([[1.0, 0.0]])
    array([[1., 9.]])
    """

    classes: NDArray[Any]
    class_means: NDArray[np.float64]
    priors: NDArray[np.float64]
    covariance: NDArray[np.float64]
    factor: Factor
    shrinkage: float = 0.0

    def __post_init__(self) -> None:
        for array in (self.class_means, self.priors, self.covariance, self.factor.whitener):
            array.flags.writeable = False

    @classmethod
    def from_statistics(
        cls, statistics: Statistics, *, covariance: CovariancePolicy = "empirical", priors: Priors = "uniform"
    ) -> "TiedGaussians":
        """Return the Gaussians fitted to these statistics; a class without rows is left out.

        Args:
            statistics: What one pass over the rows left.
            covariance: `"empirical"` (divisor N), `"oas"`, `"ledoit-wolf"`, or a shrinkage share in [0, 1].
            priors: `"uniform"`, `"empirical"` (class frequencies), or one weight per declared class.
        """
        present = statistics.counts > 0
        if not present.any():
            raise InputError("the fit has no rows; pass at least two")
        matrix, share = tied_covariance(statistics, covariance)
        means = statistics.means[present]
        factor = factorize(
            matrix,
            magnitudes=np.maximum(means.max(axis=0), -means.min(axis=0)),
            resolution=statistics.resolution,
            n_rows=statistics.n_rows,
        )
        weights = resolve_priors(priors, statistics)
        return cls(statistics.classes[present], means, weights, matrix, factor, share)

    @classmethod
    def from_parameters(
        cls,
        class_means: ArrayLike,
        covariance: ArrayLike,
        *,
        priors: ArrayLike | None = None,
        classes: ArrayLike | None = None,
    ) -> "TiedGaussians":
        """Return Gaussians with known parameters; classes are numbered from 0 unless named."""
        means = np.array(as_features(class_means, name="class_means"), dtype=np.float64)
        matrix = np.array(as_features(covariance, name="covariance"), dtype=np.float64)
        refuse_non_finite(means, name="class_means", remedy="mend it")
        refuse_non_finite(matrix, name="covariance", remedy="mend it")
        n_classes, dimension = means.shape
        if matrix.shape != (dimension, dimension):
            raise InputError(
                f"covariance has shape {matrix.shape} but class_means has {dimension} features; "
                f"pass a {dimension} × {dimension} matrix"
            )
        _refuse_asymmetric(matrix)
        names = np.arange(n_classes) if classes is None else np.asarray(classes)
        if len(names) != n_classes:
            raise InputError(
                f"classes has {len(names)} names but class_means has {n_classes} rows; name each mean once"
            )
        weights = np.full(n_classes, 1.0 / n_classes) if priors is None else _checked_priors(priors, n_classes)
        return cls(names, means, weights, matrix, factorize(matrix))

    @property
    def n_classes(self) -> int:
        """How many Gaussians there are."""
        return len(self.class_means)

    @property
    def n_features(self) -> int:
        """How many features a row has."""
        return int(self.class_means.shape[1])

    @property
    def rank(self) -> int:
        """How many directions have variance; distances use these."""
        return self.factor.rank

    @property
    def log_determinant(self) -> float:
        """Log-determinant of the covariance, on the directions that have variance."""
        return self.factor.log_determinant

    @cached_property
    def condition_number(self) -> float:
        """Ratio of the extreme eigenvalues of the correlation matrix, on the directions that have variance."""
        scales = np.sqrt(np.diag(self.covariance))
        varying = self.factor.whitener.any(axis=1)
        correlation = self.covariance[np.ix_(varying, varying)] / np.outer(scales[varying], scales[varying])
        eigenvalues = np.linalg.eigvalsh(correlation)[-self.rank :]
        return float(eigenvalues[-1] / eigenvalues[0])

    @property
    def log_normalizer(self) -> float:
        """Log β, with β = sqrt((2π)^d |Σ|)."""
        return 0.5 * (self.rank * LOG_TWO_PI + self.log_determinant)

    @cached_property
    def centre(self) -> NDArray[np.float64]:
        """A common point near all means, representable in float32 so that subtracting it there is exact."""
        middle = self.class_means.mean(axis=0)
        with np.errstate(over="ignore"):
            rounded = middle.astype(np.float32).astype(np.float64)
        return np.asarray(np.where(np.isfinite(rounded), rounded, middle))

    @cached_property
    def whitened_means(self) -> NDArray[np.float64]:
        """Class means after centring and whitening, k × rank."""
        with np.errstate(over="ignore", invalid="ignore"):
            whitened = (self.class_means - self.centre) @ self.factor.whitener
            is_too_far = not np.isfinite(np.sum(whitened**2))
        if is_too_far:
            raise InputError("class means are so far apart that their squared distances overflow float64; rescale them")
        return np.asarray(whitened)

    @cached_property
    def float32_error(self) -> float:
        """Predicted largest error of float32 scores, relative to the score or, where that is more, to the rank.

        It is that of rows which spread as those of the fit do, or up to twice as far.

        Rounding enters in the whitening product, amplified by W in units of the features' spread about the centre: in
        all directions together, for the class that lies farthest out, and once more in the worst, as errors in a single
        direction do not average out. For rows between two classes it enters in the logits that weigh these against
        each other, whose size grows with the distance of the classes from the centre. The weights 4, 2, 2 and 20 are an
        empirical fit, above what a grid of spectra, dimensions, numbers of classes and their distances showed: no
        proof, but tested.
        """
        largest = float(np.abs(self.factor.whitener).max())
        if not FLOAT32_RANGE[0] < largest < FLOAT32_RANGE[1]:
            return np.inf
        squares = self.factor.whitener**2
        spreads = np.diag(self.covariance) + (self.class_means - self.centre) ** 2
        together = np.max(spreads @ squares.sum(axis=1))
        worst = np.max(spreads.mean(axis=0) @ squares)
        amplification = (4.0 * np.sqrt(together) + 2.0 * np.sqrt(worst)) / np.sqrt(self.rank)
        epsilon = float(np.finfo(np.float32).eps) / 2.0
        return epsilon * float(amplification + 2.0 + 20.0 * self._confusion())

    def _confusion(self) -> float:
        """Return how large the logits of a class are beside the distances of rows between it and its neighbour."""
        sizes = np.sum(self.whitened_means**2, axis=1)
        if self.n_classes == 1:
            return 0.0
        if float(sizes.max()) <= self.rank:  # whatever the neighbours
            return float(sizes.max()) / self.rank
        nearest = np.empty(self.n_classes)
        for rows in chunks(self.n_classes, rows_per_chunk(self.n_classes)):
            squares = sizes[rows, np.newaxis] + sizes - 2.0 * (self.whitened_means[rows] @ self.whitened_means.T)
            np.fill_diagonal(squares[:, rows], np.inf)
            squares.min(axis=1, out=nearest[rows])
        return float(np.max(sizes / (self.rank + np.maximum(nearest, 0.0))))

    def working_dtype(self, dtype: DTypeLike) -> np.dtype[Any]:
        """Return the precision in which rows of this type are scored."""
        narrow = np.dtype(dtype) in (np.float16, np.float32) and self.rank >= SMALLEST_FLOAT32_RANK
        return np.dtype(np.float32 if narrow and self.float32_error <= FLOAT32_ERROR_LIMIT else np.float64)

    @cached_property
    def _kernels(self) -> dict[np.dtype[Any], Kernel]:
        return {}

    def kernel(self, dtype: DTypeLike) -> Kernel:
        """Return the arithmetic for rows of this type, made once per precision."""
        given = np.dtype(dtype)
        if given not in self._kernels:
            working = self.working_dtype(given)
            same = (kernel for kernel in list(self._kernels.values()) if kernel.centre.dtype == working)
            self._kernels[given] = next(same, None) or Kernel.of(
                self.centre, self.factor.whitener, self.whitened_means, working
            )
        return self._kernels[given]

    def linear_terms(self, X: ArrayLike, consume: Consumer) -> None:
        """Hand `consume`, chunk by chunk, which rows and their terms: logits ℓ, the best class, and ½d² to it.

        The exponents of the paper are f_i = ℓ_i − ℓ_best − ½d². The logits are a working buffer to overwrite.
        Chunks of a long input come from several threads in any order: write to the slice of rows that is handed over,
        and copy what is to be kept, as the buffer serves other calls afterwards.
        """
        features = as_features(X)
        self.check_width(features)
        self.kernel(features.dtype).run(features, consume)

    def distances(
        self, features: NDArray[Any], *, log_weights: NDArray[np.float64] | None = None, has_sums: bool = True
    ) -> Distances:
        """Return the distance of each row to its nearest class and, if asked for, what the other classes add."""
        self.check_width(features)
        return distances(self.kernel(features.dtype), features, log_weights=log_weights, has_sums=has_sums)

    def terms_of_row(self, features: NDArray[Any]) -> tuple[Floats, int, float]:
        """Return the logits, the best class and ½d² to it of a single row: what `linear_terms` hands over, sooner."""
        self.check_width(features)
        return self.kernel(features.dtype).row(features)

    def check_width(self, features: NDArray[Any]) -> None:
        """Raise if rows have another number of features than the fit."""
        if features.shape[1] != self.n_features:
            raise InputError(
                f"features has {features.shape[1]} columns but the fit has {self.n_features}; pass the same features"
            )

    def exponents(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the paper's f_i(x) = −½ d²(x, μ_i), n × k."""
        features = as_features(X, min_rows=0)
        stacked = np.empty((len(features), self.n_classes))

        def keep(rows: slice, terms: Terms) -> None:
            np.subtract(terms.logits, terms.largest[:, np.newaxis], out=stacked[rows])
            stacked[rows] -= terms.half_distances[:, np.newaxis]

        if len(features):
            self.linear_terms(features, keep)
        return stacked

    def squared_distances(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return squared Mahalanobis distances (P20) to each class mean, n × k."""
        squares = self.exponents(X)
        squares *= -2.0
        return np.maximum(squares, 0.0, out=squares)

    def log_densities(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the log-density of each row under each class, n × k."""
        densities = self.exponents(X)
        densities -= self.log_normalizer
        return densities

    def log_density(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return log p_in(x) of the mixture (P1), normalised: it integrates to one.

        >>> gaussian = TiedGaussians.from_parameters([[0.0]], [[1.0]])
        >>> gaussian.log_density([[0.0]]) + 0.5 * np.log(2 * np.pi)
        array([0.])
        """
        joint = self.log_densities(X)
        with np.errstate(divide="ignore"):
            joint += np.log(self.priors)
        return np.asarray(np.logaddexp.reduce(joint, axis=1))

    def posterior(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the Bayes posterior p(class | x) (P2), n × k; the priors, where a row is infinitely far from all."""
        joint = self.exponents(X)
        with np.errstate(divide="ignore"):
            joint += np.log(self.priors)
        return normalized(joint, self.priors)

    def linear_head(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return weight (k × m) and bias (k,) of the logits f'_i(x) = μ_iᵀΣ⁻¹x − ½ μ_iᵀΣ⁻¹μ_i (P6)."""
        whitened = self.class_means @ self.factor.whitener
        return whitened @ self.factor.whitener.T, -0.5 * np.sum(whitened**2, axis=1)

    def sample(
        self, n: int, *, random_state: int | np.random.Generator | None = None
    ) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """Return n rows drawn from the mixture and their class names.

        >>> rows, names = TiedGaussians.from_parameters([[0.0], [9.0]], [[1.0]]).sample(5, random_state=0)
        >>> rows.shape, names.shape
        ((5, 1), (5,))
        """
        generator = np.random.default_rng(random_state)
        codes = generator.choice(self.n_classes, size=n, p=self.priors)
        colouring = self.factor.whitener.T @ self.covariance
        rows = generator.standard_normal((n, self.rank)) @ colouring
        rows += self.class_means[codes]
        return rows, self.classes[codes]


def normalized(joint: NDArray[np.float64], priors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shares of each row's classes from their logs up to a constant; the priors, where all are log 0."""
    largest = joint.max(axis=1, keepdims=True)
    is_near = np.isfinite(largest)
    shares = np.exp(joint - np.where(is_near, largest, 0.0))
    shares = np.where(is_near, shares, priors)
    shares /= shares.sum(axis=1, keepdims=True)
    return shares


def resolve_priors(priors: Priors, statistics: Statistics) -> NDArray[np.float64]:
    """Return the mixture weights of the classes that have rows."""
    present = statistics.counts > 0
    if isinstance(priors, str):
        if priors == "uniform":
            return np.full(int(present.sum()), 1.0 / present.sum())
        if priors == "empirical":
            return statistics.counts[present] / statistics.n_rows
        raise InputError(f"priors is {priors!r}; pass 'uniform', 'empirical', or one weight per class")
    weights = _checked_priors(priors, len(statistics.classes))[present]
    if weights.sum() <= 0.0:
        raise InputError("priors gives no weight to any class that has rows; give some class a positive weight")
    return np.asarray(weights / weights.sum())


def _checked_priors(priors: ArrayLike, n_classes: int) -> NDArray[np.float64]:
    try:
        weights = np.array(priors, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"priors is {priors!r}; pass 'uniform', 'empirical', or one weight per class") from error
    if weights.shape != (n_classes,):
        raise InputError(
            f"priors has shape {weights.shape} but there are {n_classes} classes; pass one weight per class"
        )
    if not np.isfinite(weights).all() or (weights < 0.0).any() or abs(weights.sum() - 1.0) > PRIORS_TOLERANCE:
        raise InputError(
            f"priors must be weights of at least 0 that sum to 1, but they sum to {weights.sum():.6g} and the smallest "
            f"is {weights.min():.6g}; divide counts by their sum"
        )
    return np.asarray(weights / weights.sum())


def _refuse_asymmetric(matrix: NDArray[np.float64]) -> None:
    scale = float(np.abs(matrix).max())
    if not np.allclose(matrix, matrix.T, rtol=1e-9, atol=1e-12 * scale):
        raise InputError("covariance is not symmetric; pass a covariance matrix")
