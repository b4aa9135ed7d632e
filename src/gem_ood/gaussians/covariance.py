"""The covariance policy: which estimate of the tied covariance, and how it is made invertible.

The paper's estimate (P18) divides the pooled scatter by N. Shrinkage mixes it with a multiple of the identity.
A covariance without full rank is ordinary life (dead units, duplicated columns, fewer rows than dimensions), and a
Cholesky factorisation need not notice it: rank is judged by the eigenvalues of the correlation matrix, and the
whitener works on the directions that have variance. Directions without any are left out of every distance.
"""

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, eigh
from scipy.linalg.lapack import dpotrf, dtrtri

from gem_ood.errors import InputError, RankWarning
from gem_ood.features import is_share
from gem_ood.gaussians.parallel import blas_alone
from gem_ood.gaussians.statistics import Statistics

__all__ = ["CovariancePolicy", "Factor", "check_policy", "factorize", "is_diagonal", "tied_covariance"]

CovariancePolicy = Literal["empirical", "ledoit-wolf", "oas"] | float

#: Correlation eigenvalues below this share of the largest are rounding noise: about (2⁻²³)², the variance that
#: float32 rounding alone leaves in a direction that is a sum of other features.
MIN_RELATIVE_EIGENVALUE = 1.5e-14

#: A trace of the inverse correlation matrix below this proves full rank: every eigenvalue is above 1e-9.
LARGEST_TRUSTED_TRACE = 1e9

#: Rounding makes zero eigenvalues no more negative than this; beyond it a matrix is no covariance.
MOST_NEGATIVE_EIGENVALUE = 1e-10

#: A feature whose spread is within this many rounding steps of its own mean is constant.
CONSTANT_STEPS = 4.0


@dataclass(frozen=True, eq=False)
class Factor:
    """A covariance made ready for use.

    Attributes:
        whitener: m × rank matrix W with Wᵀ Σ W = I, so that distances are ‖(x − μ) W‖; upper triangular at full rank.
        log_determinant: log |Σ| on the directions that have variance.
    """

    whitener: NDArray[np.float64]
    log_determinant: float

    @property
    def rank(self) -> int:
        """How many directions have variance."""
        return int(self.whitener.shape[1])


def tied_covariance(
    statistics: Statistics, policy: CovariancePolicy = "empirical"
) -> tuple[NDArray[np.float64], float]:
    """Return the tied covariance under this policy and the share of it that is shrinkage.

    `"empirical"`, `"oas"` and a fixed share in [0, 1] need only streamed statistics. `"ledoit-wolf"` needs the
    fourth moment about the final means, which takes a second pass over the rows.

    >>> from gem_ood.gaussians import collect
    >>> tied_covariance(collect([[0.0, 0.0], [2.0, 1.0]]), 0.5)
    (array([[0.8125, 0.25  ],
           [0.25  , 0.4375]]), 0.5)
    """
    if statistics.n_rows == 0:
        raise InputError("the fit has no rows; pass at least two")
    empirical = statistics.scatter / statistics.n_rows
    share = _shrinkage(statistics, empirical, policy)
    if share == 0.0:
        return empirical, 0.0
    covariance = (1.0 - share) * empirical
    covariance.flat[:: len(covariance) + 1] += share * np.trace(empirical) / len(empirical)
    return covariance, share


def factorize(
    covariance: NDArray[np.float64],
    *,
    magnitudes: NDArray[np.float64] | None = None,
    resolution: float = 0.0,
    n_rows: int | None = None,
) -> Factor:
    """Return the factor of a covariance, warning once if it has fewer dimensions than features.

    Args:
        covariance: Symmetric m × m.
        magnitudes: Largest absolute class mean per feature; with `resolution` it tells a constant feature from one
            that merely varies little.
        resolution: Relative rounding step of the rows behind the covariance.
        n_rows: Rows behind the covariance, for the warning.

    >>> factorize(np.array([[4.0, 0.0], [0.0, 1.0]])).log_determinant
    1.38629...
    """
    dimension = len(covariance)
    variances = np.diag(covariance)
    if (variances < 0.0).any():
        raise InputError("covariance is not positive semi-definite: a variance is negative; pass a covariance matrix")
    floor = np.zeros(dimension) if magnitudes is None else (CONSTANT_STEPS * resolution * magnitudes) ** 2
    varying = np.flatnonzero(variances > floor)
    if len(varying) == 0:
        raise InputError(
            "no feature varies within a class, so there is no covariance to measure distance by; pass more than one "
            "row per class, or leave the labels out"
        )
    scales = np.sqrt(variances[varying])
    is_whole = len(varying) == dimension
    whitener = _whitener(covariance if is_whole else covariance[np.ix_(varying, varying)], scales)
    rank = whitener.shape[1]
    if rank < dimension:
        _warn_of_rank(rank, dimension, dimension - len(varying), n_rows)
    whitener /= scales[:, np.newaxis]
    if not is_whole:
        whitener, of_varying = np.zeros((dimension, rank)), whitener
        whitener[varying] = of_varying
    return Factor(whitener=whitener, log_determinant=_log_determinant(covariance, whitener))


def is_diagonal(matrix: NDArray[np.float64]) -> bool:
    """Return whether a matrix is square and has nothing off its diagonal.

    >>> is_diagonal(np.eye(2)), is_diagonal(np.ones((2, 2)))
    (True, False)
    """
    is_square = matrix.shape[0] == matrix.shape[1]
    return is_square and bool(np.count_nonzero(matrix) == np.count_nonzero(np.diag(matrix)))


