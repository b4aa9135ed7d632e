"""The problem that the theory is about, in coordinates where it is simplest.

Classes N(μ_i, Σ) with priors stand against one out-of-distribution Gaussian N(m, S). Whitened by Σ and seen from m,
the classes are N(δ_i, I) and the other is N(0, T) with T = Wᵀ S W: only the offsets δ_i and, where S differs from Σ,
the eigenvalues of T matter.
"""

import warnings
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from scipy.spatial.distance import pdist, squareform

from gem_ood.errors import InputError, RankWarning
from gem_ood.features import as_features, refuse_non_finite
from gem_ood.gaussians import TiedGaussians
from gem_ood.gaussians.covariance import MOST_NEGATIVE_EIGENVALUE, is_diagonal

__all__ = ["Spread", "Whitened", "as_numbers", "positive_definite", "whiten"]

#: How many of the widest directions of an out-of-distribution covariance are kept.
WIDEST_DIRECTIONS = 64

#: Third powers of a wider spread would overflow, and no two covariances of real rows differ by so much.
LARGEST_SPREAD = 1e60

#: Weights of the score add up to less than this, so that no product of them overflows.
LARGEST_SUM = 1e100


@dataclass(frozen=True, eq=False)
class Spread:
    """The whitened covariance T of the out-of-distribution Gaussian where it is not the classes' own.

    Attributes:
        covariance: T, d × d.
        eigenvalues: Of T, at least 0, and 0 where no more than rounding.
        widest: Its eigenvectors of largest eigenvalue, d × 64, or all of them.
        squared_offsets: Squares of the offsets δ_i along the eigenvectors of T, k × d.
    """

    covariance: NDArray[np.float64]
    eigenvalues: NDArray[np.float64]
    widest: NDArray[np.float64]
    squared_offsets: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Whitened:
    """Classes N(δ_i, I) with priors, the weights of the score, and N(0, T) against them.

    Attributes:
        offsets: The class means δ_i seen from the out-of-distribution mean, k × d.
        between: Squared distances between the class means, k × k.
        priors: How frequent the classes are, summing to one.
        weights: By how much the score Σ w_i exp f_i counts each class; all 1 is the paper's own.
        spread: None where T = I, as in the paper.
    """

    offsets: NDArray[np.float64]
    between: NDArray[np.float64]
    priors: NDArray[np.float64]
    weights: NDArray[np.float64]
    spread: Spread | None

    @property
    def dimension(self) -> int:
        """The number of directions that have variance."""
        return int(self.offsets.shape[1])

    @cached_property
    def squared_distances(self) -> NDArray[np.float64]:
        """Squared Mahalanobis distances of the class means from the out-of-distribution mean."""
        return np.asarray(np.vecdot(self.offsets, self.offsets))

    @cached_property
    def log_weights(self) -> NDArray[np.float64]:
        """Logarithms of the score's weights; log 0 is -inf."""
        with np.errstate(divide="ignore"):
            return np.log(self.weights)


