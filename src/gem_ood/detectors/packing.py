"""Statistics and Gaussians as named arrays and JSON values, and back with every shape and value checked."""

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import FileFormatError
from gem_ood.features import chunks, is_count
from gem_ood.gaussians import Factor, Statistics, TiedGaussians

__all__ = [
    "claim",
    "class_names",
    "number",
    "pack_gaussians",
    "pack_statistics",
    "refuse_damaged",
    "take",
    "take_counts",
    "take_draws",
    "take_priors",
    "take_whitener",
    "unpack_gaussians",
    "unpack_statistics",
    "whole",
]

#: Values are checked so many rows at a time: a mask of a whole bank of rows would take memory of its own size.
ROWS_PER_CHECK = 8192

#: How far rounding may bring a sum of weights away from one.
WEIGHTS_ROUNDING = 1e-6

Tensors = dict[str, NDArray[Any]]
Values = dict[str, Any]


def pack_statistics(statistics: Statistics) -> tuple[Tensors, Values]:
    """Return statistics as arrays and values."""
    tensors: Tensors = {
        "statistics.counts": statistics.counts,
        "statistics.means": statistics.means,
        "statistics.scatter": statistics.scatter,
    }
    values = {
        "classes": statistics.classes.tolist(),
        "resolution": statistics.resolution,
        "fourth_moment": statistics.fourth_moment,
        "is_labelled": statistics.is_labelled,
    }
    return tensors, values


def unpack_statistics(tensors: Tensors, values: Values) -> Statistics:
    """Return the statistics that were packed."""
    classes = class_names(values["classes"], is_sorted=True)
    means = take(tensors, "statistics.means", (len(classes), None))
    dimension = means.shape[1]
    scatter = take(tensors, "statistics.scatter", (dimension, dimension))
    refuse_damaged((np.diag(scatter) < 0.0).any(), "statistics.scatter", "has a negative sum of squares")
    moment = values["fourth_moment"]
    return Statistics(
        classes=classes,
        counts=take_counts(tensors, "statistics.counts", len(classes), kind="i"),
        means=means,
        scatter=scatter,
        resolution=number(values["resolution"], "resolution", least=0.0, most=1.0),
        fourth_moment=None if moment is None else number(moment, "fourth_moment", least=0.0),
        is_labelled=claim(values["is_labelled"], "is_labelled"),
    )


def pack_gaussians(gaussians: TiedGaussians, name: str) -> tuple[Tensors, Values]:
    """Return Gaussians as arrays and values; the factor is stored, so that loaded scores are the same to the bit."""
    tensors: Tensors = {
        f"{name}.class_means": gaussians.class_means,
        f"{name}.priors": gaussians.priors,
        f"{name}.covariance": gaussians.covariance,
        f"{name}.whitener": gaussians.factor.whitener,
    }
    values = {
        "classes": gaussians.classes.tolist(),
        "shrinkage": gaussians.shrinkage,
        "log_determinant": gaussians.factor.log_determinant,
    }
    return tensors, values


def unpack_gaussians(tensors: Tensors, values: Values, name: str) -> TiedGaussians:
    """Return the Gaussians that were packed."""
    classes = class_names(values["classes"])
    means = take(tensors, f"{name}.class_means", (len(classes), None))
    dimension = means.shape[1]
    factor = Factor(
        whitener=take_whitener(tensors, f"{name}.whitener", (dimension, None)),
        log_determinant=number(values["log_determinant"], "log_determinant"),
    )
    return TiedGaussians(
        classes=classes,
        class_means=means,
        priors=take_priors(tensors, f"{name}.priors", len(classes)),
        covariance=take(tensors, f"{name}.covariance", (dimension, dimension)),
        factor=factor,
        shrinkage=number(values["shrinkage"], "shrinkage", least=0.0, most=1.0),
    )


def class_names(names: list[Any], *, is_sorted: bool = False) -> NDArray[Any]:
    """Return class names as an array of whole numbers or of strings, each of them once, in order where it is asked."""
    if not isinstance(names, list) or len(set(map(str, names))) < len(names):
        raise FileFormatError("the file's class names are no list of different names; save the detector again")
    if names and all(isinstance(name, str) for name in names):
        found = np.array(names, dtype=str)
    elif names and all(isinstance(name, int) and not isinstance(name, bool) for name in names):
        found = np.array(names, dtype=np.int64)
    else:
        raise FileFormatError("the file's class names are neither whole numbers nor strings; save the detector again")
    refuse_damaged(is_sorted and (found[1:] <= found[:-1]).any(), "classes", "is not in order")
    return found


