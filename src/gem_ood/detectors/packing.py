"""Statistics and Gaussians as named arrays and JSON values, and back with every shape checked."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import FileFormatError
from gem_ood.features import chunks
from gem_ood.gaussians import Factor, Statistics, TiedGaussians

__all__ = [
    "class_names",
    "pack_gaussians",
    "pack_statistics",
    "take",
    "unpack_gaussians",
    "unpack_statistics",
]

#: Values are checked so many rows at a time: a mask of a whole bank of rows would take memory of its own size.
ROWS_PER_CHECK = 8192

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
    classes = class_names(values["classes"])
    means = take(tensors, "statistics.means", (len(classes), None))
    dimension = means.shape[1]
    return Statistics(
        classes=classes,
        counts=take(tensors, "statistics.counts", (len(classes),), kind="i"),
        means=means,
        scatter=take(tensors, "statistics.scatter", (dimension, dimension)),
        resolution=float(values["resolution"]),
        fourth_moment=None if values["fourth_moment"] is None else float(values["fourth_moment"]),
        is_labelled=bool(values["is_labelled"]),
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
        whitener=take(tensors, f"{name}.whitener", (dimension, None)),
        log_determinant=float(values["log_determinant"]),
    )
    return TiedGaussians(
        classes=classes,
        class_means=means,
        priors=take(tensors, f"{name}.priors", (len(classes),)),
        covariance=take(tensors, f"{name}.covariance", (dimension, dimension)),
        factor=factor,
        shrinkage=float(values["shrinkage"]),
    )


def class_names(names: list[Any]) -> NDArray[Any]:
    """Return class names as an array of whole numbers or of strings."""
    if names and all(isinstance(name, str) for name in names):
        return np.array(names, dtype=str)
    if names and all(isinstance(name, int) for name in names):
        return np.array(names, dtype=np.int64)
    raise FileFormatError("the file's class names are neither whole numbers nor strings; save the detector again")


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
