"""Names of classes: those met among labels, in order, and which logit each of them names."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.batches import Batches, reduce_rows
from gem_ood.errors import InputError
from gem_ood.features import as_features, as_labels

__all__ = ["labels_met", "names_found", "places_of", "sorted_names"]


def labels_met(labels: ArrayLike | None, n_rows: int) -> set[Any]:
    """Return the different labels of so many rows.

    >>> sorted(labels_met(["b", "a", "b"], 3))
    ['a', 'b']
    """
    return set() if labels is None else set(np.unique(as_labels(labels, n_rows)).tolist())


def sorted_names(names: set[Any]) -> list[Any]:
    """Return class names in order; raise if some are whole numbers and others strings.

    >>> sorted_names({"b", "a"})
    ['a', 'b']
    """
    if len({isinstance(name, str) for name in names}) > 1:
        raise InputError("some labels are whole numbers and others strings; pass labels of one kind")
    return sorted(names)


def names_found(batches: Batches) -> NDArray[Any] | None:
    """Return the labels of all batches, sorted, or None where some batch has none.

    >>> names_found([([[0.0], [1.0]], ["b", "a"])])
    array(['a', 'b'], dtype='<U1')
    """
    found = reduce_rows(batches, _labels_of_all, _joined)
    return None if found is None else np.array(sorted_names(found))


def _labels_of_all(batches: Batches) -> set[Any] | None:
    found: set[Any] = set()
    for X, y in batches:
        if y is None:
            return None
        found |= labels_met(y, len(as_features(X)))
    return found


def _joined(one: set[Any] | None, other: set[Any] | None) -> set[Any] | None:
    return None if one is None or other is None else one | other


def places_of(labels: NDArray[Any], names: NDArray[Any] | None, n_logits: int) -> NDArray[np.intp]:
    """Return which logit each label names: by the names of all logits, or, for whole numbers, the label itself.

    >>> places_of(np.array(["ant", "zebra"]), np.array(["zebra", "ant"]), 2)
    array([1, 0])
    """
    remedy = "pass classes, all names in the order of the logits, or labels that number the logits from 0"
    if names is not None and len(names) == n_logits:
        sorted_names({*names[:1].tolist(), *labels[:1].tolist()})  # refuses numbers among words
        order = np.argsort(names)
        at = np.minimum(np.searchsorted(names, labels, sorter=order), n_logits - 1)
        places = order[at]
        unknown = names[places] != labels
    elif labels.dtype.kind == "i":
        places, unknown = labels.astype(np.intp), (labels < 0) | (labels >= n_logits)
    else:
        n_names = 0 if names is None else len(names)
        raise InputError(f"labels has {n_names} names but the classifier has {n_logits} logits; {remedy}")
    if unknown.any():
        label = labels[int(np.argmax(unknown))].item()
        raise InputError(f"label {label!r} names none of the {n_logits} logits; {remedy}")
    return places
