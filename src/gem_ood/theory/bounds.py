"""The paper's bounds on the mean score of OOD rows and on the separation D, with its slips mended, and sharper ones.

With weights w_i of the score, W = Σ w_i, and priors π_i of the classes; the paper has w_i = 1, W = k and π_i = 1/k.
Every bound holds for any covariance of the out-of-distribution Gaussian too: balls are then bounded by Chernoff, and
divergences take both covariances.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from gem_ood.theory.divergences import class_divergences, class_total_variations, pinsker, pinsker_large
from gem_ood.theory.tails import log_outside_ball
from gem_ood.theory.whitened import Whitened

__all__ = [
    "log_bound_expected_out",
    "log_bound_expected_out_sharp",
    "log_bound_separation_pinsker",
    "log_bound_separation_pinsker_large",
    "log_bound_separation_total_variation",
]


def log_bound_expected_out(problem: Whitened) -> float:
    """Return log Σ w_i [(1 − P_out(B_α_i)) + exp(−α_i²/2)], at least log E_out ES (P22).

    P_out(B) is a χ²_d cdf at α², so that in high dimension the bound is nearly W and says little (E3).
    """
    half_distances = 0.5 * np.sqrt(problem.squared_distances)
    terms = np.stack([log_outside_ball(problem, half_distances), -0.5 * half_distances**2])
    return float(logsumexp(terms + problem.log_weights))


def log_bound_expected_out_sharp(problem: Whitened) -> float:
    """Return log Σ w_i [(1 − P_out(B_α_i)) + P_out(B_α_i) exp(−α_i²/2)] (P23)."""
    half_distances = 0.5 * np.sqrt(problem.squared_distances)
    log_outside = log_outside_ball(problem, half_distances)
    with np.errstate(divide="ignore"):
        log_inside = np.log(-np.expm1(log_outside))
    terms = np.stack([log_outside, log_inside - 0.5 * half_distances**2])
    return float(logsumexp(terms + problem.log_weights))


def log_bound_separation_pinsker(problem: Whitened) -> float:
    """Return log of W Σ π_i √(KL_i / 2), at least D (P24): Σ α_i in the paper's setting."""
    return _log_mean(problem, pinsker(class_divergences(problem)))


def log_bound_separation_pinsker_large(problem: Whitened) -> float:
    """Return log of W Σ π_i (1 − ½ exp(−KL_i)), at least D (P25): k − ½ Σ exp(−2α_i²) in the paper's setting."""
    return _log_mean(problem, pinsker_large(class_divergences(problem)))


def log_bound_separation_total_variation(problem: Whitened) -> float:
    """Return log of W Σ π_i TV_i, at least D (B2): Σ (2Φ(α_i) − 1) in the paper's setting, under P24 and P25."""
    return _log_mean(problem, class_total_variations(problem))


def _log_mean(problem: Whitened, values: NDArray[np.float64]) -> float:
    present = problem.priors > 0.0  # a class without rows has no say, however far it is
    with np.errstate(divide="ignore"):
        return float(np.log(problem.weights.sum()) + np.log(problem.priors[present] @ values[present]))
