"""OpenMax: Weibull tails of the distances to each class's mean activation, and the score that they give."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from gem_ood.errors import InputError
from gem_ood.features import unit_length
from gem_ood.gaussians.log_sums import log_sum_exp
from gem_ood.scores.probabilities import as_logits

__all__ = ["DISTANCES", "ActivationModel", "ClassMeans", "fit_weibull", "openmax"]

DISTANCES = ("eucos", "euclidean", "cosine")

#: The authors' code divides Euclidean distances by this, to bring them to the size of cosine distances.
EUCLIDEAN_UNIT = 200.0

#: libMR moves the smallest distance of a tail here before it fits a Weibull distribution with its origin at zero.
TRANSLATION = 10_000.0

#: Distances closer than this are equal to libMR, whose float64 numbers lie beyond the translation.
TAIL_RESOLUTION = 1e-12


def fit_weibull(tail: ArrayLike) -> tuple[float, float]:
    """Return shape and log-scale of the Weibull distribution most likely to give these distances; shape 0 if none is.

    As in libMR, the distances are moved so that the smallest is at 10,000; the log-scale is that of the moved distances
    in units of 10,000. The shape κ solves Σ z e^{κz} / Σ e^{κz} − 1/κ = mean(z), z being their logarithms: the left
    side grows with κ, so there is one solution. Equal distances, or a single one, have no most likely shape.

    >>> shape, log_scale = fit_weibull([0.0, 0.1, 0.3])
    >>> fit_weibull([0.2, 0.2])
    (0.0, 0.0)
    """
    distances = np.asarray(tail, dtype=np.float64)
    smallest, largest = distances.min(), distances.max()
    if largest - smallest <= TAIL_RESOLUTION * max(1.0, float(largest)):
        return 0.0, 0.0
    logs = np.log1p((distances - smallest) / TRANSLATION)
    top = float(logs.max())
    scaled = logs / top - 1.0  # from −1 to 0, so that neither size nor sign of the logarithms matters below
    mean = float(scaled.mean())

    def slope(shape: float) -> float:
        weights = np.exp(shape * scaled)
        return float(weights @ scaled / weights.sum()) - 1.0 / shape - mean

    low = high = -1.0 / mean  # the weighted mean is at most 0, so the slope is not positive here
    while slope(high) <= 0.0:
        high *= 2.0
    shape = float(brentq(slope, low, high, xtol=1e-14 * low, rtol=4.0 * np.finfo(np.float64).eps))
    log_scale = top * (1.0 + float(np.log(np.exp(shape * scaled).mean())) / shape)
    return shape / top, log_scale


class ClassMeans:
    """The mean logits of every class, k × k, and how far rows are from them.

    The distance is Euclidean/200, cosine, or their sum (`"eucos"`). A row of zeros has no direction: its cosine
    distance to any mean, and that of any row to a mean of zeros, is 1.

    >>> means = ClassMeans(np.array([[0.0, 0.0], [-3.0, -4.0]]), distance="cosine")
    >>> means.distances(np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[1, 0], [1, 0]]))
    array([[2., 1.],
           [1., 1.]])
    """

    def __init__(self, means: NDArray[np.float64], *, distance: str = "eucos") -> None:
        if distance not in DISTANCES:
            raise InputError(f"distance is {distance!r}; pass one of {', '.join(map(repr, DISTANCES))}")
        self.means = means
        self._directions = None if distance == "euclidean" else unit_length(means)
        self._is_cosine = distance == "cosine"

    def distances(self, logits: NDArray[np.float64], places: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the distances of each row to the means at its places, n × a for n × a places."""
        found = np.zeros(places.shape)
        rows = logits if self._directions is None else unit_length(logits)
        near = np.empty(logits.shape)  # what a column of places names, in one buffer for all columns
        for column, at in enumerate(places.T):
            if not self._is_cosine:
                np.take(self.means, at, axis=0, out=near, mode="clip")
                with np.errstate(over="ignore"):
                    near -= logits
                    found[:, column] = np.sqrt(np.vecdot(near, near)) / EUCLIDEAN_UNIT
            if self._directions is not None:
                np.take(self._directions, at, axis=0, out=near, mode="clip")
                found[:, column] += np.maximum(1.0 - np.vecdot(near, rows), 0.0)
        return found


@dataclass(frozen=True, eq=False)
class ActivationModel:
    """Mean logits and Weibull tail of every class; a class of shape 0 has no model and is never revised."""

    centres: ClassMeans
    smallest: NDArray[np.float64]
    shapes: NDArray[np.float64]
    log_scales: NDArray[np.float64]

    def probabilities(self, distances: NDArray[np.float64], places: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return for each distance what the Weibull distribution of the class at its place gives to nearer ones."""
        shapes = self.shapes[places]
        has_model = shapes > 0.0
        with np.errstate(divide="ignore", over="ignore", under="ignore"):
            logs = np.log1p(np.maximum((distances - self.smallest[places]) / TRANSLATION, -1.0))
            powers = np.exp(np.where(has_model, shapes, 1.0) * (logs - self.log_scales[places]))
            return np.asarray(np.where(has_model, -np.expm1(-powers), 0.0))


def openmax(logits: ArrayLike, *, model: ActivationModel, alpha: int = 10) -> NDArray[np.float64]:
    """Return log((1 − P(unknown))/P(unknown)) of each row, P being OpenMax's probability.

    >>> model = ActivationModel(ClassMeans(np.zeros((2, 2))), np.zeros(2), np.zeros(2), np.zeros(2))
    >>> openmax([[0.0, 0.0]], model=model)
    array([0.69314718])
    """
    values = as_logits(logits)
    n_classes = len(model.shapes)
    if values.shape[1] != n_classes:
        raise InputError(f"there are {values.shape[1]} logits but {n_classes} class means; pass equal numbers")
    places = _largest(values, min(int(alpha), n_classes))
    ranks = np.arange(places.shape[1])
    weights = model.probabilities(model.centres.distances(values, places), places) * (1.0 - ranks / len(ranks))
    taken = np.take_along_axis(values, places, axis=1) * weights
    row = np.arange(len(values))[:, np.newaxis]
    values[row, places] -= taken
    return np.asarray(log_sum_exp(values, overwrite=True) - taken.sum(axis=1))


def _largest(values: NDArray[np.float64], n_largest: int) -> NDArray[np.intp]:
    """Return the places of the largest values of each row, largest first; of equal ones the first comes first."""
    n_values = values.shape[1]
    if n_largest == n_values:
        return np.argsort(-values, axis=1, kind="stable")
    places = np.argpartition(values, n_values - n_largest, axis=1)[:, n_values - n_largest :]
    places.sort(axis=1)
    order = np.argsort(-np.take_along_axis(values, places, axis=1), axis=1, kind="stable")
    return np.take_along_axis(places, order, axis=1)
