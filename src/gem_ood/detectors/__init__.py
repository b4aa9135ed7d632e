"""Detectors: the scikit-learn-shaped classes that users hold, and the registry of them.

Every detector has the same verbs: `fit`, `calibrate`, `score_samples`, `predict`, `is_ood`, `p_values`, `explain`,
`verdicts`, `select_ood`, `save`. Higher score = more in-distribution.
"""

from gem_ood.detectors.base import Detector
from gem_ood.detectors.gaussian import GEM, GaussianDetector, Mahalanobis
from gem_ood.detectors.head import Head
from gem_ood.detectors.head_reading import HeadDetector, LogitDetector, SummedDetector
from gem_ood.detectors.logits import MSP, Energy, MaxLogit
from gem_ood.detectors.registry import available, make
from gem_ood.detectors.results import Explanation, Verdicts
from gem_ood.detectors.saving import load

__all__ = [
    "GEM",
    "MSP",
    "Detector",
    "Energy",
    "Explanation",
    "GaussianDetector",
    "Head",
    "HeadDetector",
    "LogitDetector",
    "Mahalanobis",
    "MaxLogit",
    "SummedDetector",
    "Verdicts",
    "available",
    "load",
    "make",
]
