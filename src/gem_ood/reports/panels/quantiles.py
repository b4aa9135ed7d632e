"""Quantiles of squared Mahalanobis distances against χ²: of all rows, of each class, and the band that χ² fills."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from gem_ood.errors import InputError
from gem_ood.features import as_scores

__all__ = [
    "CONFIDENCE",
    "NAMED_CLASSES",
    "ClassBand",
    "QuantileBand",
    "QuantileCurve",
    "QuantileCurves",
    "chi2_curves",
    "fewest_rows",
    "levels",
]

#: More classes than these are one band from the lowest to the highest.
NAMED_CLASSES = 12

#: The confidence of the pointwise band.
CONFIDENCE = 0.95

#: Points of each curve; more would lie on one another.
DRAWN_POINTS = 300

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class QuantileCurve:
    """Some ordered squared distances, `found`, and the quantiles of χ² that they stand for, `expected`.

    `name` is the class's, or None for the rows of all classes.
    """

    name: str | None
    expected: Floats
    found: Floats


@dataclass(frozen=True, eq=False)
class QuantileBand:
    """For each quantile of χ², what lies under the distance of that rank and what above it."""

    expected: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, eq=False)
class ClassBand(QuantileBand):
    """The band from the lowest to the highest of `n_classes` classes, those of at least `fewest` rows."""

    n_classes: int
    fewest: int


@dataclass(frozen=True, eq=False)
class QuantileCurves:
    """What a quantile–quantile figure shows.

    Attributes:
        degrees_of_freedom: Of χ².
        together: The rows of all classes.
        classes: Each of several classes, up to 12 of them.
        band: Where each ordered row of all classes lies with probability 95 % if the classes are Gaussian.
        class_band: What more than 12 classes have in place of curves; None if fewer than two are large enough.
    """

    degrees_of_freedom: float
    together: QuantileCurve
    classes: tuple[QuantileCurve, ...]
    band: QuantileBand
    class_band: ClassBand | None

    def as_dict(self) -> dict[str, Any]:
        """Return the curves and bands as lists and numbers that JSON can write, all rows first."""
        return {
            "degrees_of_freedom": self.degrees_of_freedom,
            "curves": [
                {"name": curve.name, "expected": curve.expected.tolist(), "found": curve.found.tolist()}
                for curve in (self.together, *self.classes)
            ],
            "band": _band_dict(self.band),
            "class_band": None
            if self.class_band is None
            else {**_band_dict(self.class_band), "n_classes": self.class_band.n_classes},
        }


def chi2_curves(
    distances_by_class: Sequence[ArrayLike], degrees_of_freedom: float, *, names: Sequence[object] | None = None
) -> QuantileCurves:
    """Return the squared Mahalanobis distances of rows to their class mean, in order, against the quantiles of χ².

    Args:
        distances_by_class: Squared distances of held-out rows, one array per class. Training rows are nearer (B6).
        degrees_of_freedom: Of χ²: the rank of the covariance.
        names: Names of the classes; their places if not given.

    Example:
        >>> found = chi2_curves([[1.0, 3.0], [2.0]], 2, names=["cat", "dog"])
        >>> found.together.found.tolist(), found.together.expected.round(2).tolist()
        ([1.0, 2.0, 3.0], [0.36, 1.39, 3.58])
    """
    classes = _checked_distances(distances_by_class)
    labels = _checked_names(names, len(classes))
    if not (np.isfinite(degrees_of_freedom) and degrees_of_freedom > 0):
        raise InputError(f"degrees_of_freedom is {degrees_of_freedom!r}; pass a positive number, the covariance's rank")
    law = stats.chi2(degrees_of_freedom)
    ordered = np.sort(np.concatenate(classes))
    is_named = 1 < len(classes) <= NAMED_CLASSES
    return QuantileCurves(
        degrees_of_freedom=float(degrees_of_freedom),
        together=_curve(None, law, ordered),
        classes=tuple(
            _curve(label, law, np.sort(distances)) for label, distances in zip(labels, classes, strict=True) if is_named
        ),
        band=_band(law, len(ordered)),
        class_band=None if len(classes) <= NAMED_CLASSES else _class_band(law, classes),
    )


def fewest_rows(classes: Sequence[Floats]) -> int:
    """Return how many rows a class needs to be in the band: the fewest decide how far into the tails it reaches.

    >>> fewest_rows([np.ones(50), np.ones(60), np.ones(3)])
    25
    """
    return max(2, math.ceil(statistics.median(len(distances) for distances in classes) / 2.0))


def levels(n_rows: int, places: NDArray[np.intp]) -> Floats:
    """Return the probabilities that the ordered rows at these places stand for.

    >>> levels(4, np.arange(4)).tolist()
    [0.125, 0.375, 0.625, 0.875]
    """
    return np.asarray((places + 0.5) / n_rows)


def _checked_distances(distances_by_class: Sequence[ArrayLike]) -> list[Floats]:
    if len(distances_by_class) == 0:
        raise InputError("distances_by_class is empty; pass one array of squared distances per class")
    classes = [
        as_scores(distances, name=f"distances_by_class[{place}]") for place, distances in enumerate(distances_by_class)
    ]
    for place, distances in enumerate(classes):
        if not (np.isfinite(distances) & (distances >= 0.0)).all():
            raise InputError(
                f"distances_by_class[{place}] holds a negative or infinite value; pass squared Mahalanobis distances"
            )
    if not any(distances.any() for distances in classes):
        raise InputError("all distances are 0; pass squared distances of rows to their class mean")
    return classes


def _checked_names(names: Sequence[object] | None, n_classes: int) -> list[str]:
    if names is None:
        return [f"class {place}" for place in range(n_classes)]
    if len(names) != n_classes:
        raise InputError(f"names has {len(names)} names but there are {n_classes} classes; name each class once")
    return [str(name) for name in names]


def _drawn_places(n_rows: int) -> NDArray[np.intp]:
    """Return which order statistics to draw: all of few rows, else ever denser towards both ends."""
    if n_rows <= DRAWN_POINTS:
        return np.arange(n_rows)
    shares = stats.logistic.cdf(np.linspace(-np.log(2 * n_rows), np.log(2 * n_rows), DRAWN_POINTS))
    return np.unique(np.clip((shares * n_rows).astype(np.intp), 0, n_rows - 1))


def _curve(name: str | None, law: Any, ordered: Floats) -> QuantileCurve:
    places = _drawn_places(len(ordered))
    return QuantileCurve(name, law.ppf(levels(len(ordered), places)), ordered[places])


def _band(law: Any, n_rows: int) -> QuantileBand:
    places = _drawn_places(n_rows)
    tail = 0.5 * (1.0 - CONFIDENCE)
    # The i-th of n ordered uniform numbers is Beta(i, n − i + 1).
    ranks = places + 1.0
    low, high = (law.ppf(stats.beta.ppf(level, ranks, n_rows - ranks + 1.0)) for level in (tail, 1.0 - tail))
    return QuantileBand(law.ppf(levels(n_rows, places)), low, high)


def _class_band(law: Any, classes: Sequence[Floats]) -> ClassBand | None:
    fewest = fewest_rows(classes)
    kept = [distances for distances in classes if len(distances) >= fewest]
    if len(kept) < 2:
        return None
    smallest = min(len(distances) for distances in kept)
    shares = levels(smallest, _drawn_places(smallest))
    quantiles = np.array([np.quantile(distances, shares, method="hazen") for distances in kept])
    return ClassBand(law.ppf(shares), quantiles.min(axis=0), quantiles.max(axis=0), len(kept), fewest)


def _band_dict(band: QuantileBand) -> dict[str, Any]:
    return {"expected": band.expected.tolist(), "low": band.low.tolist(), "high": band.high.tolist()}
