"""Scores of tied Gaussians: GEM and its weighted form, Mahalanobis, log ES and the linear-head energy.

The small functions take exponents f_i(x) = −½ d²(x, μ_i), n × k, as `TiedGaussians.exponents` returns them; the
`*_scores` functions take features of any length and hold one chunk at a time. Higher = more in-distribution.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import InputError
from gem_ood.features import as_features
from gem_ood.gaussians import TiedGaussians
from gem_ood.gaussians.log_sums import log_sum_above_place, log_sum_exp
from gem_ood.scores.logits import energy

__all__ = [
    "gem",
    "gem_scores",
    "linear_energy",
    "log_rescaled",
    "mahalanobis",
    "mahalanobis_scores",
    "weighted_gem",
]


def gem(exponents: ArrayLike) -> NDArray[np.float64]:
    """Return the GEM score log Σ_i exp f_i(x) (P7).

    It is the log-density of an equal-weight mixture plus the constant log kβ (E9).

    >>> gem([[-0.5, -0.5]])
    array([0.19314718])
    """
    return log_sum_exp(_exponents(exponents))


def weighted_gem(exponents: ArrayLike, weights: ArrayLike) -> NDArray[np.float64]:
    """Return log Σ_i w_i exp f_i(x) (P8).

    >>> weighted_gem([[0.0, -8.0]], [1.0, 0.0])
    array([0.])
    """
    values, shares = _exponents(exponents), np.asarray(weights, dtype=np.float64)
    if shares.shape != (values.shape[1],) or not (shares >= 0.0).all() or not shares.any():
        raise InputError(
            f"weights must be {values.shape[1]} numbers of at least 0, not all 0, but is {weights!r}; "
            f"pass one weight per class"
        )
    with np.errstate(divide="ignore"):
        return log_sum_exp(values + np.log(shares))


def mahalanobis(exponents: ArrayLike) -> NDArray[np.float64]:
    """Return the Mahalanobis score max_i −d²(x, μ_i) (P4): twice the largest exponent, without the ½ (E10).

    >>> mahalanobis([[-0.5, -4.5]])
    array([-1.])
    """
    return np.asarray(2.0 * _exponents(exponents).max(axis=1))


def log_rescaled(exponents: ArrayLike) -> NDArray[np.float64]:
    """Return log ES(x), the log of the rescaled score Σ_i exp f_i(x) (P9), which underflows unless kept in logs.

    As a log it is the GEM score itself; the paper's theory is about its exponential.

    >>> log_rescaled([[-3000.0]])
    array([-3000.])
    """
    return gem(exponents)


def gem_scores(
    gaussians: TiedGaussians,
    X: ArrayLike,
    *,
    log_weights: NDArray[np.float64] | None = None,
    nearest: NDArray[np.intp] | None = None,
) -> NDArray[np.float64]:
    """Return the GEM score of each row of features, weighted where log-weights are given (B7).

    An array passed as `nearest` is filled with the place of each row's nearest mean.

    >>> gaussians = TiedGaussians.from_parameters([[0.0], [4.0]], [[1.0]])
    >>> gem_scores(gaussians, [[0.0], [40.0]])
    array([ 3.35406373e-04, -6.48000000e+02])
    """
    features = as_features(X)
    if len(features) == 1:
        values, place, half_distance = gaussians.terms_of_row(features)
        if nearest is not None:
            nearest[0] = place
        return np.array([log_sum_above_place(values, place, log_weights) - half_distance])
    found = gaussians.distances(features, log_weights=log_weights)
    if nearest is not None:
        nearest[...] = found.best
    assert found.log_sums is not None  # it was asked for
    return np.subtract(found.log_sums, found.halves, dtype=np.float64)


def mahalanobis_scores(
    gaussians: TiedGaussians, X: ArrayLike, *, nearest: NDArray[np.intp] | None = None
) -> NDArray[np.float64]:
    """Return the Mahalanobis score of each row of features; `nearest` as in `gem_scores`.

    >>> mahalanobis_scores(TiedGaussians.from_parameters([[0.0]], [[4.0]]), [[2.0]])
    array([-1.])
    """
    features = as_features(X)
    if len(features) == 1:
        _, place, half_distance = gaussians.terms_of_row(features)
        if nearest is not None:
            nearest[0] = place
        return np.array([0.0 - 2.0 * half_distance])
    found = gaussians.distances(features, has_sums=False)
    if nearest is not None:
        nearest[...] = found.best
    scores = np.multiply(found.halves, -2.0, dtype=np.float64)
    scores += 0.0  # at a class mean it is 0, not −0
    return scores


def linear_energy(gaussians: TiedGaussians, X: ArrayLike) -> NDArray[np.float64]:
    """Return the energy of the linear logits f'_i(x) = μ_iᵀΣ⁻¹x − ½ μ_iᵀΣ⁻¹μ_i (P6).

    They have the same posterior as f and another energy: it lacks −½ xᵀΣ⁻¹x, so it is not aligned with the density
    (P16), yet against out-of-distribution N(0, Σ) it is the Neyman–Pearson optimum and GEM is not (E8).

    >>> linear_energy(TiedGaussians.from_parameters([[2.0]], [[1.0]]), [[3.0]])
    array([4.])
    """
    weight, bias = gaussians.linear_head()
    features = as_features(X)
    gaussians.check_width(features)
    return energy(features @ weight.T + bias)


def _exponents(exponents: ArrayLike) -> NDArray[np.float64]:
    return as_features(exponents, name="exponents").astype(np.float64, copy=False)
