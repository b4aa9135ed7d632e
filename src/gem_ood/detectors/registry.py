"""The registry: every detector by name."""

from importlib import import_module
from typing import Any

from gem_ood.detectors.base import Detector
from gem_ood.errors import InputError

__all__ = ["available", "detector_class", "make", "name_of"]

#: The file of this room and the class, by name; a file is loaded when one of its detectors is asked for.
_DETECTORS = {
    "gem": "gaussian.GEM",
    "mahalanobis": "gaussian.Mahalanobis",
    "relative-mahalanobis": "gaussian.RelativeMahalanobis",
    "class-gaussians": "class_gaussians.ClassGaussians",
    "msp": "logits.MSP",
    "max-logit": "logits.MaxLogit",
    "energy": "logits.Energy",
    "joint-energy": "probabilities.JointEnergy",
    "entropy": "probabilities.Entropy",
    "gen": "probabilities.GEN",
    "mos": "probabilities.MOS",
    "kl-matching": "probabilities.KLMatching",
    "openmax": "openmax.OpenMax",
    "react": "shaping.ReAct",
    "ash": "shaping.ASH",
    "scale": "shaping.SCALE",
    "dice": "shaping.DICE",
    "grad-norm": "boundaries.GradNorm",
    "she": "boundaries.SHE",
    "nci": "boundaries.NCI",
    "fdbd": "boundaries.FDBD",
    "knn": "neighbors.KNN",
    "nn-guide": "neighbors.NNGuide",
    "vim": "subspaces.ViM",
    "residual": "subspaces.Residual",
    "combine": "combining.Combine",
}


def available() -> tuple[str, ...]:
    """Return the names of all detectors.

    >>> available()[:3]
    ('gem', 'mahalanobis', 'relative-mahalanobis')
    """
    return tuple(_DETECTORS)


def detector_class(name: str) -> type[Detector]:
    """Return the class of this name.

    >>> detector_class("gem").__name__
    'GEM'
    """
    if name not in _DETECTORS:
        raise InputError(f"there is no detector {name!r}; choose one of {', '.join(available())}")
    module, _, class_name = _DETECTORS[name].rpartition(".")
    found: type[Detector] = getattr(import_module(f"gem_ood.detectors.{module}"), class_name)
    return found


def make(name: str, **options: Any) -> Detector:
    """Return an unfitted detector of this name with these options.

    >>> make("gem", normalize=True)
    GEM(normalize=True)
    """
    chosen = detector_class(name)
    allowed = chosen._get_param_names()
    for option in options:
        if option not in allowed:
            raise InputError(f"{name} has no option {option!r}; it takes {', '.join(allowed)}")
    return chosen(**options)


def name_of(detector: Detector) -> str:
    """Return the registered name of a detector.

    >>> name_of(make("gem"))
    'gem'
    """
    kind = type(detector)
    for name, place in _DETECTORS.items():
        if f"{kind.__module__}.{kind.__qualname__}" == f"gem_ood.detectors.{place}":
            return name
    raise InputError(f"{kind.__name__} is not a registered detector; choose one of {', '.join(available())}")
