"""Statistics: what one pass over the rows leaves behind, and how such passes are joined.

An `Accumulator` folds batches of any size; `Statistics` is the value it yields. Memory is O(k·m + m²) plus some rows
for each thread, whatever the number of rows. Accuracy rests on three things: a provisional shift per class (its first
row), so that no square of an offset is ever formed; products summed up in float64; and one rank-k correction at the
end. A single shift for all classes loses two digits when classes lie thousands of sigma apart.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg.blas import dsyrk

from gem_ood.errors import InputError
from gem_ood.features import as_features, chunks, refuse_non_finite, rows_per_chunk
from gem_ood.gaussians.labels import Codes, class_counts, class_names, distinct_labels, encode
from gem_ood.gaussians.parallel import blas_alone
from gem_ood.gaussians.summing import Prepare, add_few_rows, are_few, prepared, refuse_overflow, sum_rows

__all__ = ["Accumulator", "Statistics", "collect", "fourth_moment", "merge"]

#: Rows are searched for the first of each class so many at a time; the first run holds all of a few dozen classes.
FIRST_ROWS = 4096

#: Square blocks of a matrix that a core's own cache holds, to copy one half onto the other.
MIRRORED_BLOCK = 128


@dataclass(frozen=True, eq=False)
class Statistics:
    """Counts, means and the pooled within-class scatter of labelled rows.

    Attributes:
        classes: The class names, sorted; whole numbers or strings. A declared class may have no rows.
        counts: Rows per class.
        means: Mean of each class (P17), one row per class; zeros where a class has no rows.
        scatter: Sum over all rows of (x − μ_class)(x − μ_class)ᵀ.
        resolution: The coarsest relative rounding step of the rows seen, 2⁻²³ for float32.
        fourth_moment: Sum over rows of ‖x − μ_class‖⁴ where a second pass computed it, else None.
        is_labelled: Whether the rows came with labels; without, they are one class named 0.

    >>> statistics = collect([[0.0], [2.0], [5.0]], ["a", "a", "b"])
    >>> statistics.means.ravel(), statistics.scatter
    (array([1., 5.]), array([[2.]]))
    """

    classes: NDArray[Any]
    counts: NDArray[np.int64]
    means: NDArray[np.float64]
    scatter: NDArray[np.float64]
    resolution: float
    fourth_moment: float | None = None
    is_labelled: bool = True

    @property
    def n_rows(self) -> int:
        """How many rows were seen."""
        return int(self.counts.sum())

    @property
    def n_features(self) -> int:
        """How many features each row has."""
        return int(self.means.shape[1])

    def without_scatter(self) -> "Statistics":
        """Return the same counts and means with nothing in place of the m² numbers of the scatter.

        >>> collect([[0.0], [2.0]]).without_scatter().scatter.shape
        (0, 0)
        """
        return replace(self, scatter=np.empty((0, 0)))

    def pooled(self) -> "Statistics":
        """Return the statistics of the same rows taken as one class named 0.

        >>> collect([[0.0], [2.0], [5.0]], ["a", "a", "b"]).pooled().scatter
        array([[12.66666667]])
        """
        weights = self.counts / max(1, self.n_rows)
        mean = weights @ self.means
        offsets = (self.means - mean) * np.sqrt(self.counts)[:, np.newaxis]
        return Statistics(
            classes=np.zeros(1, dtype=np.int64),
            counts=np.array([self.n_rows]),
            means=mean[np.newaxis],
            scatter=self.scatter + offsets.T @ offsets,
            resolution=self.resolution,
            is_labelled=False,
        )


class Accumulator:
    """Folds batches of rows into statistics.

    >>> accumulator = Accumulator(n_features=1, classes=["a", "b"])
    >>> accumulator.add([[0.0], [5.0]], ["a", "b"])
    >>> accumulator.add([[2.0]], ["a"])
    >>> accumulator.statistics().counts
    array([2, 1])
    """

    def __init__(self, *, n_features: int, classes: ArrayLike | None = None) -> None:
        self.classes = class_names(classes)
        self.is_labelled = classes is not None
        n_classes = len(self.classes)
        self.n_features = n_features
        self._resolution = 0.0
        self._counts = np.zeros(n_classes, dtype=np.int64)
        self._shifts = np.zeros((n_classes, n_features))
        self._sums = np.zeros((n_classes, n_features))
        self._scatter = np.zeros((n_features, n_features), order="F")  # lower triangle only

    @classmethod
    def resume(cls, statistics: Statistics) -> "Accumulator":
        """Return an accumulator that goes on where these statistics stopped."""
        accumulator = cls(n_features=statistics.n_features, classes=statistics.classes)
        accumulator.is_labelled = statistics.is_labelled
        accumulator._resolution = statistics.resolution
        accumulator._counts = np.array(statistics.counts, dtype=np.int64)
        accumulator._shifts = np.array(statistics.means, dtype=np.float64, order="C")
        accumulator._scatter = np.asfortranarray(np.tril(statistics.scatter), dtype=np.float64)
        return accumulator

    def add(self, X: ArrayLike, labels: ArrayLike | None = None, *, prepare: Prepare | None = None) -> None:
        """Take in one batch; `prepare` is applied to each chunk of rows before it counts."""
        features = as_features(X)
        if features.shape[1] != self.n_features:
            raise InputError(
                f"features has {features.shape[1]} columns but earlier batches had {self.n_features}; "
                f"pass the same features in every batch"
            )
        _refuse_mixed(self.is_labelled, labels is not None)
        codes = encode(labels, self.classes, len(features))
        self._own_arrays()
        self._place_shifts(features, codes, prepare)
        if are_few(*features.shape):
            add_few_rows(features, codes, self._shifts, totals=self._sums, scatter=self._scatter, prepare=prepare)
        else:
            parts = sum_rows(features, codes, self._shifts, prepare=prepare)
            with np.errstate(over="ignore"):  # what overflows is refused, and nothing is added
                refuse_overflow(np.sum([np.diag(self._scatter), *(part.squares() for part in parts)], axis=0))
            for part in parts:
                part.add_to(self._sums, self._scatter)
        self._counts += class_counts(codes, len(self.classes))
        self._resolution = max(self._resolution, _resolution(features.dtype))

    def declare(self, classes: ArrayLike) -> None:
        """Add classes that may come; those already known stay as they are."""
        names = class_names(classes)
        if names.dtype.kind != self.classes.dtype.kind:
            raise InputError("earlier batches had the other kind of label; use whole numbers only or strings only")
        joined = np.union1d(self.classes, names)
        places = np.searchsorted(joined, self.classes)
        for name in ("_counts", "_shifts", "_sums"):
            old = getattr(self, name)
            new = np.zeros((len(joined), *old.shape[1:]), dtype=old.dtype)
            new[places] = old
            setattr(self, name, new)
        self.classes = joined

    def _own_arrays(self) -> None:
        """Copy what another process shares with us read-only, as joblib's workers do."""
        for name in ("_counts", "_shifts", "_sums", "_scatter"):
            array = getattr(self, name)
            if not array.flags.writeable:
                setattr(self, name, array.copy(order="K"))

    def _place_shifts(self, features: NDArray[Any], codes: Codes, prepare: Prepare | None) -> None:
        """Let the first row of every class without rows be its provisional mean."""
        is_missing = self._counts == 0
        for part in chunks(len(codes), FIRST_ROWS):
            if not is_missing.any():
                return
            present, first = np.unique(codes[part], return_index=True)
            is_new = is_missing[present]
            if is_new.any():
                rows = features[part.start + first[is_new]]
                if not np.isfinite(rows).all():
                    _refuse_first(features)
                self._shifts[present[is_new]] = prepared(rows, prepare)
                is_missing[present] = False

    def statistics(self, *, is_last: bool = False) -> Statistics:
        """Return the statistics of all rows added so far; unless this `is_last`, the accumulator can go on afterwards.

        What comes last is computed in the accumulator's own memory: for wide rows, new memory costs as much time.
        """
        counts = np.maximum(self._counts, 1)[:, np.newaxis]
        scaled = self._sums / np.sqrt(counts)
        with blas_alone(float(scaled.size) * self.n_features):
            lower = dsyrk(-1.0, scaled.T, beta=1.0, c=self._scatter, lower=True, overwrite_c=is_last)
        scatter = _mirrored(lower)
        refuse_overflow(np.diag(scatter))
        means = self._sums / counts
        means += self._shifts
        means[self._counts == 0] = 0.0  # a refused batch may have left a shift there
        return Statistics(
            classes=self.classes,
            counts=self._counts.copy(),
            means=means,
            scatter=scatter,
            resolution=self._resolution,
            is_labelled=self.is_labelled,
        )


