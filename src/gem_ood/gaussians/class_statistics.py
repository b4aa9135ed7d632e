"""ClassStatistics: one `Statistics` for each class, of which class Gaussians with a covariance of their own are fitted.

`collect_classes` turns rows into them; `merge_classes` joins them. Memory is O(k·m²).
"""

import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gem_ood.batches import Batches, reduce_rows
from gem_ood.errors import InputError
from gem_ood.features import as_features, chunks, refuse_non_finite, rows_per_chunk
from gem_ood.gaussians.labels import Codes, distinct_labels, encode
from gem_ood.gaussians.statistics import Accumulator, Statistics, fourth_moment, merge
from gem_ood.gaussians.summing import Prepare

__all__ = ["ClassStatistics", "add_fourth_moments", "collect_classes", "merge_classes"]

#: Rows are sorted by class in runs of about this many per class: fewer would make each update of a class's scatter a
#: pass over m² numbers for next to nothing, and so many are less than that scatter itself.
ROWS_PER_CLASS = 64

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
            names = distinct_labels(labels, len(features))
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
    return ClassStatistics(tuple(accumulators[name].statistics(is_last=True) for name in sorted(accumulators)))


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


def _by_class(codes: Codes) -> Iterable[tuple[int, NDArray[np.intp]]]:
    """Return the places of each class that occurs, in their order."""
    order = np.argsort(codes, kind="stable")
    present, starts = np.unique(codes[order], return_index=True)
    return zip(present.tolist(), np.split(order, starts[1:]), strict=True)


def _refuse_too_many(n_classes: int, n_features: int) -> None:
    if n_classes * n_features**2 > MOST_NUMBERS:
        raise InputError(
            f"the covariances of {n_classes} classes of {n_features} features are {n_classes * n_features**2:.1e} "
            f"numbers, more than {MOST_NUMBERS:.1e}; use a tied covariance, as GEM does (recommended: "
            f"class_shapes=False), or fewer features"
        )
