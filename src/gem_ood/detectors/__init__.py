"""Detectors: the scikit-learn-shaped classes that users hold, and the registry of them.

Every detector has the same verbs: `fit`, `calibrate`, `score_samples`, `predict`, `is_ood`, `p_values`, `explain`,
`verdicts`, `select_ood`, `save`. Higher score = more in-distribution.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gem_ood.detectors.all_rounder import recommended
    from gem_ood.detectors.base import Detector
    from gem_ood.detectors.boundaries import FDBD, NCI, SHE, GradNorm
    from gem_ood.detectors.cataloguing import catalogue, entries
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

#: The file that each name lives in: `from gem_ood import GEM` loads that of GEM and none of the others.
_FILES = {
    "ASH": "shaping",
    "ClassGaussians": "class_gaussians",
    "Combine": "combining",
    "DICE": "shaping",
    "Detector": "base",
    "Energy": "logits",
    "Entropy": "probabilities",
    "Explanation": "results",
    "FDBD": "boundaries",
    "GEM": "gaussian",
    "GEN": "probabilities",
    "GaussianDetector": "gaussian_base",
    "GradNorm": "boundaries",
    "Head": "head",
    "HeadDetector": "head_reading",
    "JointEnergy": "probabilities",
    "KLMatching": "probabilities",
    "KNN": "neighbors",
    "LogitDetector": "head_reading",
    "MOS": "probabilities",
    "MSP": "logits",
    "Mahalanobis": "gaussian",
    "MaxLogit": "logits",
    "NCI": "boundaries",
    "NNGuide": "neighbors",
    "OpenMax": "openmax",
    "ReAct": "shaping",
    "RelativeMahalanobis": "gaussian",
    "Residual": "subspaces",
    "SCALE": "shaping",
    "SHE": "boundaries",
    "SummedDetector": "summing",
    "Verdicts": "results",
    "ViM": "subspaces",
    "available": "registry",
    "catalogue": "cataloguing",
    "entries": "cataloguing",
    "load": "saving",
    "make": "registry",
    "recommended": "all_rounder",
}


def __getattr__(name: str) -> Any:
    """Load a name's file when it is first asked for."""
    if name not in _FILES:
        raise AttributeError(f"module 'gem_ood.detectors' has no attribute {name!r}")
    return getattr(import_module(f"gem_ood.detectors.{_FILES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
