"""The catalogue: every detector with its paper's defaults, ready to be fitted and compared."""

from collections.abc import Iterable
from typing import Any

from numpy.typing import ArrayLike

from gem_ood.detectors.base import Detector
from gem_ood.detectors.head import Head
from gem_ood.detectors.registry import make
from gem_ood.errors import InputError

__all__ = ["catalogue", "entries"]

#: The registered name and options of every entry, in the order of tables.
_ENTRIES: dict[str, tuple[str, dict[str, Any]]] = {
    "msp": ("msp", {}),
    "odin": ("msp", {"temperature": 1000.0}),
    "max-logit": ("max-logit", {}),
    "energy": ("energy", {}),
    "joint-energy": ("joint-energy", {}),
    "entropy": ("entropy", {}),
    "gen": ("gen", {}),
    "kl-matching": ("kl-matching", {}),
    "openmax": ("openmax", {}),
    "mos": ("mos", {}),
    "react": ("react", {}),
    "ash-p": ("ash", {"variant": "p"}),
    "ash-b": ("ash", {"variant": "b"}),
    "ash-s": ("ash", {"variant": "s"}),
    "scale": ("scale", {}),
    "dice": ("dice", {}),
    "grad-norm": ("grad-norm", {}),
    "she": ("she", {}),
    "nci": ("nci", {}),
    "fdbd": ("fdbd", {}),
    "knn": ("knn", {}),
    "nn-guide": ("nn-guide", {}),
    "vim": ("vim", {}),
    "residual": ("residual", {}),
    "mahalanobis": ("mahalanobis", {}),
    "relative-mahalanobis": ("relative-mahalanobis", {}),
    "class-gaussians": ("class-gaussians", {}),
    "gem": ("gem", {}),
    "gem-unit": ("gem", {"normalize": True}),
    "gem-relative": ("gem", {"relative": True}),
    "gem-shrunk": ("gem", {"covariance": "oas"}),
}

#: The entry that is no registered detector by itself.
RECOMMENDED = "recommended"


def entries() -> tuple[str, ...]:
    """Return the names of all entries: detectors, their variants, and the all-rounder.

    >>> entries()[-1]
    'recommended'
    """
    return (*_ENTRIES, RECOMMENDED)


def catalogue(
    names: Iterable[str] | None = None, *, head: Head | None = None, groups: ArrayLike | None = None
) -> dict[str, Detector]:
    """Return unfitted detectors by the name of their entry, with the defaults of their papers.

    Args:
        names: Which entries; None for all that can be made from what is given.
        head: The classifier's last layer; without it the entries that read logits are left out, for rows are features.
        groups: The group of each logit, for MOS, which is left out without.

    >>> sorted(catalogue(["gem", "gem-unit"]))
    ['gem', 'gem-unit']
    """
    if names is not None:
        return {name: _made(name, head, groups) for name in names}
    return {name: _made(name, head, groups) for name in entries() if not _lacks(name, head, groups)}


def _lacks(name: str, head: Head | None, groups: ArrayLike | None) -> str | None:
    """Return what an entry needs and is not given, or None."""
    if name == RECOMMENDED:
        return None
    registered, _ = _ENTRIES[name]
    if head is None and "head" in type(make(registered))._get_param_names():
        return "head"
    return "groups" if registered == "mos" and groups is None else None


def _made(name: str, head: Head | None, groups: ArrayLike | None) -> Detector:
    if name not in entries():
        raise InputError(f"there is no method {name!r}; choose among {', '.join(entries())}")
    missing = _lacks(name, head, groups)
    if missing is not None:
        remedy = "the classifier's last layer" if missing == "head" else "the group of each logit"
        raise InputError(f"{name} needs {missing}; pass {remedy}")
    if name == RECOMMENDED:
        from gem_ood.detectors.all_rounder import recommended

        return recommended(head=head)
    registered, options = _ENTRIES[name]
    given = {"head": head} if "head" in type(make(registered))._get_param_names() else {}
    return make(registered, **given, **({"groups": groups} if registered == "mos" else {}), **options)
