"""GEM, Mahalanobis and its relative form: features compared with class means under one tied covariance."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.detectors.gaussian_base import GaussianDetector
from gem_ood.gaussians import CovariancePolicy, Priors
from gem_ood.scores import gem_scores, mahalanobis_scores

__all__ = ["GEM", "Mahalanobis", "RelativeMahalanobis"]


class GEM(GaussianDetector):
    """The Gaussian mixture based Energy Measurement of Morteza and Li (AAAI 2022), on features (P7, P17–P19).

    The score is log Σ_i exp(−½ d²(x, μ_i)), the log-density of the class mixture up to a constant.

    Args:
        priors: `"uniform"` (the paper's), `"empirical"` (class frequencies), or one weight per class (P8).
        covariance: `"empirical"` (divisor N), `"oas"`, `"ledoit-wolf"` (two passes), or a shrinkage share in [0, 1].
        normalize: Scale every row to unit length first (B8).
        relative: Subtract the score under one Gaussian fitted to all rows (B9).
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(400, 2)) + 9.0 * (np.arange(400) % 2)[:, None], np.arange(400) % 2
    >>> detector = GEM().fit(X[:200], y[:200]).calibrate(X[200:], tpr=0.95)
    >>> detector.predict([[0.0, 0.0], [9.0, 9.0], [4.5, 4.5]])
    array([ 1,  1, -1])
    >>> GEM().fit(X, y).predict(X)
    Traceback (most recent call last):
        ...
    gem_ood.errors.NotCalibratedError: this GEM has no threshold yet; call calibrate(held_out_features, tpr=0.95) with
    in-distribution rows that the fit has not seen
    """

    def __init__(
        self,
        *,
        priors: Priors = "uniform",
        covariance: CovariancePolicy = "empirical",
        normalize: bool = False,
        relative: bool = False,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.priors = priors
        self.covariance = covariance
        self.normalize = normalize
        self.relative = relative
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _gaussian_scores(self, features: NDArray[Any], nearest: NDArray[np.intp] | None) -> NDArray[np.float64]:
        log_weights = None
        if not (isinstance(self.priors, str) and self.priors == "uniform"):
            with np.errstate(divide="ignore"):
                log_weights = np.log(self.gaussians_.priors)
        scores = gem_scores(self.gaussians_, features, log_weights=log_weights, nearest=nearest)
        if self.relative:
            scores = self._difference(scores, gem_scores(self.background_, features))
        return scores


class Mahalanobis(GaussianDetector):
    """The Mahalanobis detector of Lee et al. (2018) on one feature layer: max_i −d²(x, μ_i) (P4).

    Args:
        covariance: `"empirical"` (divisor N), `"oas"`, `"ledoit-wolf"` (two passes), or a shrinkage share in [0, 1].
        normalize: Scale every row to unit length first.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> detector = Mahalanobis().fit([[0.0], [2.0], [10.0], [12.0]], ["a", "a", "b", "b"])
    >>> detector.score_samples([[1.0], [3.0]])
    array([ 0., -4.])
    """

    def __init__(
        self,
        *,
        covariance: CovariancePolicy = "empirical",
        normalize: bool = False,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.covariance = covariance
        self.normalize = normalize
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _gaussian_scores(self, features: NDArray[Any], nearest: NDArray[np.intp] | None) -> NDArray[np.float64]:
        return mahalanobis_scores(self.gaussians_, features, nearest=nearest)


class RelativeMahalanobis(GaussianDetector):
    """The relative Mahalanobis distance of Ren et al. (arXiv:2106.09022, 2021), made for near-OOD rows.

    The score is −min_k [d²(x, μ_k; Σ) − d²(x, μ_0; Σ_0)], with squared distances to the class means under the tied
    covariance and to the mean of all rows under their own covariance: what is unusual for every class alike cancels.
    Labels of at least two classes are needed. A direction in which only the class means differ has no variance within
    classes and counts in neither distance.

    Args:
        covariance: `"empirical"` (the paper's, divisor N), `"oas"`, `"ledoit-wolf"` (two passes), or a shrinkage share
            in [0, 1]; of both covariances.
        normalize: Scale every row to unit length first.
        calibration: Share of the rows of `fit` to hold back and calibrate on; None never calibrates in `fit`.
        tpr: The share of in-distribution rows to keep where `calibrate` is not told otherwise.
        random_state: Seed of the hold-out.

    >>> detector = RelativeMahalanobis().fit([[0.0], [2.0], [10.0], [12.0]], ["a", "a", "b", "b"])
    >>> detector.score_samples([[1.0], [6.0]]).round(3)
    array([  0.962, -25.   ])
    """

    relative = True

    def __init__(
        self,
        *,
        covariance: CovariancePolicy = "empirical",
        normalize: bool = False,
        calibration: float | None = None,
        tpr: float = 0.95,
        random_state: int | None = 0,
    ) -> None:
        self.covariance = covariance
        self.normalize = normalize
        self.calibration = calibration
        self.tpr = tpr
        self.random_state = random_state

    def _gaussian_scores(self, features: NDArray[Any], nearest: NDArray[np.intp] | None) -> NDArray[np.float64]:
        scores = mahalanobis_scores(self.gaussians_, features, nearest=nearest)
        return self._difference(scores, mahalanobis_scores(self.background_, features))
