"""Tails of squared distances ‖x − a‖² for Gaussian x: exact where the law is a χ², and bounded elsewhere.

Chernoff's bound P(Q ≤ c) ≤ exp(s c) E exp(−s Q) holds at every s ≥ 0, so the least over any grid of s is a proof, and
it stays finite in logs where the exact law underflows.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc
from scipy.stats import ncx2

from gem_ood.theory.whitened import Whitened

__all__ = ["log_near_class", "log_outside_ball"]

#: Below this a probability has lost digits to underflow, and Chernoff's bound takes its place.
SMALLEST_TRUSTED = 1e-280

#: Points of s per decade; between two of them the bound's exponent changes by well under 1 %.
GRID_PER_DECADE = 24


def log_near_class(problem: Whitened, squared_radii: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log P_out(d²(x, μ_i) ≤ c_i) for each class i, or an upper bound of it.

    Exact (non-central χ²) where S = Σ and it does not underflow; Chernoff's bound otherwise.
    """
    radii = np.maximum(squared_radii, 0.0)
    bounds = _chernoff_near(problem, radii)
    if problem.spread is not None:
        return bounds
    exact = ncx2.cdf(radii, problem.dimension, problem.squared_distances)
    with np.errstate(divide="ignore"):
        # the exact law, unless rounding or underflow put it where the proof says it cannot be
        return np.where(exact > SMALLEST_TRUSTED, np.minimum(np.log(exact), bounds), bounds)


def log_outside_ball(problem: Whitened, radii: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log P_out(d(x, m) ≥ r_i), or an upper bound of it, by the same rule."""
    squares = radii**2
    bounds = _chernoff_outside(problem, squares)
    if problem.spread is not None:
        return bounds
    exact = chdtrc(problem.dimension, squares)
    with np.errstate(divide="ignore"):
        return np.where(exact > SMALLEST_TRUSTED, np.minimum(np.log(exact), bounds), bounds)


def _chernoff_near(problem: Whitened, squared_radii: NDArray[np.float64]) -> NDArray[np.float64]:
    if problem.spread is None:
        eigenvalues, squared_offsets = np.array([1.0]), problem.squared_distances[:, np.newaxis]
        multiplicity = problem.dimension
    else:
        eigenvalues, squared_offsets = problem.spread.eigenvalues, problem.spread.squared_offsets
        multiplicity = 1
    # The best s solves a balance whose scale is set by the smallest radius and the largest eigenvalue.
    scales = np.concatenate([squared_radii[squared_radii > 0.0], eigenvalues[eigenvalues > 0.0], [1.0]])
    s = _logarithmic_grid(1e-4 / scales.max(), 1e4 * (1.0 + problem.dimension) / scales.min())
    growth = 1.0 + 2.0 * np.outer(eigenvalues, s)
    volume = -0.5 * multiplicity * np.sum(np.log(growth), axis=0)
    exponents = np.outer(squared_radii, s) + volume - (squared_offsets @ (1.0 / growth)) * s
    return np.asarray(np.minimum(exponents.min(axis=1), 0.0))


def _chernoff_outside(problem: Whitened, squares: NDArray[np.float64]) -> NDArray[np.float64]:
    if problem.spread is None:
        eigenvalues, multiplicity = np.array([1.0]), problem.dimension
    else:
        eigenvalues, multiplicity = problem.spread.eigenvalues, 1
    # s below 1 / (2 λ_max); the share left of it is what matters near that end.
    gaps = _logarithmic_grid(1e-12, 0.999)
    s = (1.0 - gaps) / (2.0 * eigenvalues.max())
    volume = -0.5 * multiplicity * np.sum(np.log1p(-2.0 * np.outer(eigenvalues, s)), axis=0)
    return np.asarray(np.minimum((volume - np.outer(squares, s)).min(axis=1), 0.0))


def _logarithmic_grid(low: float, high: float) -> NDArray[np.float64]:
    n_points = 2 + int(GRID_PER_DECADE * np.log10(high / low))
    return np.geomspace(low, high, n_points)
