"""The registry: every detector by name."""

from typing import Any

from gem_ood.detectors.base import Detector
from gem_ood.detectors.gaussian import GEM, Mahalanobis
from gem_ood.detectors.logits import MSP, Energy, MaxLogit
from gem_ood.errors import InputError

__all__ = ["available", "detector_class", "make", "name_of"]

_DETECTORS: dict[str, type[Detector]] = {
    "gem": GEM,
    "mahalanobis": Mahalanobis,
    "msp": MSP,
    "max-logit": MaxLogit,
    "energy": Energy,
}


def available() -> tuple[str, ...]:
    """Return the names of all detectors.

    >>> available()
    ('gem', 'mahalanobis', 'msp', 'max-logit', 'energy')
    """
    return tuple(_DETECTORS)


def detector_class(name: str) -> type[Detector]:
    """Return the class of this name.

    >>> detector_class("gem").__name__
    'GEM'
    """
    if name not in _DETECTORS:
        raise InputError(f"there is no detector {name!r}; choose one of {', '.join(available())}")
    return _DETECTORS[name]


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

    >>> name_of(GEM())
    'gem'
    """
    for name, kind in _DETECTORS.items():
        if type(detector) is kind:
            return name
    raise InputError(f"{type(detector).__name__} is not a registered detector; choose one of {', '.join(available())}")
