"""Detectors: the scikit-learn-shaped classes that users hold, and the registry of them.

Every detector has the same verbs: `fit`, `calibrate`, `score_samples`, `predict`, `is_ood`, `p_values`, `explain`,
`verdicts`, `select_ood`, `save`. Higher score = more in-distribution.
"""

from gem_ood.detectors.all_rounder import recommended
from gem_ood.detectors.base import Detector
from gem_ood.detectors.boundaries import FDBD, NCI, SHE, GradNorm
from gem_ood.detectors.catalogue import catalogue, entries
from gem_ood.detectors.class_gaussians import ClassGaussians
from gem_ood.detectors.combining import Combine
from gem_ood.detectors.gaussian import GEM, Mahalanobis, RelativeMahalanobis
from gem_ood.detectors.gaussian_base import GaussianDetector
from gem_ood.detectors.head import Head
from gem_ood.detectors.head_reading import HeadDetector, LogitDetector
from gem_ood.detectors.logits import MSP, Energy, MaxLogit
from gem_ood.detectors.neighbors import KNN, NNGuide
from gem_ood.detectors.openmax import OpenMax
from gem_ood.detectors.probabilities import GEN, MOS, Entropy, JointEnergy, KLMatching
from gem_ood.detectors.registry import available, make
from gem_ood.detectors.results import Explanation, Verdicts
from gem_ood.detectors.saving import load
from gem_ood.detectors.shaping import ASH, DICE, SCALE, ReAct
from gem_ood.detectors.subspaces import Residual, ViM
from gem_ood.detectors.summing import SummedDetector

__all__ = [
    "ASH",
    "DICE",
    "FDBD",
    "GEM",
    "GEN",
    "KNN",
    "MOS",
    "MSP",
    "NCI",
    "SCALE",
    "SHE",
    "ClassGaussians",
    "Combine",
    "Detector",
    "Energy",
    "Entropy",
    "Explanation",
    "GaussianDetector",
    "GradNorm",
    "Head",
    "HeadDetector",
    "JointEnergy",
    "KLMatching",
    "LogitDetector",
    "Mahalanobis",
    "MaxLogit",
    "NNGuide",
    "OpenMax",
    "ReAct",
    "RelativeMahalanobis",
    "Residual",
    "SummedDetector",
    "Verdicts",
    "ViM",
    "available",
    "catalogue",
    "entries",
    "load",
    "make",
    "recommended",
]
