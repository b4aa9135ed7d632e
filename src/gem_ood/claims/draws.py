"""What several checks share: random configurations, Monte Carlo means, and pairs that two scores rank oppositely."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import chi2, multivariate_normal

from gem_ood.gaussians import TiedGaussians
from gem_ood.simulation import STUDIES, Setting
from gem_ood.simulation.studies import CURVES
from gem_ood.theory.whitened import Whitened, whiten

__all__ = [
    "PAPER",
    "ROUNDING",
    "SURE",
    "Configuration",
    "MonteCarlo",
    "configurations",
    "decades",
    "disagreement",
    "figure_settings",
    "first_bound",
    "log_mixture_density",
    "one_dimensional",
    "orthogonal",
    "random_gaussians",
    "relative_error",
    "share_inverted",
]

#: A statistical check fails beyond this many standard errors: by chance, 6 in 10⁷ times a comparison.
SURE = 5.0

#: Two ways to one number in float64 differ by less than this, relative to its size; most agree to 1e-13.
ROUNDING = 1e-9

#: Smaller probabilities are not compared with a formula that is not in logs.
SMALLEST_COMPARED = 1e-250

#: The paper's standard setting.
PAPER = Setting(n_classes=10, dimension=512, distance=10.0)


@dataclass(frozen=True)
class MonteCarlo:
    """The mean of a sample and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: ArrayLike) -> "MonteCarlo":
        """Return the mean of these values."""
        sample = np.asarray(values, dtype=np.float64)
        return cls(float(sample.mean()), float(sample.std(ddof=1) / np.sqrt(sample.size)))

    def errors_from(self, expected: float) -> float:
        """Return the distance to what was expected, in standard errors."""
        return abs(self.mean - expected) / self.error


@dataclass(frozen=True, eq=False)
class Configuration:
    """Random Gaussians and a random out-of-distribution mean."""

    gaussians: TiedGaussians
    ood_mean: NDArray[np.float64]

    def whitened(self) -> Whitened:
        """Return the configuration as the bounds take it."""
        return whiten(self.gaussians, self.ood_mean)

    def half_distances(self) -> NDArray[np.float64]:
        """Return the α_i = ½ d_M(μ_i, μ_out), with Σ⁻¹ written out."""
        offsets = self.gaussians.class_means - self.ood_mean
        solved = np.linalg.solve(self.gaussians.covariance, offsets.T).T
        return np.asarray(0.5 * np.sqrt(np.sum(offsets * solved, axis=1)))


def random_gaussians(
    generator: np.random.Generator,
    *,
    n_classes: int = 3,
    dimension: int = 3,
    spread: float = 2.0,
    priors: ArrayLike | None = None,
) -> TiedGaussians:
    """Return Gaussians with random means and a random, correlated covariance."""
    root = generator.standard_normal((dimension, dimension))
    covariance = root @ root.T / dimension + 0.3 * np.eye(dimension)
    means = spread * generator.standard_normal((n_classes, dimension))
    return TiedGaussians.from_parameters(means, covariance, priors=priors)


def configurations(generator: np.random.Generator, n: int = 300) -> list[Configuration]:
    """Return configurations of 1 to 8 classes in 1 to 30 dimensions, near the out-of-distribution mean and far."""
    found = []
    for _ in range(n):
        n_classes, dimension = int(generator.integers(1, 9)), int(generator.integers(1, 31))
        spread = 10.0 ** generator.uniform(-1.5, 1.0)
        gaussians = random_gaussians(generator, n_classes=n_classes, dimension=dimension, spread=spread)
        found.append(Configuration(gaussians, spread * generator.standard_normal(dimension)))
    return found


def one_dimensional() -> TiedGaussians:
    """Return the paper's one-dimensional example: means ±2, σ = 1."""
    return TiedGaussians.from_parameters([[-2.0], [2.0]], [[1.0]])


def orthogonal(n_classes: int, dimension: int, distance: float) -> Whitened:
    """Return the studies' configuration in the form of the bounds."""
    return Setting(n_classes, dimension, distance).whitened()


def figure_settings(*studies: str) -> list[tuple[int, int, float]]:
    """Return k, d and r of the points of these studies, of all 70 points of the paper's Figure 4 if none is named."""
    grids = {name: [float(value) for value in STUDIES[name][2]] for name in STUDIES}
    settings = {
        "distance": [(k, PAPER.dimension, r) for k in CURVES for r in grids["distance"]],
        "dimension": [(k, int(d), PAPER.distance) for k in CURVES for d in grids["dimension"]],
        "classes": [(int(k), PAPER.dimension, PAPER.distance) for k in grids["classes"]],
    }
    return [setting for name in studies or settings for setting in settings[name]]


def first_bound(alpha: ArrayLike, dimension: int) -> NDArray[np.float64]:
    """Return (1 − P_out(B_α)) + exp(−α²/2), the terms of the theorem's first bound, by SciPy."""
    squares = np.square(np.asarray(alpha, dtype=np.float64))
    return np.asarray(chi2.sf(squares, dimension) + np.exp(-0.5 * squares))


def log_mixture_density(gaussians: TiedGaussians, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log-density of the mixture by SciPy, class by class."""
    logs = [
        np.log(prior) + multivariate_normal(mean, gaussians.covariance).logpdf(rows)
        for mean, prior in zip(gaussians.class_means, gaussians.priors, strict=True)
    ]
    return np.asarray(np.logaddexp.reduce(np.atleast_2d(np.stack(logs)), axis=0)).reshape(-1)


def disagreement(first: ArrayLike, second: ArrayLike) -> float:
    """Return the largest difference of two arrays, relative to the larger of 1 and their size."""
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    return float(np.max(np.abs(one - other) / np.maximum(1.0, np.abs(other))))


def relative_error(log_found: float, expected: float) -> float:
    """Return by which share of it a number, given as its logarithm, is off.

    Under `SMALLEST_COMPARED` SciPy's tails lose digits, and the library's own are Chernoff's bound of them.
    """
    return float(abs(np.exp(log_found) - expected) / max(expected, SMALLEST_COMPARED))


def share_inverted(score: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    """Return the share of pairs of rows, neighbours in the array, that the score ranks against the truth.

    Differences within rounding count as ties.
    """
    first, second = np.diff(score.reshape(-1, 2), axis=1).ravel(), np.diff(truth.reshape(-1, 2), axis=1).ravel()
    slack = ROUNDING * (1.0 + np.abs(score.reshape(-1, 2)).max(axis=1))
    return float(np.mean((np.sign(first) == -np.sign(second)) & (np.abs(first) > slack) & (second != 0.0)))


def decades(log_large: float, log_small: float) -> float:
    """Return by how many powers of ten one number exceeds another, from their natural logarithms."""
    return float((log_large - log_small) / np.log(10.0))