def collect(
    X: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    classes: ArrayLike | None = None,
    prepare: Prepare | None = None,
) -> Statistics:
    """Return the statistics of rows in memory (or memory-mapped); without labels they are one class named 0.

    >>> collect([[1.0, 2.0], [3.0, 2.0]]).means
    array([[2., 2.]])
    """
    features = as_features(X)
    if labels is not None and classes is None:
        classes = distinct_labels(labels, len(features))
    accumulator = Accumulator(n_features=features.shape[1], classes=classes)
    accumulator.add(features, labels, prepare=prepare)
    return accumulator.statistics(is_last=True)


def merge(first: Statistics, second: Statistics) -> Statistics:
    """Return what collecting the rows behind both would have given; classes are joined by name.

    >>> a, b = collect([[0.0], [2.0]], [0, 0]), collect([[4.0], [9.0]], [0, 1])
    >>> merge(a, b).means.ravel()
    array([2., 9.])
    """
    if first.n_features != second.n_features:
        raise InputError(
            f"one fit has {first.n_features} features and the other {second.n_features}; merge fits of equal features"
        )
    _refuse_mixed(first.is_labelled, second.is_labelled)
    if first.classes.dtype.kind != second.classes.dtype.kind:
        raise InputError("one fit has whole-number labels and the other strings; use one kind of label")
    classes = np.union1d(first.classes, second.classes)
    counts = np.zeros((2, len(classes)), dtype=np.int64)
    means = np.zeros((2, len(classes), first.n_features))
    for side, statistics in enumerate((first, second)):
        places = np.searchsorted(classes, statistics.classes)
        counts[side, places] = statistics.counts
        means[side, places] = statistics.means
    total = counts.sum(axis=0)
    share = (counts[1] / np.maximum(total, 1))[:, np.newaxis]
    both = (counts > 0).all(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):  # it is refused below
        difference = means[1] - means[0]
        offsets = difference[both] * np.sqrt(counts[0] * share[:, 0])[both, np.newaxis]
        scatter = first.scatter + second.scatter + offsets.T @ offsets
    refuse_overflow(np.diag(scatter))
    return Statistics(
        classes=classes,
        counts=total,
        means=means[0] + difference * share,
        scatter=scatter,
        resolution=max(first.resolution, second.resolution),
        is_labelled=first.is_labelled,
    )


