"""gem-ood: tell in-distribution inputs from out-of-distribution ones, post hoc, on any classifier.

>>> import numpy as np
>>> from gem_ood import GEM
>>> rng = np.random.default_rng(0)
>>> features, labels = rng.normal(size=(300, 4)), np.arange(300) % 3
>>> detector = GEM().fit(features[:200], labels[:200]).calibrate(features[200:], tpr=0.95)
>>> detector.is_ood(np.full((1, 4), 9.0))
array([ True])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gem_ood._version import __version__

if TYPE_CHECKING:
    from gem_ood import (
        claims,
        detectors,
        errors,
        files,
        gaussians,
        metrics,
        reports,
        scores,
        simulation,
        storage,
        theory,
        thresholds,
    )
    from gem_ood.detectors import GEM, MSP, Energy, Head, Mahalanobis, MaxLogit, load

__all__ = [
    "GEM",
    "MSP",
    "Energy",
    "Head",
    "Mahalanobis",
    "MaxLogit",
    "__version__",
    "claims",
    "detectors",
    "errors",
    "files",
    "gaussians",
    "load",
    "metrics",
    "reports",
    "scores",
    "simulation",
    "storage",
    "theory",
    "thresholds",
]

#: What is public here and lives in no detector: lower-case names are rooms.
_ROOMS = frozenset(name for name in __all__ if name.islower()) - {"__version__", "load"}

#: Rooms that cannot be opened without their extra, and so are not part of `from gem_ood import *`.
_EXTRA_ROOMS = frozenset({"experiments", "torch"})


def __getattr__(name: str) -> Any:
    """Load a room when it is first asked for, so that `gem-ood --help` does not wait for scikit-learn."""
    if name in _ROOMS:
        return import_module(f"gem_ood.{name}")
    if name in _EXTRA_ROOMS:
        return _extra_room(name)
    if name in __all__:
        return getattr(import_module("gem_ood.detectors"), name)
    raise AttributeError(f"module 'gem_ood' has no attribute {name!r}")


def _extra_room(name: str) -> Any:
    from gem_ood.errors import MissingExtraError

    try:
        return import_module(f"gem_ood.{name}")
    except MissingExtraError as error:
        # What looks into a module, as hasattr and help do, expects this error of a name that is not there.
        raise AttributeError(f"gem_ood.{name} cannot be opened: {error}") from error


def __dir__() -> list[str]:
    return sorted(__all__)
