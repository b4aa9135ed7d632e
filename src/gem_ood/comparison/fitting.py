"""fit_methods: the catalogue, or some of it, fitted to one set of rows."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from gem_ood.comparison.rows import batches_or_none
from gem_ood.detectors import Detector, Head
from gem_ood.detectors.catalogue import catalogue, entries
from gem_ood.errors import InputError, MissingExtraError

__all__ = ["FittedMethods", "fit_methods"]


@dataclass(frozen=True)
class FittedMethods:
    """Fitted detectors by the name of their entry in the catalogue, and why others were left out."""

    detectors: Mapping[str, Detector]
    left_out: Mapping[str, str]


def fit_methods(
    rows: Any,
    labels: ArrayLike | None = None,
    *,
    methods: Iterable[str] | None = None,
    head: Head | None = None,
    groups: ArrayLike | None = None,
) -> FittedMethods:
    """Return entries of the catalogue fitted to these rows.

    Args:
        rows: An array, or a re-iterable of (features, labels or None) batches such as an opened feature file.
        labels: One label per row of an array.
        methods: Which entries; None for all. An entry that was named and cannot be fitted is an error; of all, it is
            left out with the reason.
        head: The classifier's last layer, for the entries that read logits.
        groups: The group of each logit, for MOS.

    Example:
        >>> import numpy as np
        >>> rows, labels = np.random.default_rng(0).normal(size=(90, 3)), np.arange(90) % 3
        >>> list(fit_methods(rows, labels, methods=["gem", "gem-unit"]).detectors)
        ['gem', 'gem-unit']
    """
    if isinstance(rows, Iterator):
        raise InputError("rows is an iterator that can be read only once; pass an array, a list or another re-iterable")
    names = entries() if methods is None else _chosen(methods)
    _check_head(head, rows)
    fitted: dict[str, Detector] = {}
    left_out: dict[str, str] = {}
    for name in names:
        try:
            fitted[name] = _fitted(catalogue([name], head=head, groups=groups)[name], rows, labels)
        except (InputError, MissingExtraError) as error:
            reason = str(error).removeprefix(f"{name} ")
            if methods is not None:
                raise type(error)(f"{name}: {reason}") from error
            left_out[name] = reason
    if not fitted:
        name, reason = next(iter(left_out.items()), ("none", "none was named"))
        raise InputError(f"no method could be fitted; the first, {name}: {reason}")
    return FittedMethods(fitted, left_out)


def _chosen(methods: Iterable[str]) -> tuple[str, ...]:
    names = (methods,) if isinstance(methods, str) else tuple(methods)
    if not names:
        raise InputError(f"no method is named; choose among {', '.join(entries())}")
    for name in names:
        if name not in entries():
            raise InputError(f"there is no method {name!r}; choose among {', '.join(entries())}")
        if names.count(name) > 1:
            raise InputError(f"the method {name!r} is named twice; name each once")
    return names


def _fitted(detector: Detector, rows: Any, labels: ArrayLike | None) -> Detector:
    if batches_or_none(rows) is None:
        return detector.fit(rows, labels)
    if labels is not None:
        raise InputError("labels came beside batches, which carry their own; pass only one of them")
    return detector.fit_batches(rows)


def _check_head(head: Head | None, rows: Any) -> None:
    """Raise for a head of other features, rather than leave out every entry that reads it."""
    shape: tuple[int, ...] = getattr(rows, "shape", ())
    width = shape[1] if len(shape) == 2 else getattr(rows, "n_features", None)
    if head is not None and width is not None and head.n_features != width:
        raise InputError(f"rows has {width} features but the head takes {head.n_features}; pass the features it reads")