def fourth_moment(
    statistics: Statistics,
    batches: Iterable[tuple[ArrayLike, ArrayLike | None]],
    *,
    prepare: Prepare | None = None,
) -> float:
    """Return Σ ‖x − μ_class‖⁴ by a second pass over the rows that gave these statistics.

    >>> fourth_moment(collect([[0.0], [2.0]]), [([[0.0], [2.0]], None)])
    2.0
    """
    total = 0.0
    for X, labels in batches:
        features = as_features(X)
        _refuse_mixed(statistics.is_labelled, labels is not None)
        codes = encode(labels, statistics.classes, len(features))
        for rows in chunks(len(features), rows_per_chunk(statistics.n_features)):
            centred = prepared(features[rows], prepare) - statistics.means[codes[rows]]
            total += float(np.sum(np.einsum("ij,ij->i", centred, centred) ** 2))
    return total


def _refuse_mixed(is_labelled: bool, is_next_labelled: bool) -> None:
    if is_labelled and not is_next_labelled:
        raise InputError("this fit has labels but these rows came without labels; pass their labels")
    if is_next_labelled and not is_labelled:
        raise InputError("this fit is without labels but these rows came with labels; leave the labels out everywhere")


def _mirrored(lower: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the symmetric matrix of this lower triangle, in Fortran order and above it anything: in its own memory."""
    size = len(lower)
    for start in range(0, size, MIRRORED_BLOCK):
        stop = min(start + MIRRORED_BLOCK, size)
        block = lower[start:stop, start:stop]
        block[...] = np.tril(block) + np.tril(block, -1).T
        lower[start:stop, stop:] = lower[stop:, start:stop].T
    return lower.T  # the same numbers, in C order


def _refuse_first(features: NDArray[Any]) -> None:
    for rows in chunks(len(features), rows_per_chunk(features.shape[1])):
        refuse_non_finite(features[rows], first_row=rows.start)


def _resolution(dtype: np.dtype[Any]) -> float:
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else float(np.finfo(np.float64).eps)
