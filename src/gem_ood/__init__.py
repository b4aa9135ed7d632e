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
        comparison,
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
    from gem_ood.comparison import compare
    from gem_ood.detectors import (
        ASH,
        DICE,
        FDBD,
        GEM,
        GEN,
        KNN,
        MOS,
        MSP,
        NCI,
        SCALE,
        SHE,
        ClassGaussians,
        Combine,
        Energy,
        Entropy,
        GradNorm,
        Head,
        JointEnergy,
        KLMatching,
        Mahalanobis,
        MaxLogit,
        NNGuide,
        OpenMax,
        ReAct,
        RelativeMahalanobis,
        Residual,
        ViM,
        load,
        recommended,
    )

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
    "Energy",
    "Entropy",
    "GradNorm",
    "Head",
    "JointEnergy",
    "KLMatching",
    "Mahalanobis",
    "MaxLogit",
    "NNGuide",
    "OpenMax",
    "ReAct",
    "RelativeMahalanobis",
    "Residual",
    "ViM",
    "__version__",
    "claims",
    "compare",
    "comparison",
    "detectors",
    "errors",
    "files",
    "gaussians",
    "load",
    "metrics",
    "recommended",
    "reports",
    "scores",
    "simulation",
    "storage",
    "theory",
    "thresholds",
]

#: Functions of this module's own, and the room that each lives in.
_FUNCTIONS = {"compare": "comparison", "load": "detectors", "recommended": "detectors"}

#: Lower-case names that are no functions are rooms.
_ROOMS = frozenset(name for name in __all__ if name.islower()) - {"__version__", *_FUNCTIONS}

#: Rooms that cannot be opened without their extra, and so are not part of `from gem_ood import *`.
_EXTRA_ROOMS = frozenset({"experiments", "torch"})


def __getattr__(name: str) -> Any:
    """Load a room when it is first asked for, so that `gem-ood --help` does not wait for scikit-learn."""
    if name in _ROOMS:
        return import_module(f"gem_ood.{name}")
    if name in _EXTRA_ROOMS:
        return _extra_room(name)
    if name in __all__:
        return getattr(import_module(f"gem_ood.{_FUNCTIONS.get(name, 'detectors')}"), name)
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
