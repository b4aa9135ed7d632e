"""scikit-learn's estimators of class means and a tied covariance, and PyOD's mixture, which wraps scikit-learn's.

None of them has a verb for a labelled fit with one covariance that then scores rows by all classes. What comes
closest is called, in the way that costs least; it computes in the precision of the rows. scikit-learn is imported by
gem-ood anyway; PyOD is imported where it is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.covariance import EmpiricalCovariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from peers.protocol import Features, Labels

__all__ = ["PyOD", "ScikitCovariance", "ScikitDiscriminant", "ScikitMixture"]


class ScikitMixture:
    """``GaussianMixture(covariance_type="tied")``, its M-step given the labels as responsibilities.

    A public ``fit`` would run k-means and ignore the labels. ``_initialize`` is the M-step that ``fit`` begins with:
    class means, the tied covariance and its factor, nothing else. With equal weights, ``score_samples`` is GEM up to a
    constant.
    """

    name = "scikit-learn tied GaussianMixture"
    computes = "log-sum-exp over classes, as GEM"
    fits_by_scoring = False

    def fitter(self, features: Features, labels: Labels, *, rows: int | None = None) -> Callable[[], Any]:
        """See ``Peer``."""
        x, y = features[:rows], labels[:rows]
        classes, codes = np.unique(y, return_inverse=True)
        responsibilities = np.zeros((len(y), classes.size), dtype=x.dtype)
        responsibilities[np.arange(len(y)), codes] = 1
        weights = np.full(classes.size, 1 / classes.size, dtype=x.dtype)

        def fit() -> GaussianMixture:
            mixture = GaussianMixture(classes.size, covariance_type="tied", weights_init=weights)
            mixture._initialize(x, responsibilities)
            return mixture

        return fit

    def scorer(self, detector: Any, features: Features) -> Callable[[], NDArray[Any]]:
        """See ``Peer``."""
        return lambda: -detector.score_samples(features)

    def detector(self, features: Features, labels: Labels) -> Any:
        """See ``Peer``."""
        return self.fitter(features, labels)()


class PyOD:
    """PyOD's ``GMM(covariance_type="tied", max_iter=1)``, given the finished means, precision and weights for nothing.

    PyOD has no labelled fit, and its EM begins with k-means unless it is told where to begin. Begun at the parameters
    of the labels, one iteration, the fewest that run (none ends in an AttributeError of scikit-learn 1.9.1), keeps the
    model that the others fit. It scores its rows three times: for the iteration, for labels and for its threshold.
    """

    name = "PyOD 3.6.7 GMM"
    computes = "log-sum-exp over classes, as GEM"
    fits_by_scoring = True

    def fitter(self, features: Features, labels: Labels, *, rows: int | None = None) -> Callable[[], Any]:
        """See ``Peer``; the parameters come from all rows, whatever ``rows`` says."""
        from pyod.models.gmm import GMM

        mixture = ScikitMixture().detector(features, labels)
        factor = mixture.precisions_cholesky_
        options = {
            "n_components": len(mixture.means_),
            "covariance_type": "tied",
            "max_iter": 1,
            "weights_init": mixture.weights_,
            "means_init": mixture.means_,
            "precisions_init": factor @ factor.T,
        }
        x = features[:rows]

        def fit() -> GMM:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # one iteration was asked for
                return GMM(**options).fit(x)

        return fit

    def scorer(self, detector: Any, features: Features) -> Callable[[], NDArray[Any]]:
        """See ``Peer``."""
        return lambda: detector.decision_function(features)

    def detector(self, features: Features, labels: Labels) -> Any:
        """A ``GMM`` around scikit-learn's mixture of the same parameters, as its fit leaves it, in less time.

        The threshold comes from a few rows; no score depends on it.
        """
        from pyod.models.gmm import GMM

        mixture = ScikitMixture().detector(features, labels)
        detector = GMM(n_components=len(mixture.means_), covariance_type="tied")
        detector.detector_ = mixture
        detector.decision_scores_ = -mixture.score_samples(features[:20])
        detector._process_decision_scores()
        return detector


class ScikitCovariance:
    """``EmpiricalCovariance`` of the rows less their class means: one Gaussian, whatever the classes."""

    name = "scikit-learn EmpiricalCovariance"
    computes = "squared distance to the mean of all rows: not comparable with a score by classes"
    fits_by_scoring = False

    def fitter(self, features: Features, labels: Labels, *, rows: int | None = None) -> Callable[[], Any]:
        """See ``Peer``; the class means are ready beforehand, to subtract them is part of the fit."""
        x, y = features[:rows], labels[:rows]
        classes, codes = np.unique(y, return_inverse=True)
        means = np.stack([x[codes == code].mean(axis=0) for code in range(classes.size)])

        def fit() -> EmpiricalCovariance:
            estimate = EmpiricalCovariance(assume_centered=True).fit(x - means[codes])
            estimate.location_ = means.mean(axis=0)
            return estimate

        return fit

    def scorer(self, detector: Any, features: Features) -> Callable[[], NDArray[Any]]:
        """See ``Peer``."""
        return lambda: detector.mahalanobis(features)

    def detector(self, features: Features, labels: Labels) -> Any:
        """See ``Peer``."""
        return self.fitter(features, labels)()


class ScikitDiscriminant:
    """``LinearDiscriminantAnalysis(solver="lsqr")``, the solver that forms the tied covariance; its fit alone.

    Its decision function is a linear logit per class, without the distance that makes a row in- or out-of-distribution.
    """

    name = "scikit-learn LinearDiscriminantAnalysis"
    computes = "nothing to compare: linear logits of the classes"
    fits_by_scoring = False

    def fitter(self, features: Features, labels: Labels, *, rows: int | None = None) -> Callable[[], Any]:
        """See ``Peer``."""
        x, y = features[:rows], labels[:rows]
        return lambda: LinearDiscriminantAnalysis(solver="lsqr").fit(x, y)

    def scorer(self, detector: Any, features: Features) -> Callable[[], NDArray[Any]]:
        """Refuse: there is no score of this kind."""
        raise NotImplementedError(f"{self.name} has no score of a row, only logits")

    def detector(self, features: Features, labels: Labels) -> Any:
        """See ``Peer``."""
        return self.fitter(features, labels)()
