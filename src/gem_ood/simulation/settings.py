"""One setting of the studies: k classes on orthogonal means at distance r from the out-of-distribution mean."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gem_ood.errors import InputError
from gem_ood.gaussians import TiedGaussians
from gem_ood.theory.whitened import Whitened

__all__ = ["PROTOCOL", "Setting", "checked_whole_number", "is_whole_number", "listed", "study_means"]

#: What the paper leaves open (E13), as chosen here; `Study.as_dict` carries these lines.
PROTOCOL = (
    "N(r ν_i, σ² I) in-distribution, N(0, σ² I) out-of-distribution; 20,000 rows of each unless sizes are given",
    "classes balanced: row counts differ by at most one",
    "ν_i has s = ⌊d/k⌋ entries 1/√s at the half-open 0-based positions [(i−1)s, is), i = 1 … k",
    "r = 1, 2, …, 20 in the distance study unless a grid is given",
    "known parameters, nothing fitted; all scores on the same rows",
    "scores kept in logs; MSP ranked by its log odds, so that rows whose MSP rounds to 1 keep their order",
    "the spread is the standard deviation over runs, with divisor runs − 1",
)

#: Rows are drawn in float32: lengths from one over this to this stay clear of its ends, about 1e-38 and 1e38.
LARGEST_LENGTH = 1e15


@dataclass(frozen=True)
class Setting:
    """The classes N(r ν_i, σ² I_d) against N(0, σ² I_d), and how many rows are drawn of each side.

    Attributes:
        n_classes: k, at most d.
        dimension: d.
        distance: r, of every class mean from the out-of-distribution mean.
        sigma: The standard deviation in every direction (E15); rates depend on r/σ alone (E11).
        n_in: In-distribution rows, over all classes.
        n_out: Out-of-distribution rows.

    Example:
        >>> Setting(n_classes=10, dimension=512, distance=10.0).class_counts().tolist()
        [2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000, 2000]
    """

    n_classes: int
    dimension: int
    distance: float
    sigma: float = 1.0
    n_in: int = 20_000
    n_out: int = 20_000

    def __post_init__(self) -> None:
        for name in ("n_classes", "dimension", "n_in", "n_out"):
            object.__setattr__(self, name, checked_whole_number(getattr(self, name), name=name))
        for name in ("distance", "sigma"):
            object.__setattr__(self, name, _checked_number(getattr(self, name), name=name))
        _refuse_too_many_classes(self.n_classes, self.dimension)
        if not 0.0 <= self.distance <= LARGEST_LENGTH:
            raise InputError(f"distance is {self.distance:g}; pass an r of at least 0 and at most {LARGEST_LENGTH:g}")
        if not 1.0 / LARGEST_LENGTH <= self.sigma <= LARGEST_LENGTH:
            raise InputError(
                f"sigma is {self.sigma:g}; pass a positive standard deviation, such as 1.0, "
                f"from {1.0 / LARGEST_LENGTH:g} to {LARGEST_LENGTH:g}"
            )

    @property
    def n_rows(self) -> int:
        """How many rows one run draws."""
        return self.n_in + self.n_out

    def class_counts(self) -> NDArray[np.int64]:
        """Return how many in-distribution rows each class has: they differ by at most one."""
        return np.diff(np.arange(self.n_classes + 1) * self.n_in // self.n_classes)

    def gaussians(self) -> TiedGaussians:
        """Return the in-distribution classes with their known parameters."""
        means = study_means(self.n_classes, self.dimension, self.distance)
        return TiedGaussians.from_parameters(means, self.sigma**2 * np.eye(self.dimension))

    def whitened(self) -> Whitened:
        """Return the setting as theory takes it, without a d × d covariance to factor."""
        k, distance = self.n_classes, self.distance / self.sigma
        return Whitened(
            offsets=study_means(k, self.dimension, distance),
            between=2.0 * distance**2 * (1.0 - np.eye(k)),
            priors=np.full(k, 1.0 / k),
            weights=np.ones(k),
            spread=None,
        )

    def projected_gaussians(self) -> TiedGaussians:
        """Return the classes on the span of their means, whitened: k coordinates tell all but a χ² of d − k (B3)."""
        means = study_means(self.n_classes, self.n_classes, self.distance / self.sigma)
        return TiedGaussians.from_parameters(means, np.eye(self.n_classes))


def study_means(n_classes: int, dimension: int, distance: float) -> NDArray[np.float64]:
    """Return the class means r ν_i, k × d (P34): orthogonal, each r from the origin and √2 r from the others (P35).

    ν_i has s = ⌊d/k⌋ equal entries, at the 0-based positions (i−1)s up to, not including, is (E13).

    Example:
        >>> study_means(2, 5, 1.0).round(3)
        array([[0.707, 0.707, 0.   , 0.   , 0.   ],
               [0.   , 0.   , 0.707, 0.707, 0.   ]])
    """
    n_classes = checked_whole_number(n_classes, name="n_classes")
    dimension = checked_whole_number(dimension, name="dimension")
    _refuse_too_many_classes(n_classes, dimension)
    width = dimension // n_classes
    means = np.zeros((n_classes, dimension))
    for place in range(n_classes):
        means[place, place * width : (place + 1) * width] = _checked_number(distance, name="distance") / np.sqrt(width)
    return means


def checked_whole_number(value: Any, *, name: str, smallest: int = 1) -> int:
    """Return a whole number of at least the smallest, whatever its type.

    Example:
        >>> checked_whole_number(np.int64(5), name="runs")
        5
    """
    if not is_whole_number(value) or value < smallest:
        raise InputError(f"{name} is {value!r}; pass a whole number of at least {smallest}")
    return int(value)


def is_whole_number(value: Any) -> bool:
    """Return whether a value is an integer of Python or NumPy; True and False are none.

    >>> is_whole_number(np.int64(5)), is_whole_number(True), is_whole_number(5.0)
    (True, False, False)
    """
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def listed(values: Iterable[Any], *, name: str, of: str = "numbers") -> list[Any]:
    """Return the values as a list of at least one.

    >>> listed(range(3), name="grid")
    [0, 1, 2]
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InputError(f"{name} is {values!r}; pass a list of {of}")
    found = list(values)
    if not found:
        raise InputError(f"{name} is empty; pass a list of {of}")
    return found


def _checked_number(value: Any, *, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not np.isfinite(number):
        raise InputError(f"{name} is {value!r}; pass a finite number")
    return number


def _refuse_too_many_classes(n_classes: int, dimension: int) -> None:
    if n_classes > dimension:
        raise InputError(
            f"n_classes is {n_classes} but dimension is {dimension}, which has room for no more orthogonal means than "
            f"that; pass n_classes of at most {dimension}"
        )
