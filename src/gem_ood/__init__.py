"""gem-ood: tell in-distribution inputs from out-of-distribution ones, post hoc, on any classifier.

>>> import numpy as np
>>> from gem_ood import GEM
>>> rng = np.random.default_rng(0)
>>> features, labels = rng.normal(size=(300, 4)), np.arange(300) % 3
>>> detector = GEM().fit(features[:200], labels[:200]).calibrate(features[200:], tpr=0.95)
>>> detector.is_ood(np.full((1, 4), 9.0))
array([ True])
"""

from gem_ood import detectors, errors, gaussians, metrics, scores, thresholds
from gem_ood._version import __version__
from gem_ood.detectors import GEM, MSP, Energy, Head, Mahalanobis, MaxLogit, load

__all__ = [
    "GEM",
    "MSP",
    "Energy",
    "Head",
    "Mahalanobis",
    "MaxLogit",
    "__version__",
    "detectors",
    "errors",
    "gaussians",
    "load",
    "metrics",
    "scores",
    "thresholds",
]
