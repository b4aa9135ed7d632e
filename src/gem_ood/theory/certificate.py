"""What can be promised without sampling: a threshold with its rates, and a rate that no detector can beat (B4)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import chdtr, chdtri, log_ndtr, logsumexp, ndtr, ndtri

from gem_ood.gaussians import TiedGaussians
from gem_ood.theory.tails import log_near_class
from gem_ood.theory.whitened import Whitened, whiten
from gem_ood.thresholds import as_probability

__all__ = ["Certificate", "certificate", "fpr_floor"]

#: Orders of the Rényi divergence that the floor is the best of.
RENYI_ORDERS_BELOW_ONE = np.linspace(0.02, 0.98, 49)
RENYI_STEPS_ABOVE_ONE = np.geomspace(1e-3, 1e3, 61)


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
    # scipy's chdtri takes the upper tail
    radius = float(chdtri(problem.dimension, 1.0 - share))
    counted = (problem.priors > 0.0) & (problem.weights > 0.0)
    log_weights = problem.log_weights[counted]
    if len(log_weights) and np.ptp(log_weights) == 0.0 and counted.sum() == (problem.priors > 0.0).sum():
        return float(log_weights[0] - 0.5 * radius)

    def kept(threshold: float) -> float:
        reach = np.maximum(2.0 * (log_weights - threshold), 0.0)
        return float(problem.priors[counted] @ chdtr(problem.dimension, reach)) - share

    if problem.priors[counted].sum() <= share:
        return -np.inf  # classes that the score does not count are too frequent: only keeping all rows is certain
    high, step = float(log_weights.max()), radius
    while kept(high - step) < 0.0:
        step *= 2.0
    return float(brentq(kept, high - step, high))


def log_floor(problem: Whitened, tpr: float) -> float:
    """Return the log of the floor of a whitened problem."""
    share = float(as_probability(tpr, name="tpr"))
    if problem.spread is not None:
        return _log_floor_renyi(problem, share)
    distances, quantile = np.sqrt(problem.squared_distances), float(ndtri(share))
    low, high = quantile - float(distances.max()), quantile - float(distances.min())
    if high - low < 1e-12:
        return float(log_ndtr(low))
    return float(log_ndtr(brentq(lambda z: float(problem.priors @ ndtr(z + distances)) - share, low, high)))


def _log_floor_renyi(problem: Whitened, share: float) -> float:
    """Return the best bound of all orders: a verdict cannot increase a Rényi divergence.

    With rates p and q, the divergence d_a of the two coins is at most that of the rows. The integral ∫ P^a Q^(1−a)
    behind the latter is convex in P for a > 1 and concave for a < 1, so its mean over the classes bounds the mixture's.
    """
    assert problem.spread is not None
    values = problem.spread.eigenvalues
    if (values == 0.0).any():
        return -np.inf
    # Above one the integral is finite only up to some order, which is close to one where T is narrow anywhere.
    limit = np.inf if values.min() >= 1.0 else values.min() / (1.0 - values.min())
    steps = RENYI_STEPS_ABOVE_ONE * min(1.0, 0.999 * limit / RENYI_STEPS_ABOVE_ONE[-1])
    orders = np.concatenate([RENYI_ORDERS_BELOW_ONE, 1.0 + steps])
    mixed = 1.0 + np.outer(values - 1.0, orders)
    volumes = 0.5 * (orders * np.sum(np.log(values)) - np.sum(np.log(mixed), axis=0))
    quadratic = 0.5 * orders * (orders - 1.0) * (problem.spread.squared_offsets @ (1.0 / mixed))
    integrals = volumes + logsumexp(quadratic, b=problem.priors[:, np.newaxis], axis=0)
    return max(_log_least_rate(float(a), float(bound), share) for a, bound in zip(orders, integrals, strict=True))


def _log_least_rate(order: float, log_integral: float, share: float) -> float:
    """Return the log of the least q whose coin's divergence of this order from that of `share` is not too large."""

    def excess(log_q: float) -> float:
        stay = order * np.log(share) + (1.0 - order) * log_q
        leave = order * np.log1p(-share) + (1.0 - order) * np.log1p(-np.exp(log_q))
        return float(np.logaddexp(stay, leave) - log_integral) / (order - 1.0)

    if order < 1.0 and order * np.log1p(-share) >= log_integral:
        return -np.inf  # even q = 0 is near enough
    high, low = float(np.log(share)), 2.0 * float(np.log(share)) - 1.0
    if excess(high) >= 0.0:
        return high
    while excess(low) < 0.0:
        low *= 2.0
    return float(brentq(excess, low, high))
