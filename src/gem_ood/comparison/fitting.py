"""fit_methods: the catalogue, or some of it, fitted to one set of rows."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.comparison.rows import batches_or_none
from gem_ood.detectors import Combine, Detector, Head
from gem_ood.detectors.cataloguing import catalogue, chosen_entries, entries, lacking
from gem_ood.detectors.head_reading import HeadDetector
from gem_ood.errors import InputError, MissingExtraError
from gem_ood.features import as_labels

__all__ = ["FittedMethods", "check_classes", "fit_methods"]

#: An opened file of at most this many bytes of features is read once and held for all methods: 1 GB.
HELD_BYTES = 1 << 30


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
    classes: ArrayLike | None = None,
    logits: bool = False,
    on_method: Callable[[str, int, int], None] | None = None,
) -> FittedMethods:
    """Return entries of the catalogue fitted to these rows.

    An opened feature file of up to 1 GB is read once for all of them; a larger one is streamed for each. KL matching,
    whose paper averages over held-out rows, is fitted to these rows like all others.

    Args:
        rows: An array, or a re-iterable of (features, labels or None) batches such as an opened feature file.
        labels: One label per row of an array.
        methods: Which entries; None for all. An entry that was named and cannot be fitted is an error; of all, it is
            left out with the reason.
        head: The classifier's last layer, for the entries that read logits.
        groups: The group of each logit, for MOS.
        classes: All class names in the order of the logits, for the entries that read these. Without it the names met
            are taken in sorted order, and whole numbers from 0 to k − 1 name the logits themselves.
        logits: Say that rows are logits: the entries that read these need no head, those that read features and logits
            together are left out, and scores of features take the logits as features.
        on_method: Called before a method is fitted with its name, its place from 1 and how many there are.

    Example:
        >>> rows, labels = np.random.default_rng(0).normal(size=(90, 3)), np.arange(90) % 3
        >>> list(fit_methods(rows, labels, methods=["gem", "gem-unit"]).detectors)
        ['gem', 'gem-unit']
    """
    if isinstance(rows, Iterator):
        raise InputError("rows is an iterator that can be read only once; pass an array, a list or another re-iterable")
    chosen = entries() if methods is None else chosen_entries(methods)
    if labels is not None and batches_or_none(rows) is not None:
        raise InputError("labels came beside batches, which carry their own; pass only one of them")
    _check_head(head, rows, logits=logits)
    names: NDArray[Any] | None = None
    if classes is not None:
        n_logits = head.n_classes if head is not None else _width(rows) if logits else None
        names = check_classes(classes, n_logits)
    if len(chosen) > 1 or names is not None:  # labels are compared with the names
        rows = _held(rows)
    _check_labels(rows, labels, names)
    given: dict[str, Any] = {"head": head, "groups": groups, "logits": logits}
    fitted: dict[str, Detector] = {}
    left_out: dict[str, str] = {}
    for place, name in enumerate(chosen, start=1):
        if on_method is not None:
            on_method(name, place, len(chosen))
        try:
            fitted[name] = _fitted(catalogue([name], **given)[name], rows, labels, names)
        except (InputError, MissingExtraError) as error:
            reason = str(error).removeprefix(f"{name} ")
            if methods is not None:
                raise type(error)(f"{name}: {reason}") from error
            left_out[name] = reason
    if not fitted:
        # What was not given is known to whoever left it out; what is wrong with the rows may not be.
        name = next((name for name in left_out if lacking(name, **given) is None), next(iter(left_out)))
        raise InputError(f"no method could be fitted; {name}: {left_out[name]}")
    return FittedMethods(fitted, left_out)


def check_classes(classes: ArrayLike, n_logits: int | None = None) -> NDArray[Any]:
    """Return class names as an array; raise unless each is there once and each of so many logits, if given, has one.

    >>> check_classes(["cat", "ant"], 2)
    array(['cat', 'ant'], dtype='<U3')
    """
    names = as_labels(classes, len(np.asarray(classes)), name="classes") if np.ndim(classes) == 1 else np.empty(0)
    if len(names) == 0:
        raise InputError("classes names no class; pass all names in the order of the logits")
    found, counts = np.unique(names, return_counts=True)
    if counts.max() > 1:
        raise InputError(f"classes names {found[counts.argmax()].item()!r} twice; pass each name once")
    if n_logits is not None and len(names) != n_logits:
        raise InputError(
            f"classes has {len(names)} names but there are {n_logits} logits; pass one name per logit, in their order"
        )
    return names


@dataclass(frozen=True, eq=False)
class _Held:
    """The batches of an opened file in memory, under the names of its columns; reading them is watched as the file is.

    What the file itself says of its rows is said here too, so that a detector cannot tell the two apart.
    """

    batches: tuple[tuple[NDArray[Any], NDArray[Any] | None], ...]
    n_features: int
    feature_names: tuple[str, ...] | None
    on_rows: Callable[[int], None] | None

    def __iter__(self) -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
        n_read = 0
        for features, labels in self.batches:
            yield features, labels
            n_read += len(features)
            if self.on_rows is not None:
                self.on_rows(n_read)


def _held(rows: Any) -> Any:
    """Return an opened file with its rows in memory if they are few enough, and anything else as it is."""
    if hasattr(rows, "__array__") or not hasattr(rows, "n_features") or not hasattr(rows, "feature_names"):
        return rows
    if rows.n_rows is not None and 4 * rows.n_rows * rows.n_features > HELD_BYTES:  # even as float32
        return rows
    batches, n_bytes = [], 0
    for features, labels in rows:
        n_bytes += features.nbytes
        if n_bytes > HELD_BYTES:
            return rows
        batches.append((features, labels))
    return _Held(tuple(batches), rows.n_features, rows.feature_names, getattr(rows, "on_rows", None))


def _fitted(detector: Detector, rows: Any, labels: ArrayLike | None, classes: ArrayLike | None) -> Detector:
    if not isinstance(detector, HeadDetector | Combine):
        classes = None  # the order of the logits is nothing to a score of features, which may be fitted without labels
    if batches_or_none(rows) is None:
        return detector.fit(rows, labels, classes=classes)
    return detector.fit_batches(rows, classes=classes)


def _width(rows: Any) -> int | None:
    """Return how wide rows are where that is known before they are read."""
    shape: tuple[int, ...] = getattr(rows, "shape", ())
    width: int | None = shape[1] if len(shape) == 2 else getattr(rows, "n_features", None)
    return width


def _check_head(head: Head | None, rows: Any, *, logits: bool) -> None:
    """Raise for a head of other features, rather than leave out every entry that reads it."""
    if not isinstance(head, Head | None):
        raise InputError(f"head is a {type(head).__name__}; pass Head(weight, bias)")
    if logits and head is not None:
        raise InputError("logits=True says that rows are logits, but a head reads features; pass one of the two")
    width = _width(rows)
    if head is not None and width is not None and head.n_features != width:
        raise InputError(f"rows has {width} features but the head takes {head.n_features}; pass the features it reads")


def _check_labels(rows: Any, labels: ArrayLike | None, classes: NDArray[Any] | None) -> None:
    """Raise for a label that is none of the classes, where all labels are at hand."""
    if classes is None:
        return
    held = [y for _, y in rows.batches] if isinstance(rows, _Held) else [labels]
    for given in held:
        names = np.unique(as_labels(given, len(np.asarray(given)))) if given is not None else classes
        unknown = [name for name in names.tolist() if name not in set(classes.tolist())]
        if unknown:
            raise InputError(
                f"label {unknown[0]!r} is none of the classes; pass classes, all names in the order of the logits"
            )
