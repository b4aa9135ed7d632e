"""Joining the p-values of several scores into one number per row; higher = more in-distribution.

The p-values of one row under several scores depend on each other in an unknown way, so no table of χ² or Cauchy is
looked up here: what comes back ranks rows, and a threshold calibrated on held-out rows turns it into a verdict.
"""

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.errors import InputError
from gem_ood.features import as_features, as_scores

__all__ = ["Joining", "check_joining", "join_log_p_values", "log_p_values"]

Joining = Literal["fisher", "minimum", "cauchy"]

#: A p-value of one would outweigh any other under Cauchy's rule; values above this count as this (Fang et al., 2023).
LARGEST_CAUCHY_P = 0.99

#: Below this p-value 1/tan(πp) is 1/(πp) to within float64.
SMALL_P = 1e-9

#: The tail beyond the reference is measured by the depth of its lowest rows: this share of them.
TAIL_SHARE = 0.05

#: Half of what float64 holds.
LARGEST_SCALE = 0.5 * float(np.finfo(np.float64).max)


def join_log_p_values(log_p: ArrayLike, method: Joining = "fisher") -> NDArray[np.float64]:
    """Return one number per row from the logs of its p-values, n × parts; higher = larger p-values.

    - "fisher": Σ log p (Fisher, 1932): many moderately small p-values count together.
    - "minimum": min log p (Tippett, 1931): the smallest decides alone.
    - "cauchy": the Cauchy combination −log of the mean of 1/tan(πp), in the ranking that this has (Liu and Xie, 2020),
      p capped at 0.99: between the two.

    >>> join_log_p_values(np.log([[0.5, 0.5], [1.0, 0.01]])).round(3)
    array([-1.386, -4.605])
    >>> join_log_p_values(np.log([[0.5, 0.5], [1.0, 0.01]]), "minimum").round(3)
    array([-0.693, -4.605])
    """
    values = as_features(log_p, name="log_p").astype(np.float64, copy=False)
    if np.isnan(values).any() or (values > 0.0).any():
        raise InputError("log_p must be logs of p-values, at most 0; pass np.log(p) with p between 0 and 1")
    check_joining(method)
    if method == "fisher":
        return np.asarray(values.sum(axis=1))
    if method == "minimum":
        return np.asarray(values.min(axis=1))
    return _cauchy(values)


def check_joining(method: object) -> None:
    """Raise if this is no way of joining p-values.

    >>> check_joining("fisher")
    """
    if method not in get_args(Joining):
        raise InputError(f"method is {method!r}; pass one of {', '.join(map(repr, get_args(Joining)))}")


def log_p_values(reference: ArrayLike, scores: ArrayLike, *, assume_sorted: bool = False) -> NDArray[np.float64]:
    """Return the log of each score's conformal p-value among reference scores, with a tail that goes on below them.

    Within the reference it is log of (1 + how many are at or below) / (n + 1). All scores below the reference have the
    same p-value 1 / (n + 1), which would leave far rows in no order. There the p-value falls on as 1 / (1 + d/c), with
    d the distance below the reference and c the mean depth of its lowest twentieth: a heavy tail, so that a part whose
    reference does not fit, as training rows of a network that knows them by heart, cannot drown the other parts.

    >>> log_p_values([1.0, 2.0, 3.0], [3.5, 2.0, 0.0]).round(3)
    array([ 0.   , -0.288, -2.079])
    """
    given = as_scores(reference, name="reference")
    ordered = given if assume_sorted else np.sort(given)
    values = as_scores(scores)
    at_or_below = np.searchsorted(ordered, values, side="right")
    logs: NDArray[np.float64] = np.log((1.0 + at_or_below) / (len(ordered) + 1.0))
    is_beyond = values < ordered[0]
    if is_beyond.any():
        scale = _tail_scale(ordered)
        with np.errstate(over="ignore"):  # halves first: a difference of two numbers may lie beyond float64
            logs[is_beyond] -= np.log1p(2.0 * ((0.5 * ordered[0] - 0.5 * values[is_beyond]) / scale))
    return logs


def _tail_scale(ordered: NDArray[np.float64]) -> float:
    """Return the mean distance of the lowest scores from the next one up: how deep a tail these scores have."""
    finite = ordered[np.isfinite(ordered)]
    n_tail = max(1, int(TAIL_SHARE * len(finite)))
    if len(finite) > n_tail:
        with np.errstate(over="ignore"):
            scale = float(np.mean(finite[n_tail] - finite[:n_tail]))
        if scale > 0.0:
            return min(scale, LARGEST_SCALE)
    with np.errstate(over="ignore"):
        spread = float(finite[-1] - finite[0]) if len(finite) else 0.0
    return min(spread, LARGEST_SCALE) if spread > 0.0 else 1.0


def _cauchy(log_p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return −asinh of the mean of 1/tan(πp): the same order as the mean itself, and finite where that overflows."""
    capped = np.minimum(log_p, np.log(LARGEST_CAUCHY_P))
    with np.errstate(over="ignore", under="ignore"):
        p = np.exp(capped)
        terms = 1.0 / np.tan(np.pi * np.maximum(p, SMALL_P))
    mean = terms.mean(axis=1)
    # Where a p-value is tiny the mean is 1/(πp) summed over the parts, and its log never overflows.
    is_small = capped.min(axis=1) < np.log(SMALL_P)
    joined: NDArray[np.float64] = -np.arcsinh(mean)
    if is_small.any():
        lowest = capped[is_small].min(axis=1)
        with np.errstate(invalid="ignore"):
            relative = np.exp(lowest[:, np.newaxis] - capped[is_small])
        relative = np.where(np.isneginf(capped[is_small]), 1.0, relative)
        joined[is_small] = lowest + np.log(np.pi * capped.shape[1] / 2.0) - np.log(relative.sum(axis=1))
    return joined
