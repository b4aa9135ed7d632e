"""What a shell completes on TAB: names that would take a second to load, kept here and held true by a test."""

__all__ = [
    "METHODS",
    "METRICS",
    "complete_covariance",
    "complete_item",
    "complete_method",
    "complete_methods",
    "complete_metrics",
]

#: What `fit --method` takes, in the order of the library.
METHODS = (
    *("gem", "mahalanobis", "relative-mahalanobis", "class-gaussians", "msp", "max-logit", "energy", "joint-energy"),
    *("entropy", "gen", "mos", "kl-matching", "openmax", "react", "ash", "scale", "dice", "grad-norm", "she", "nci"),
    *("fdbd", "knn", "nn-guide", "vim", "residual", "odin", "ash-p", "ash-b", "ash-s", "gem-unit", "gem-relative"),
    *("gem-shrunk", "recommended"),
)

#: The one that is no entry of the catalogue, which has its variants.
NOT_COMPARED = ("ash",)

METRICS = ("fpr", "auroc", "aupr_in", "aupr_out", "detection_error")

#: The claims of `verify --item`, by their letter.
CLAIMS = {"P": 39, "E": 15, "B": 9}


def complete_method(incomplete: str) -> list[str]:
    """Return the methods that begin so.

    >>> complete_method("nn")
    ['nn-guide']
    """
    return [name for name in METHODS if name.startswith(incomplete)]


def complete_methods(incomplete: str) -> list[str]:
    """Return the lists of methods that begin so, after a comma too; `all` stands alone.

    >>> complete_methods("gem,nn"), complete_methods("al")
    (['gem,nn-guide'], ['all'])
    """
    compared = [name for name in METHODS if name not in NOT_COMPARED]
    return _listed(incomplete, compared, alone=("all",))


def complete_metrics(incomplete: str) -> list[str]:
    """Return the lists of metrics that begin so.

    >>> complete_metrics("fpr,au")
    ['fpr,auroc', 'fpr,aupr_in', 'fpr,aupr_out']
    """
    return _listed(incomplete, METRICS)


def complete_covariance(incomplete: str) -> list[str]:
    """Return the named policies that begin so.

    >>> complete_covariance("o")
    ['oas']
    """
    return [name for name in ("empirical", "oas", "ledoit-wolf") if name.startswith(incomplete)]


def complete_item(incomplete: str) -> list[str]:
    """Return the claims that begin so, in the case of the letter that was typed: a shell drops what begins otherwise.

    >>> complete_item("E15"), complete_item("e15")
    (['E15'], ['e15'])
    """
    items = [f"{letter}{place}" for letter, count in CLAIMS.items() for place in range(1, count + 1)]
    typed = [item.lower() for item in items] if incomplete[:1].islower() else items
    return [item for item in typed if item.startswith(incomplete)]


def _listed(incomplete: str, names: "tuple[str, ...] | list[str]", *, alone: tuple[str, ...] = ()) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",") if comma else []
    found = [f"{before}{comma}{name}" for name in names if name.startswith(last) and name not in taken]
    return found if comma else [*(name for name in alone if name.startswith(last)), *found]
