"""SeparateGaussians: k Gaussians that each have a covariance of their own, and the statistics they are fitted to.

`collect_classes` turns rows into `ClassStatistics`, one `Statistics` per class; `merge_classes` joins them. Memory is
O(k·m²). The log-determinants of the classes differ and enter every density, so each class must have full rank.
"""

import operator
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cholesky, solve_triangular

from gem_ood.batches import Batches, reduce_rows
from gem_ood.errors import InputError, RankWarning
from gem_ood.features import as_features, as_labels, chunks, refuse_non_finite, rows_per_chunk
from gem_ood.gaussians.covariance import CovariancePolicy, Factor, factorize, tied_covariance
from gem_ood.gaussians.kernel import Kernel
from gem_ood.gaussians.statistics import Accumulator, Prepare, Statistics, encode, fourth_moment, merge
from gem_ood.gaussians.tied import LOG_TWO_PI, Priors, resolve_priors

__all__ = [
    "ClassCovariance",
    "ClassStatistics",
    "SeparateGaussians",
    "add_fourth_moments",
    "collect_classes",
    "merge_classes",
]

#: Rows are sorted by class in runs of about this many per class: fewer would make each update of a class's scatter a
#: pass over m² numbers for next to nothing, and so many are less than that scatter itself.
ROWS_PER_CLASS = 64

#: The policies of a tied covariance, each for every class by itself, and shrinkage of the classes to their tied one.
ClassCovariance = CovariancePolicy | Literal["pooled"]

#: More numbers than these, 2 GB, are refused before they are asked of the machine.
MOST_NUMBERS = 1 << 28


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    """What one pass over the rows leaves of each class: its count, mean and own scatter.

    Attributes:
        parts: One `Statistics` of a single class each, sorted by class name; a declared class may have no rows.
    """

    parts: tuple[Statistics, ...]

    @cached_property
    def classes(self) -> NDArray[Any]:
        """The class names, sorted."""
        return np.concatenate([part.classes for part in self.parts])

    @property
    def counts(self) -> NDArray[np.int64]:
        """Rows per class."""
        return np.array([part.n_rows for part in self.parts])

    @property
    def n_rows(self) -> int:
        """How many rows were seen."""
        return int(self.counts.sum())

    @property
    def n_features(self) -> int:
        """How many features each row has."""
        return self.parts[0].n_features

    @property
    def is_labelled(self) -> bool:
        """Whether the rows came with labels; without, they are one class named 0."""
        return self.parts[0].is_labelled

    def tied(self) -> Statistics:
        """Return the statistics of the same rows with one scatter for all classes.

        >>> collect_classes([([[0.0], [2.0], [5.0], [9.0]], ["a", "a", "b", "b"])]).tied().scatter
        array([[10.]])
        """
        scatter = np.zeros((self.n_features, self.n_features))
        for part in self.parts:
            scatter += part.scatter
        return Statistics(
            classes=self.classes,
            counts=self.counts,
            means=np.concatenate([part.means for part in self.parts]),
            scatter=scatter,
            resolution=max(part.resolution for part in self.parts),
            is_labelled=self.is_labelled,
        )


def collect_classes(
    batches: Batches, *, classes: ArrayLike | None = None, prepare: Prepare | None = None
) -> ClassStatistics:
    """Return the statistics of each class of these batches; without labels all rows are one class named 0.

    Args:
        batches: Pairs of features and labels or None, here or spread.
        classes: All class names, where known; otherwise they are found on the way.
        prepare: Applied to each chunk of rows before it counts.

    >>> collect_classes([([[0.0], [2.0]], ["b", "b"]), ([[5.0]], ["a"])]).counts
    array([1, 2])
    """
    return reduce_rows(batches, partial(_collect_part, classes=classes, prepare=prepare), merge_classes)


