"""Expectations of the rescaled score ES(x) = Σ w_i exp(−½ d²(x, μ_i)) in closed form, in logs.

The score of a row in 512 dimensions is about exp(−256); nothing here leaves the logarithm before the end.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from gem_ood.errors import InputError
from gem_ood.gaussians import TiedGaussians
from gem_ood.theory.whitened import Whitened, as_numbers, whiten

__all__ = ["log_expected_rescaled", "log_expected_terms", "log_overlap"]

LOG_TWO = float(np.log(2.0))

#: The square of a longer distance overflows.
LARGEST_DISTANCE = 1e150


def log_overlap(distance: ArrayLike, dimension: int) -> NDArray[np.float64]:
    """Return log A_γ (P30): A_γ = E exp(−½‖x − ν‖²) = 2^(−d/2) exp(−γ²/4) for x ~ N(μ, I) and γ = ‖μ − ν‖.

    Where the classes have standard deviation σ, the distance is γ/σ (E11).

    >>> log_overlap([0.0, 2.0], 2)
    array([-0.69314718, -1.69314718])
    """
    gamma = as_numbers(distance, "distance")
    is_dimension = isinstance(dimension, int | np.integer) and dimension >= 1
    if not ((gamma >= 0.0) & (gamma < LARGEST_DISTANCE)).all() or not is_dimension:
        raise InputError(
            f"distance must be finite and at least 0 and dimension a whole number of at least 1, but they are "
            f"{distance!r} and {dimension!r}; pass the distance between two means and the number of dimensions"
        )
    return np.asarray(-0.25 * gamma**2 - 0.5 * dimension * LOG_TWO)


def log_expected_terms(
    gaussians: TiedGaussians, mean: ArrayLike, covariance: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Return log E exp f_i(x) for each class, x ~ N(mean, covariance); None is the tied covariance (B1).

    E exp f_i = |I + Σ⁻¹S|^(−½) exp(−½ (m − μ_i)ᵀ(Σ + S)⁻¹(m − μ_i)).

    >>> gaussians = TiedGaussians.from_parameters([[0.0], [2.0]], [[1.0]])
    >>> np.exp(log_expected_terms(gaussians, [0.0], [[3.0]]))
    array([0.5       , 0.30326533])
    """
    problem = whiten(gaussians, mean, ood_covariance=covariance)
    return np.asarray(scaled_terms(problem) - 0.5 * problem.dimension * LOG_TWO)


def log_expected_rescaled(
    gaussians: TiedGaussians,
    mean: ArrayLike,
    covariance: ArrayLike | None = None,
    *,
    weights: ArrayLike | None = None,
) -> float:
    """Return log E ES(x) for x ~ N(mean, covariance): the sum over the classes of B1's terms, weighted if asked.

    >>> gaussians = TiedGaussians.from_parameters([[0.0], [2.0]], [[1.0]])
    >>> round(log_expected_rescaled(gaussians, [0.0], [[3.0]]), 6)
    -0.21907
    """
    problem = whiten(gaussians, mean, ood_covariance=covariance, weights=weights)
    return scaled_out(problem) - 0.5 * problem.dimension * LOG_TWO


def scaled_terms(problem: Whitened) -> NDArray[np.float64]:
    """Return d/2 log 2 + log E_out exp f_i for each class.

    The factor 2^(d/2) is common to all expectations (E6): left out, small differences survive large dimensions.
    """
    if problem.spread is None:
        return -0.25 * problem.squared_distances
    sums = 1.0 + problem.spread.eigenvalues
    volume = -0.5 * float(np.sum(np.log(0.5 * sums)))
    return np.asarray(volume - 0.5 * (problem.spread.squared_offsets @ (1.0 / sums)))


def scaled_out(problem: Whitened) -> float:
    """Return d/2 log 2 + log E_out ES."""
    return float(logsumexp(scaled_terms(problem), b=problem.weights))


def scaled_separation(problem: Whitened) -> tuple[int, float]:
    """Return the sign of D = E_in ES − E_out ES and d/2 log 2 + log |D|.

    D is summed from the differences, class by class, between a term inside and the same term outside: where all means
    are close together, these are far smaller than the terms.
    """
    inside, outside = -0.25 * problem.between, scaled_terms(problem)
    gaps = inside - outside  # of the term of class i (columns) between rows of class j and out-of-distribution ones
    with np.errstate(divide="ignore"):
        logs = np.maximum(inside, outside) + np.log(-np.expm1(-np.abs(gaps)))
    shares = np.sign(gaps) * problem.priors[:, np.newaxis] * problem.weights
    logarithm, sign = logsumexp(logs, b=shares, return_sign=True)
    return int(sign), float(logarithm)


def scaled_in(problem: Whitened) -> float:
    """Return d/2 log 2 + log E_in ES, the mean over classes by their priors."""
    shares = problem.priors[:, np.newaxis] * problem.weights
    return float(logsumexp(-0.25 * problem.between, b=shares))
