"""The catalogue: every detector with its paper's defaults, ready to be fitted and compared."""

from collections.abc import Iterable
from inspect import Parameter, signature
from typing import Any

from numpy.typing import ArrayLike

from gem_ood.detectors.base import Detector
from gem_ood.detectors.head import Head
from gem_ood.detectors.registry import available, detector_class, make
from gem_ood.errors import InputError

__all__ = ["catalogue", "chosen_entries", "entries", "lacking", "make_method", "method_options", "methods"]

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


def chosen_entries(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of entries, one or several, each checked and there once.

    >>> chosen_entries("gem"), chosen_entries(["knn", "gem"])
    (('gem',), ('knn', 'gem'))
    """
    chosen = (names,) if isinstance(names, str) else tuple(names)
    if not chosen:
        raise InputError(f"no method is named; choose among {', '.join(entries())}")
    for name in chosen:
        if name not in entries():
            raise InputError(f"there is no method {name!r}; choose among {', '.join(entries())}")
        if chosen.count(name) > 1:
            raise InputError(f"the method {name!r} is named twice; name each once")
    return chosen


def catalogue(
    names: Iterable[str] | None = None,
    *,
    head: Head | None = None,
    groups: ArrayLike | None = None,
    logits: bool = False,
) -> dict[str, Detector]:
    """Return unfitted detectors by the name of their entry, with the defaults of their papers.

    Args:
        names: Which entries, one or several; None for all that can be made from what is given.
        head: The classifier's last layer; without it the entries that read logits are left out, for rows are features.
        groups: The group of each logit, for MOS, which is left out without.
        logits: Say that rows are logits: the entries that read these then need no head, those that read features and
            logits together are left out, and scores of features take the logits as features.

    >>> sorted(catalogue(["gem", "gem-unit"]))
    ['gem', 'gem-unit']
    >>> "energy" in catalogue(), "energy" in catalogue(logits=True)
    (False, True)
    """
    if logits and head is not None:
        raise InputError("logits=True says that rows are logits, but a head reads features; pass one of the two")
    chosen = entries() if names is None else chosen_entries(names)
    made: dict[str, Detector] = {}
    for name in chosen:
        reason = lacking(name, head=head, groups=groups, logits=logits)
        if reason is None:
            made[name] = _made(name, head, groups)
        elif names is not None:
            raise InputError(f"{name} {reason}")
    return made


def lacking(
    name: str, *, head: Head | None = None, groups: ArrayLike | None = None, logits: bool = False
) -> str | None:
    """Return what an entry needs and is not given, or None.

    >>> lacking("energy"), lacking("energy", logits=True)
    ("needs head; pass the classifier's last layer", None)
    """
    if name == RECOMMENDED:
        return None
    registered, options = _ENTRIES[name]
    detector = make(registered, **options)
    needs_both = getattr(detector, "needs_head", False)
    if logits and needs_both:
        return "needs features and logits together, but rows are logits; pass features and head"
    if head is None and not logits and (detector.reads_logits or needs_both):
        return "needs head; pass the classifier's last layer"
    return "needs groups; pass the group of each logit" if registered == "mos" and groups is None else None


def _made(name: str, head: Head | None, groups: ArrayLike | None) -> Detector:
    takes = method_options(name)
    given = {"head": head, "groups": groups}
    return make_method(name, **{option: value for option, value in given.items() if option in takes})


def methods() -> tuple[str, ...]:
    """Return every name that `make_method` takes: registered detectors, but for Combine, then the other entries.

    >>> "ash" in methods(), "ash-b" in methods(), "combine" in methods()
    (True, True, False)
    """
    return tuple(dict.fromkeys((*(name for name in available() if name != "combine"), *entries())))


def method_options(name: str) -> dict[str, Parameter]:
    """Return the options of a registered detector or of an entry, by name.

    >>> list(method_options("knn"))[:2], method_options("gem-unit")["normalize"].default
    (['k', 'normalize'], True)
    """
    if name not in methods():
        raise InputError(f"there is no detector {name!r}; choose one of {', '.join(methods())}")
    if name == RECOMMENDED:
        from gem_ood.detectors.all_rounder import recommended

        own = {key: option for key, option in signature(recommended).parameters.items() if key != "options"}
        return own | _parameters("combine", without="detectors")
    registered, defaults = _ENTRIES.get(name, (name, {}))
    options = _parameters(registered)
    return options | {key: options[key].replace(default=value) for key, value in defaults.items()}


def _parameters(registered: str, *, without: str = "") -> dict[str, Parameter]:
    parameters = signature(detector_class(registered)).parameters
    return {name: parameter for name, parameter in parameters.items() if name != without}


def make_method(name: str, **options: Any) -> Detector:
    """Return an unfitted detector by its registered name or by its entry, whose options are then the defaults.

    >>> make_method("gem-unit", covariance="oas")
    GEM(covariance='oas', normalize=True)
    """
    takes = method_options(name)
    for option in options:
        if option not in takes:
            raise InputError(f"{name} has no option {option!r}; it takes {', '.join(takes)}")
    if name == RECOMMENDED:
        from gem_ood.detectors.all_rounder import recommended

        return recommended(**options)
    registered, defaults = _ENTRIES.get(name, (name, {}))
    return make(registered, **(defaults | options))