def _whitener(covariance: NDArray[np.float64], scales: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return W with Wᵀ R W = I on the support of the correlation matrix R."""
    # All in the memory of R: for a wide matrix, new memory costs as much time as the arithmetic.
    with blas_alone(float(len(scales)) ** 3):
        lower, failed = dpotrf(_correlation(covariance, scales).T, lower=1, overwrite_a=1)
        if not failed:
            inverse, failed = dtrtri(lower, lower=1, overwrite_c=1)
    # The inverse of the smallest eigenvalue is at most the trace of the inverse of R: where that is moderate, the rank
    # is full beyond doubt. Where it is not, a Cholesky factor may be noise, and only the eigenvalues can tell.
    # Not by NumPy's BLAS, which would wake a second pool of threads beside SciPy's.
    if not failed and float(np.einsum("ij,ij->", inverse, inverse)) < LARGEST_TRUSTED_TRACE:
        return np.asarray(inverse.T)
    return _whitener_on_support(_correlation(covariance, scales))


def _correlation(covariance: NDArray[np.float64], scales: NDArray[np.float64]) -> NDArray[np.float64]:
    correlation = covariance / scales[:, np.newaxis]
    correlation /= scales
    return correlation


def _whitener_on_support(correlation: NDArray[np.float64]) -> NDArray[np.float64]:
    eigenvalues, vectors = eigh(correlation, check_finite=False)
    if eigenvalues[0] < -MOST_NEGATIVE_EIGENVALUE * eigenvalues[-1]:
        raise InputError(
            f"covariance is not positive semi-definite: its correlations have the eigenvalue {eigenvalues[0]:.3g}; "
            f"pass a covariance matrix"
        )
    kept = eigenvalues > eigenvalues[-1] * max(MIN_RELATIVE_EIGENVALUE, len(correlation) * np.finfo(np.float64).eps)
    if kept.all():
        lower = cholesky(correlation, lower=True, check_finite=False)
        return np.asarray(dtrtri(lower, lower=1)[0].T)
    return np.asarray(vectors[:, kept] / np.sqrt(eigenvalues[kept]))


def _log_determinant(covariance: NDArray[np.float64], whitener: NDArray[np.float64]) -> float:
    if whitener.shape[0] == whitener.shape[1]:
        return float(-2.0 * np.sum(np.log(np.diag(whitener))))
    # The colouring matrix C = Wᵀ Σ maps whitened axes back to features; its Gram determinant is the volume of the
    # support in the features' own units.
    colouring = whitener.T @ covariance
    return float(np.linalg.slogdet(colouring @ colouring.T)[1])


def _warn_of_rank(rank: int, dimension: int, n_constant: int, n_rows: int | None) -> None:
    rows = "" if n_rows is None else f" (rows: {n_rows}, constant features: {n_constant})"
    warnings.warn(
        f"the tied covariance has rank {rank} of {dimension} dimensions{rows}; distances use the {rank} directions "
        f"that vary and ignore the others. Remedy: more rows, fewer features, or covariance='oas', 'ledoit-wolf' or a "
        f"float such as 0.1, which make every direction count",
        RankWarning,
        stacklevel=2,
    )


def check_policy(policy: CovariancePolicy) -> None:
    """Raise if this is no covariance policy.

    >>> check_policy(0.1)
    """
    if isinstance(policy, str) and policy in ("empirical", "oas", "ledoit-wolf"):
        return
    if not is_share(policy):
        raise InputError(
            f"covariance is {policy!r}; pass 'empirical', 'ledoit-wolf', 'oas', or a shrinkage share between 0 and 1"
        )


def _shrinkage(statistics: Statistics, empirical: NDArray[np.float64], policy: CovariancePolicy) -> float:
    check_policy(policy)
    if policy == "empirical":
        return 0.0
    if policy == "oas":
        return _oas(empirical, statistics.n_rows)
    if policy == "ledoit-wolf":
        return _ledoit_wolf(statistics, empirical)
    return float(policy)


def _oas(empirical: NDArray[np.float64], n_rows: int) -> float:
    """Oracle-approximating shrinkage, Chen, Wiesel, Eldar and Hero (2010), eq. 23 as scikit-learn computes it."""
    dimension = len(empirical)
    largest = float(np.abs(empirical).max())
    scaled = empirical / largest if largest > 0.0 else empirical  # the share has no unit, and squares may overflow
    mean_square = float(np.mean(scaled**2))
    squared_mean = float(np.trace(scaled) / dimension) ** 2
    denominator = (n_rows + 1.0) * (mean_square - squared_mean / dimension)
    return 1.0 if denominator <= 0.0 else float(min((mean_square + squared_mean) / denominator, 1.0))


def _ledoit_wolf(statistics: Statistics, empirical: NDArray[np.float64]) -> float:
    """Ledoit and Wolf (2004), 'A well-conditioned estimator for large-dimensional covariance matrices'."""
    if statistics.fourth_moment is None:
        raise InputError(
            "covariance='ledoit-wolf' needs a second pass over the rows for their fourth moment about the final "
            "means, so partial_fit and merge cannot provide it; use fit, or covariance='oas', which streams"
        )
    squared_norm = float(np.sum(empirical**2))
    distance = squared_norm - np.trace(empirical) ** 2 / len(empirical)
    noise = (statistics.fourth_moment / statistics.n_rows - squared_norm) / statistics.n_rows
    return 0.0 if noise <= 0.0 or distance <= 0.0 else float(min(noise / distance, 1.0))