def whole(value: Any, name: str, *, least: int = 0) -> int:
    """Return a whole number of the header, of at least this size.

    >>> whole(3, "n_seen")
    3
    """
    refuse_damaged(not is_count(value, least=least), name, f"is {value!r} and no whole number of at least {least}")
    return int(value)


def number(value: Any, name: str, *, least: float = -np.inf, most: float = np.inf) -> float:
    """Return a finite number of the header, within these bounds.

    >>> number(0.5, "shrinkage", least=0.0, most=1.0)
    0.5
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    is_fitting = is_number and bool(np.isfinite(float(value))) and least <= value <= most
    refuse_damaged(not is_fitting, name, f"is {value!r} and no finite number that it can be")
    return float(value)


def claim(value: Any, name: str) -> bool:
    """Return a yes or no of the header.

    >>> claim(True, "is_labelled")
    True
    """
    refuse_damaged(not isinstance(value, bool), name, f"is {value!r} and neither true nor false")
    return bool(value)


def refuse_damaged(is_damaged: Any, name: str, fault: str) -> None:
    """Raise FileFormatError if what the file holds under this name has this fault.

    >>> refuse_damaged(True, "alpha", "is negative")
    Traceback (most recent call last):
        ...
    gem_ood.errors.FileFormatError: the file's alpha is negative; save the detector again
    """
    if is_damaged:
        raise FileFormatError(f"the file's {name} {fault}; save the detector again")


def take_counts(
    tensors: Tensors, name: str, n_counts: int, *, kind: str = "f", may_be_empty: bool = False
) -> NDArray[Any]:
    """Return numbers of rows: whole, none negative and, unless they may all be 0, some of them positive."""
    counts = take(tensors, name, (n_counts,), kind=kind)
    is_whole = bool(((counts >= 0) & (counts == np.floor(counts))).all())
    refuse_damaged(not is_whole or not (may_be_empty or counts.any()), name, "holds no numbers of rows")
    return counts


def take_draws(tensors: Tensors, name: str, n_rows: int) -> NDArray[np.float64]:
    """Return the numbers drawn for a sample of rows, from 0 to 1."""
    draws = take(tensors, name, (n_rows,))
    refuse_damaged(((draws < 0.0) | (draws >= 1.0)).any(), name, "holds draws outside 0 to 1")
    return draws


def take_priors(tensors: Tensors, name: str, n_classes: int) -> NDArray[np.float64]:
    """Return mixture weights: none negative, and with the sum 1."""
    priors = take(tensors, name, (n_classes,))
    is_weighting = bool((priors >= 0.0).all()) and abs(float(priors.sum()) - 1.0) <= WEIGHTS_ROUNDING
    refuse_damaged(not is_weighting, name, "holds no weights that sum to 1")
    return priors


def take_whitener(tensors: Tensors, name: str, shape: tuple[int | None, ...]) -> NDArray[np.float64]:
    """Return whiteners, m × r or k × m × r, of at least 1 and at most m directions, each of some length."""
    whiteners = take(tensors, name, shape)
    has_directions = 1 <= whiteners.shape[-1] <= whiteners.shape[-2] and whiteners.any(axis=-2).all()
    refuse_damaged(not has_directions, name, "holds no directions that distances can be measured in")
    return whiteners


def take(
    tensors: Tensors,
    name: str,
    shape: tuple[int | None, ...],
    *,
    kind: str = "f",
    itemsizes: tuple[int, ...] = (8,),
    is_finite: bool = True,
) -> NDArray[Any]:
    """Return one array of the file after checking its shape, type (its numbers may have so many bytes) and values."""
    if name not in tensors:
        raise FileFormatError(f"the file lacks the array {name!r}; save the detector again")
    array = tensors[name]
    fits = array.ndim == len(shape) and all(want in (None, have) for want, have in zip(shape, array.shape, strict=True))
    if not fits or array.dtype.kind != kind or array.dtype.itemsize not in itemsizes:
        widths = " or ".join(f"{8 * size}-bit" for size in itemsizes)
        raise FileFormatError(
            f"the file's array {name!r} has shape {array.shape} and type {array.dtype} where {shape} of {widths} "
            f"numbers was expected; save the detector again"
        )
    rows = np.atleast_1d(array)
    for part in chunks(len(rows), ROWS_PER_CHECK):
        if np.isnan(rows[part]).any() or (is_finite and not np.isfinite(rows[part]).all()):
            raise FileFormatError(f"the file's array {name!r} holds NaN or infinity; save the detector again")
    return array
