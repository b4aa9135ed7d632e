"""The ideal classifier: in-distribution where the true density is at least a threshold, and GEM's equal of it."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.gaussians import TiedGaussians

__all__ = ["gem_threshold", "ideal"]


def ideal(gaussians: TiedGaussians, X: ArrayLike, *, log_threshold: float) -> NDArray[np.bool_]:
    """Return which rows the ideal classifier (P10) calls in-distribution: log p_in(x) ≥ log λ.

    It is optimal against out-of-distribution data spread uniformly, not against any (E8).

    >>> ideal(TiedGaussians.from_parameters([[0.0]], [[1.0]]), [[0.0], [5.0]], log_threshold=-3.0)
    array([ True, False])
    """
    return gaussians.log_density(X) >= log_threshold


def gem_threshold(gaussians: TiedGaussians, *, log_threshold: float, weighted: bool = False) -> float:
    """Return the threshold at which GEM gives the ideal classifier's verdicts: log kβλ (P12, P13).

    Weighted GEM needs log βλ, without k (E11).

    >>> gem_threshold(TiedGaussians.from_parameters([[0.0], [4.0]], [[1.0]]), log_threshold=0.0)
    1.6120...
    """
    log_count = 0.0 if weighted else float(np.log(gaussians.n_classes))
    return log_threshold + log_count + gaussians.log_normalizer