def _collect_part(batches: Batches, *, classes: ArrayLike | None, prepare: Prepare | None) -> ClassStatistics:
    accumulators: dict[Any, Accumulator] = {}
    first_row = 0
    for X, labels in batches:
        features = as_features(X)
        names = classes
        if names is None and labels is not None:
            names = np.unique(as_labels(labels, len(features)))
        opened = _open(accumulators, n_features=features.shape[1], classes=names)
        codes = encode(labels, opened, len(features))
        for rows in chunks(len(features), max(rows_per_chunk(features.shape[1]), ROWS_PER_CLASS * len(opened))):
            chunk = features[rows]
            refuse_non_finite(chunk, first_row=first_row + rows.start)
            for code, places in _by_class(codes[rows]):
                name = opened[code]
                own_labels = None if labels is None else np.full(len(places), name)
                accumulators[name.item()].add(chunk[places], own_labels, prepare=prepare)
        first_row += len(features)
    if not accumulators:
        raise InputError("batches is empty; pass at least one batch")
    return ClassStatistics(tuple(accumulators[name].statistics() for name in sorted(accumulators)))


def merge_classes(first: ClassStatistics, second: ClassStatistics) -> ClassStatistics:
    """Return what collecting the rows behind both would have given; classes are joined by name.

    >>> here, there = collect_classes([([[0.0], [2.0]], [0, 0])]), collect_classes([([[4.0], [9.0]], [0, 1])])
    >>> merge_classes(here, there).counts
    array([3, 1])
    """
    _refuse_unlike(first.parts[0], second.parts[0])
    joined = {part.classes[0].item(): replace(part, fourth_moment=None) for part in first.parts}
    for part in second.parts:
        name = part.classes[0].item()
        joined[name] = merge(joined[name], part) if name in joined else replace(part, fourth_moment=None)
        _refuse_too_many(len(joined), part.n_features)
    return ClassStatistics(tuple(joined[name] for name in sorted(joined)))


def add_fourth_moments(
    statistics: ClassStatistics, batches: Batches, *, prepare: Prepare | None = None
) -> ClassStatistics:
    """Return the same statistics with the fourth moment of each class, by a second pass over the rows behind them.

    >>> batches = [([[0.0], [2.0]], None)]
    >>> add_fourth_moments(collect_classes(batches), batches).parts[0].fourth_moment
    2.0
    """
    bare = ClassStatistics(tuple(part.without_scatter() for part in statistics.parts))  # it is sent to where rows are
    totals = reduce_rows(batches, partial(_fourth_moments, statistics=bare, prepare=prepare), operator.add)
    moments = zip(statistics.parts, totals.tolist(), strict=True)
    return ClassStatistics(tuple(replace(part, fourth_moment=total) for part, total in moments))


def _fourth_moments(batches: Batches, *, statistics: ClassStatistics, prepare: Prepare | None) -> NDArray[np.float64]:
    """Return the fourth moment of each class over these rows."""
    totals = np.zeros(len(statistics.parts))
    for X, labels in batches:
        features = as_features(X)
        codes = encode(labels, statistics.classes, len(features))
        for rows in chunks(len(features), rows_per_chunk(statistics.n_features)):
            for code, places in _by_class(codes[rows]):
                part = statistics.parts[code]
                own_labels = None if labels is None else np.full(len(places), part.classes[0])
                totals[code] += fourth_moment(part, [(features[rows][places], own_labels)], prepare=prepare)
    return totals