def positive_definite(
    class_means: ArrayLike, covariance: ArrayLike, *, priors: ArrayLike | None = None
) -> TiedGaussians:
    """Return Gaussians with these parameters, refusing a covariance without full rank."""
    if isinstance(priors, str):
        raise InputError(f"priors is {priors!r}; pass one weight per class that sum to 1, or None for equal ones")
    if not np.any(as_numbers(covariance, "covariance")):
        raise InputError("covariance is not positive definite: it is zero; pass the covariance within the classes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)
        gaussians = TiedGaussians.from_parameters(class_means, covariance, priors=priors)
    if gaussians.rank < gaussians.n_features:
        raise InputError(
            f"covariance is not positive definite: its rank is {gaussians.rank} but it has {gaussians.n_features} "
            f"dimensions; leave out directions without variance, or add a small multiple of the identity"
        )
    return gaussians


def whiten(
    gaussians: TiedGaussians,
    ood_mean: ArrayLike,
    *,
    ood_covariance: ArrayLike | None = None,
    weights: ArrayLike | None = None,
) -> Whitened:
    """Return the problem in whitened coordinates, checked; weights None is all ones."""
    d, whitener = gaussians.n_features, gaussians.factor.whitener
    mean = np.asarray(as_features(np.atleast_2d(as_numbers(ood_mean, "ood_mean")), name="ood_mean"), dtype=np.float64)
    if mean.shape != (1, d):
        raise InputError(f"ood_mean has shape {np.shape(ood_mean)} but the classes have {d} dimensions; pass one mean")
    refuse_non_finite(mean, name="ood_mean", remedy="mend it")
    offsets = (gaussians.class_means - mean) @ whitener
    # by differences: expanded squares would lose classes that are close together beside one that is far
    between = squareform(pdist(gaussians.whitened_means, "sqeuclidean"))
    spread = None if ood_covariance is None else _spread(_checked_covariance(ood_covariance, d), whitener, offsets)
    return Whitened(offsets, between, gaussians.priors, _checked_weights(weights, len(offsets)), spread)


def _spread(matrix: NDArray[np.float64], whitener: NDArray[np.float64], offsets: NDArray[np.float64]) -> Spread:
    covariance = _whitened_covariance(matrix, whitener)
    if is_diagonal(covariance):
        eigenvalues, vectors, rotated = np.diag(covariance).copy(), np.eye(len(covariance)), offsets
    else:
        eigenvalues, vectors = eigh(covariance, check_finite=False)
        rotated = offsets @ vectors
    # What the products may err by; more of it where Σ is ill-conditioned.
    rounding = 4.0 * np.finfo(np.float64).eps * float(np.linalg.norm(whitener) ** 2 * np.linalg.norm(matrix))
    largest = float(eigenvalues.max())
    if eigenvalues.min() < -max(rounding, MOST_NEGATIVE_EIGENVALUE * largest) or largest <= 0.0:
        raise InputError(
            "ood_covariance is not positive semi-definite, or is zero; pass the covariance of the out-of-distribution "
            "rows, or leave it out to take the classes' own"
        )
    eigenvalues = np.where(eigenvalues > rounding, eigenvalues, 0.0)
    widest = vectors[:, np.argsort(-eigenvalues, kind="stable")[:WIDEST_DIRECTIONS]]
    return Spread(covariance, eigenvalues, widest, rotated**2)


def _whitened_covariance(matrix: NDArray[np.float64], whitener: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(over="ignore", invalid="ignore"):
        if is_diagonal(whitener):
            covariance = np.diag(whitener)[:, np.newaxis] * matrix * np.diag(whitener)
        else:
            covariance = whitener.T @ matrix @ whitener
    if not (np.abs(covariance) < LARGEST_SPREAD).all():
        raise InputError(
            f"ood_covariance is more than {LARGEST_SPREAD:.0e} times as large as covariance in some direction; pass "
            f"both in the same units"
        )
    return np.asarray(0.5 * (covariance + covariance.T))


def _checked_covariance(ood_covariance: ArrayLike, d: int) -> NDArray[np.float64]:
    matrix = np.asarray(as_features(ood_covariance, name="ood_covariance"), dtype=np.float64)
    if matrix.shape != (d, d):
        raise InputError(
            f"ood_covariance has shape {matrix.shape} but the classes have {d} dimensions; pass a {d} × {d} matrix"
        )
    refuse_non_finite(matrix, name="ood_covariance", remedy="mend it")
    if not np.allclose(matrix, matrix.T, rtol=1e-9, atol=1e-12 * float(np.abs(matrix).max())):
        raise InputError("ood_covariance is not symmetric; pass a covariance matrix")
    return matrix


def _checked_weights(weights: ArrayLike | None, n_classes: int) -> NDArray[np.float64]:
    if weights is None:
        return np.ones(n_classes)
    values = as_numbers(weights, "weights")
    is_usable = (values >= 0.0).all() and values.any() and bool(values.sum() < LARGEST_SUM)
    if values.shape != (n_classes,) or not is_usable:
        raise InputError(
            f"weights must be {n_classes} finite numbers of at least 0, not all 0, but is {weights!r}; pass one "
            f"per class"
        )
    return values


def as_numbers(values: ArrayLike, name: str) -> NDArray[np.float64]:
    """Return an array of real numbers.

    >>> as_numbers([1, 2], "weights")
    array([1., 2.])
    """
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} cannot be read as numbers: {error}; pass an array of numbers") from error
