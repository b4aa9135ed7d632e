"""What can be promised without sampling: a threshold with its rates, and a rate that no detector can beat (B4)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import chdtr, gammaincinv, log_ndtr, logsumexp, ndtr, ndtri

from gem_ood.gaussians import TiedGaussians
from gem_ood.theory.tails import log_near_class
from gem_ood.theory.whitened import Spread, Whitened, whiten
from gem_ood.thresholds import as_probability

__all__ = ["Certificate", "certificate", "fpr_floor"]

#: Orders of the Rényi divergence that the floor is the best of.
RENYI_ORDERS_BELOW_ONE = np.linspace(0.02, 0.98, 49)
RENYI_STEPS_ABOVE_ONE = np.geomspace(1e-3, 1e3, 61)

#: Closer to one than this, the difference of two orders has lost its digits.
SMALLEST_RENYI_STEP = 1e-6

#: How often a bracket is doubled and halved: 2⁶⁰ is beyond any log-rate, and 120 halvings leave none of it.
LONGEST_BRACKET, BISECTIONS = 60, 120


@dataclass(frozen=True)
class Certificate:
    """A threshold of the GEM score with its guaranteed rates, if the classes are Gaussian with known parameters.

    Attributes:
        threshold: Rows with a GEM score at or above it are in.
        tpr: At least this share of in-distribution rows is kept.
        fpr: At most this share of out-of-distribution rows is kept.
        log_fpr: Its logarithm, finite where the rate itself underflows.
    """

    threshold: float
    tpr: float
    fpr: float
    log_fpr: float


def certificate(
    gaussians: TiedGaussians,
    ood_mean: ArrayLike,
    *,
    ood_covariance: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    tpr: float = 0.95,
) -> Certificate:
    """Return the threshold −½ χ²_{d,tpr} and its rates: TPR ≥ tpr and FPR ≤ Σ_i F(χ²_{d,tpr} + 2 log k; d, d_i²) (B4).

    F is the cdf of the non-central χ². Where S differs from Σ, Chernoff's bound of it is used. With weights of the
    score the threshold solves Σ π_j P(χ²_d ≤ 2 (log w_j − λ)) = tpr instead.

    >>> gaussians = TiedGaussians.from_parameters([[0.0] * 8, [9.0] * 8], np.eye(8))
    >>> certificate(gaussians, [4.5] * 8)
    Certificate(threshold=-7.7536..., tpr=0.95, fpr=1.09...e-19, log_fpr=-43.66...)
    """
    return certify_whitened(whiten(gaussians, ood_mean, ood_covariance=ood_covariance, weights=weights), tpr)


def fpr_floor(
    gaussians: TiedGaussians, ood_mean: ArrayLike, *, ood_covariance: ArrayLike | None = None, tpr: float = 0.95
) -> float:
    """Return a false positive rate under which no detector of this true positive rate can come (B4).

    With all classes at Mahalanobis distance d_M it is Φ(z_tpr − d_M), by Neyman and Pearson's lemma; with unequal
    distances d_i it is the q that solves Σ π_i Φ(z_q + d_i) = tpr. Where S differs from Σ the lemma has no closed form,
    and Rényi divergences, which no detector increases, bound it.

    >>> gaussians = TiedGaussians.from_parameters([[3.0, 0.0], [0.0, 3.0]], np.eye(2))
    >>> round(fpr_floor(gaussians, [0.0, 0.0]), 4)
    0.0877
    """
    return float(np.exp(log_floor(whiten(gaussians, ood_mean, ood_covariance=ood_covariance), tpr)))


def certify_whitened(problem: Whitened, tpr: float) -> Certificate:
    """Return the certificate of a whitened problem."""
    share = float(as_probability(tpr, name="tpr"))
    used = problem.weights > 0.0
    threshold = _threshold(problem, share)
    if threshold == -np.inf:
        return Certificate(threshold=threshold, tpr=share, fpr=1.0, log_fpr=0.0)
    radii = 2.0 * (np.log(used.sum()) + problem.log_weights - threshold)
    log_rates = log_near_class(problem, radii)[used]
    log_fpr = min(float(logsumexp(log_rates)), 0.0)
    return Certificate(threshold=threshold, tpr=share, fpr=float(np.exp(log_fpr)), log_fpr=log_fpr)


def _threshold(problem: Whitened, share: float) -> float:
    radius = 2.0 * float(gammaincinv(0.5 * problem.dimension, share))  # the quantile of χ²
    counted = (problem.priors > 0.0) & (problem.weights > 0.0)
    log_weights, priors = problem.log_weights[counted], problem.priors[counted]
    if priors.sum() <= share:
        return -np.inf  # classes that the score does not count are too frequent: only keeping all rows is certain
    if np.ptp(log_weights) == 0.0 and counted.sum() == (problem.priors > 0.0).sum():
        return float(log_weights[0] - 0.5 * radius)

    def kept(threshold: float) -> float:
        reach = np.maximum(2.0 * (log_weights - threshold), 0.0)
        return float(priors @ chdtr(problem.dimension, reach)) - share

    high, step = float(log_weights.max()), max(radius, 1.0)
    while kept(high - step) < 0.0:
        step *= 2.0
    return float(brentq(kept, high - step, high))


def log_floor(problem: Whitened, tpr: float) -> float:
    """Return the log of the floor of a whitened problem."""
    share = float(as_probability(tpr, name="tpr"))
    if problem.spread is not None:
        return _log_floor_renyi(problem, problem.spread, share)
    present = problem.priors > 0.0
    distances, priors = np.sqrt(problem.squared_distances[present]), problem.priors[present]
    quantile = float(ndtri(share))
    low, high = quantile - float(distances.max()), quantile - float(distances.min())
    # Half a millionth more on either side, so that rounding cannot leave the root outside.
    root = brentq(lambda z: float(priors @ ndtr(z + distances)) - share, low - 5e-7, high + 5e-7)
    return float(log_ndtr(min(max(root, low), high)))


def _log_floor_renyi(problem: Whitened, spread: Spread, share: float) -> float:
    """Return the best bound of all orders: a verdict cannot increase a Rényi divergence.

    With rates p and q, the divergence d_a of the two coins is at most that of the rows. The integral ∫ P^a Q^(1−a)
    behind the latter is convex in P for a > 1 and concave for a < 1, so its mean over the classes bounds the mixture's.
    """
    values, present = spread.eigenvalues, problem.priors > 0.0
    if (values == 0.0).any():
        return -np.inf
    # Above one the integral is finite only up to some order, which is close to one where T is narrow anywhere.
    limit = np.inf if values.min() >= 1.0 else values.min() / (1.0 - values.min())
    steps = RENYI_STEPS_ABOVE_ONE * min(1.0, 0.999 * limit / RENYI_STEPS_ABOVE_ONE[-1])
    orders = np.concatenate([RENYI_ORDERS_BELOW_ONE, 1.0 + steps[steps > SMALLEST_RENYI_STEP]])
    mixed = 1.0 + np.outer(values - 1.0, orders)
    volumes = 0.5 * (orders * np.sum(np.log(values)) - np.sum(np.log(mixed), axis=0))
    quadratic = 0.5 * orders * (orders - 1.0) * (spread.squared_offsets[present] @ (1.0 / mixed))
    integrals = volumes + logsumexp(quadratic, b=problem.priors[present, np.newaxis], axis=0)
    return float(_log_least_rates(orders, integrals, share).max())


def _log_least_rates(
    orders: NDArray[np.float64], log_integrals: NDArray[np.float64], share: float
) -> NDArray[np.float64]:
    """Return, for each order, the log of the least q whose coin is not too far from that of `share`, or a bit less."""

    def is_too_far(log_q: NDArray[np.float64]) -> NDArray[np.bool_]:
        stay = orders * np.log(share) + (1.0 - orders) * log_q
        leave = orders * np.log1p(-share) + (1.0 - orders) * np.log1p(-np.exp(log_q))
        return np.asarray((np.logaddexp(stay, leave) - log_integrals) / (orders - 1.0) > 0.0)

    # Below order one, even q = 0 may be near enough.
    is_bounded = (orders > 1.0) | (orders * np.log1p(-share) < log_integrals)
    high = np.full(len(orders), np.log(share))
    low = 2.0 * high - 1.0
    for _ in range(LONGEST_BRACKET):
        low = np.where(is_too_far(low) | ~is_bounded, low, 2.0 * low)
    is_bounded &= is_too_far(low)
    for _ in range(BISECTIONS):  # the lower end stays too far away, so it stays a proof
        middle = 0.5 * (low + high)
        far = is_too_far(middle)
        low, high = np.where(far, middle, low), np.where(far, high, middle)
    return np.where(is_bounded, low, -np.inf)