@dataclass(frozen=True, eq=False)
class SeparateGaussians:
    """Class means, priors and the factor of each class's own covariance; all arrays are read-only.

    Attributes:
        classes: Names of the classes, one per mean.
        class_means: k × m.
        priors: Mixture weights, summing to one.
        factors: The whitener and log-determinant of each class's covariance, all of one rank.
        shrinkages: The share of each covariance that is shrinkage.

    >>> batches = [([[-1.0], [1.0], [6.0], [14.0]], ["a", "a", "b", "b"])]
    >>> SeparateGaussians.from_statistics(collect_classes(batches)).squared_distances([[2.0]])
    array([[4., 4.]])
    """

    classes: NDArray[Any]
    class_means: NDArray[np.float64]
    priors: NDArray[np.float64]
    factors: tuple[Factor, ...]
    shrinkages: NDArray[np.float64]

    def __post_init__(self) -> None:
        for array in (self.class_means, self.priors, self.shrinkages, *(factor.whitener for factor in self.factors)):
            array.flags.writeable = False

    @classmethod
    def from_statistics(
        cls, statistics: ClassStatistics, *, covariance: ClassCovariance = "empirical", priors: Priors = "uniform"
    ) -> "SeparateGaussians":
        """Return the Gaussians fitted to these statistics; a class without rows is left out.

        Args:
            statistics: What one pass over the rows left of each class.
            covariance: `"empirical"` (divisor: the rows of the class), `"oas"`, `"ledoit-wolf"`, or a shrinkage share
                in [0, 1], of each class by itself; or `"pooled"`: with S_k the scatter and n_k the rows of a class,
                (S_k + ν Σ) / (n_k + ν) for the tied covariance Σ of rank r: as if each class had ν = r + 2 rows more,
                of the tied covariance. It needs no class to have many rows or full rank.
            priors: `"uniform"`, `"empirical"` (class frequencies), or one weight per declared class.

        Raises:
            InputError: The covariance of a class lacks rank. On fewer directions its density would be one per length,
                area or volume of another dimension, which cannot be compared with those of the other classes.
        """
        if statistics.n_rows == 0:
            raise InputError("the fit has no rows; pass at least two")
        weights = resolve_priors(priors, statistics.tied())
        present = [part for part in statistics.parts if part.n_rows > 0]
        if covariance == "pooled":
            fitted = _pooled_factors(present, statistics.tied())
        else:
            fitted = [_factor(part, covariance) for part in present]
        return cls(
            classes=np.concatenate([part.classes for part in present]),
            class_means=np.concatenate([part.means for part in present]),
            priors=weights,
            factors=tuple(factor for factor, _ in fitted),
            shrinkages=np.array([share for _, share in fitted]),
        )

    @property
    def n_classes(self) -> int:
        """How many Gaussians there are."""
        return len(self.class_means)

    @property
    def n_features(self) -> int:
        """How many features a row has."""
        return int(self.class_means.shape[1])

    @cached_property
    def log_normalizers(self) -> NDArray[np.float64]:
        """Log sqrt((2π)^m |Σ_k|) of each class."""
        log_determinants = np.array([factor.log_determinant for factor in self.factors])
        return 0.5 * (self.factors[0].rank * LOG_TWO_PI + log_determinants)

    @cached_property
    def _kernels(self) -> tuple[Kernel, ...]:
        # With the class mean itself as the centre, the only whitened mean is zero and the half norm is ½ d².
        origin, wide = np.zeros((1, self.factors[0].rank)), np.dtype(np.float64)
        pairs = zip(self.class_means, self.factors, strict=True)
        return tuple(Kernel.of(mean, factor.whitener, origin, wide) for mean, factor in pairs)

    def exponents(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return −½ d²(x, μ_k; Σ_k), n × k; −inf where a distance is beyond float64."""
        features = as_features(X, min_rows=0)
        if features.shape[1] != self.n_features:
            raise InputError(
                f"features has {features.shape[1]} columns but the fit has {self.n_features}; pass the same features"
            )
        stacked = np.empty((len(features), self.n_classes))
        if len(features) == 0:
            return stacked
        for code, kernel in enumerate(self._kernels):
            column = stacked[:, code]

            def keep(rows: slice, _: NDArray[Any], half_norms: NDArray[Any], column: NDArray[Any] = column) -> None:
                np.negative(half_norms, out=column[rows])

            kernel.run(features, keep)
        return stacked

    def squared_distances(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return squared Mahalanobis distances to each class mean under that class's covariance, n × k."""
        return -2.0 * self.exponents(X)

    def log_densities(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the log-density of each row under each class, n × k."""
        densities = self.exponents(X)
        densities -= self.log_normalizers
        return densities

    def log_density(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the log-density of each row under the mixture, log Σ_k π_k N(x; μ_k, Σ_k)."""
        return np.asarray(np.logaddexp.reduce(self._joint(X), axis=1))

    def posterior(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the Bayes posterior p(class | x), n × k: quadratic discriminant analysis.

        A row infinitely far from every class tells nothing, and has the priors.

        >>> batches = [([[-1.0], [1.0], [9.0], [11.0]], ["a", "a", "b", "b"])]
        >>> SeparateGaussians.from_statistics(collect_classes(batches)).posterior([[5.0]])
        array([[0.5, 0.5]])
        """
        joint = self._joint(X)
        largest = joint.max(axis=1, keepdims=True)
        is_near = np.isfinite(largest)
        joint = np.exp(joint - np.where(is_near, largest, 0.0))
        joint = np.where(is_near, joint, self.priors)
        joint /= joint.sum(axis=1, keepdims=True)
        return joint

    def _joint(self, X: ArrayLike) -> NDArray[np.float64]:
        joint = self.log_densities(X)
        with np.errstate(divide="ignore"):
            joint += np.log(self.priors)
        return joint


def _open(accumulators: dict[Any, Accumulator], *, n_features: int, classes: ArrayLike | None) -> NDArray[Any]:
    """Open an accumulator for every class that has none, and return the names of the classes of this batch, sorted."""
    batch = Accumulator(n_features=n_features, classes=classes)
    for known in accumulators.values():
        _refuse_unlike(known, batch)
        break
    _refuse_too_many(len(accumulators.keys() | set(batch.classes.tolist())), n_features)
    for name in batch.classes:
        if name.item() not in accumulators:
            accumulators[name.item()] = Accumulator(
                n_features=n_features, classes=[name] if batch.is_labelled else None
            )
    return batch.classes


def _refuse_unlike(first: Accumulator | Statistics, second: Accumulator | Statistics) -> None:
    """Raise if these two cannot be of one fit."""
    if first.n_features != second.n_features:
        raise InputError(
            f"some rows have {first.n_features} features and others {second.n_features}; pass the same features "
            f"everywhere"
        )
    if first.is_labelled != second.is_labelled:
        raise InputError("some rows have labels and others have none; pass the labels of all rows, or leave out all")
    if first.classes.dtype.kind != second.classes.dtype.kind:
        raise InputError("some labels are whole numbers and others strings; use one kind of label")


def _by_class(codes: NDArray[np.intp]) -> Iterable[tuple[int, NDArray[np.intp]]]:
    """Return the places of each class that occurs, in their order."""
    order = np.argsort(codes, kind="stable")
    present, starts = np.unique(codes[order], return_index=True)
    return zip(present.tolist(), np.split(order, starts[1:]), strict=True)


def _factor(part: Statistics, policy: CovariancePolicy) -> tuple[Factor, float]:
    """Return the factor of a class's covariance and its share of shrinkage; a class without full rank is refused."""
    name, n_rows = part.classes[0].item(), part.n_rows
    matrix, share = tied_covariance(part, policy)
    if not np.diag(matrix).any():
        raise InputError(
            f"class {name!r} has no spread (rows: {n_rows}), so it has no covariance of its own; pass more rows of it, "
            f"or use a tied covariance, as GEM does"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankWarning)  # it is an error here
        factor = factorize(matrix, magnitudes=np.abs(part.means[0]), resolution=part.resolution, n_rows=n_rows)
    if factor.rank < part.n_features:
        raise InputError(
            f"the covariance of class {name!r} has rank {factor.rank} of {part.n_features} dimensions "
            f"(rows: {n_rows}); its density cannot be compared with those of other classes. Pass covariance='oas' or a "
            f"shrinkage share such as 0.1, more rows of that class, or fewer features"
        )
    return factor, share


def _pooled_factors(parts: Sequence[Statistics], tied: Statistics) -> list[tuple[Factor, float]]:
    """Return the factors of covariances shrunk to the tied one, all on the directions that this has.

    Where the tied covariance is white, a class has (S_k + ν I) / (n_k + ν), which is never singular.
    """
    matrix, _ = tied_covariance(tied)
    common = factorize(
        matrix, magnitudes=np.abs(tied.means).max(axis=0), resolution=tied.resolution, n_rows=tied.n_rows
    )
    weight = common.rank + 2
    factors = []
    for part in parts:
        white = common.whitener.T @ part.scatter @ common.whitener
        white.flat[:: common.rank + 1] += weight
        white /= part.n_rows + weight
        lower = cholesky(white, lower=True)
        whitener = solve_triangular(lower, common.whitener.T, lower=True).T
        log_determinant = common.log_determinant + 2.0 * float(np.log(np.diag(lower)).sum())
        factors.append((Factor(np.ascontiguousarray(whitener), log_determinant), weight / (part.n_rows + weight)))
    return factors


def _refuse_too_many(n_classes: int, n_features: int) -> None:
    if n_classes * n_features**2 > MOST_NUMBERS:
        raise InputError(
            f"the covariances of {n_classes} classes of {n_features} features are {n_classes * n_features**2:.1e} "
            f"numbers, more than {MOST_NUMBERS:.1e}; use a tied covariance, as GEM does (recommended: "
            f"class_shapes=False), or fewer features"
        )
