"""How far two Gaussians of one covariance are apart: KL divergence, total variation, and the bounds between them."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erf

from gem_ood.errors import InputError
from gem_ood.theory.whitened import Whitened, as_numbers, positive_definite

__all__ = ["half_distance", "kl_divergence", "pinsker", "pinsker_large", "total_variation"]


def half_distance(first_mean: ArrayLike, second_mean: ArrayLike, covariance: ArrayLike) -> float:
    """Return α = ½ d_M(μ_1, μ_2), half the Mahalanobis distance (P20), which the paper's bounds are written in.

    The paper's corollaries set α = d_M, and then the first of them is false (E1).

    >>> half_distance([0.0, 0.0], [6.0, 0.0], [[9.0, 0.0], [0.0, 1.0]])
    1.0
    """
    gaussians = positive_definite(np.stack(_pair(first_mean, second_mean)), covariance)
    difference = (gaussians.class_means[1] - gaussians.class_means[0]) @ gaussians.factor.whitener
    return 0.5 * float(np.linalg.norm(difference))


def kl_divergence(first_mean: ArrayLike, second_mean: ArrayLike, covariance: ArrayLike) -> float:
    """Return KL(N(μ_1, Σ) ‖ N(μ_2, Σ)) = ½ d_M²(μ_1, μ_2) = 2α² in nats (P28).

    >>> kl_divergence([0.0], [2.0], [[1.0]])
    2.0
    """
    return 2.0 * half_distance(first_mean, second_mean, covariance) ** 2


def total_variation(first_mean: ArrayLike, second_mean: ArrayLike, covariance: ArrayLike) -> float:
    """Return the total variation sup |P_1(A) − P_2(A)| (P27) of two Gaussians of one covariance: 2Φ(α) − 1 (B2).

    It is the largest |E_1 f − E_2 f| over f with values in [0, 1]; over the unit ball of L∞ it is twice that (E2).

    >>> round(total_variation([0.0], [2.0], [[1.0]]), 6)
    0.682689
    """
    return float(tied_total_variation(half_distance(first_mean, second_mean, covariance)))


def pinsker(kl: ArrayLike) -> NDArray[np.float64]:
    """Return Pinsker's bound √(KL/2) on the total variation, good where KL is small (P29).

    >>> pinsker([0.5, 8.0])
    array([0.5, 2. ])
    """
    return np.asarray(np.sqrt(0.5 * _divergence(kl)))


def pinsker_large(kl: ArrayLike) -> NDArray[np.float64]:
    """Return the bound 1 − ½ exp(−KL) on the total variation, good where KL is large (P29).

    >>> pinsker_large([0.0, 8.0])
    array([0.5       , 0.99983227])
    """
    return np.asarray(1.0 - 0.5 * np.exp(-_divergence(kl)))


def tied_total_variation(half_distances: ArrayLike) -> NDArray[np.float64]:
    """Return 2Φ(α) − 1, without cancellation where α is small."""
    return np.asarray(erf(np.asarray(half_distances) / np.sqrt(2.0)))


def class_divergences(problem: Whitened) -> NDArray[np.float64]:
    """Return KL(class i ‖ out-of-distribution) for each class; infinite where the latter has no width."""
    if problem.spread is None:
        return 0.5 * problem.squared_distances
    values = problem.spread.eigenvalues
    if (values == 0.0).any():
        return np.full(len(problem.offsets), np.inf)
    common = float(np.sum(1.0 / values - 1.0 + np.log(values)))
    return np.asarray(np.maximum(0.5 * (common + problem.spread.squared_offsets @ (1.0 / values)), 0.0))


def class_total_variations(problem: Whitened) -> NDArray[np.float64]:
    """Return the total variation between each class and the out-of-distribution, or a bound where S ≠ Σ.

    Without a closed form there, it is the least of √(1 − BC²), with BC the Bhattacharyya coefficient, and both
    Pinsker bounds.
    """
    if problem.spread is None:
        return tied_total_variation(0.5 * np.sqrt(problem.squared_distances))
    values, divergences = problem.spread.eigenvalues, class_divergences(problem)
    middles = 0.5 * (1.0 + values)
    with np.errstate(divide="ignore"):
        volume = 0.25 * np.sum(np.log(values)) - 0.5 * np.sum(np.log(middles))
    log_coefficients = volume - 0.125 * (problem.spread.squared_offsets @ (1.0 / middles))
    hellinger = np.sqrt(-np.expm1(np.minimum(2.0 * log_coefficients, 0.0)))
    return np.asarray(np.minimum(hellinger, np.minimum(pinsker(divergences), pinsker_large(divergences))))


def _pair(first: ArrayLike, second: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    one, other = (np.atleast_1d(as_numbers(mean, "a mean")) for mean in (first, second))
    if one.shape != other.shape or one.ndim != 1:
        raise InputError(f"the means have shapes {one.shape} and {other.shape}; pass two vectors of one length")
    return one, other


def _divergence(kl: ArrayLike) -> NDArray[np.float64]:
    values = as_numbers(kl, "kl")
    if not (values >= 0.0).all():
        raise InputError(f"kl is {kl!r}; a divergence is at least 0")
    return values
