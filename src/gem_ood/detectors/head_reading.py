"""HeadDetector: what detectors share that read a classifier's logits, and with a head also its features.

X is features where a `head` is given, and logits where it is not. `LogitDetector` has nothing to learn;
`SummedDetector` learns sums over the rows, and so streams and merges.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils import Tags
from sklearn.utils.validation import validate_data

from gem_ood.detectors.base import Batches, Detector
from gem_ood.detectors.head import Head
from gem_ood.detectors.packing import class_names, take
from gem_ood.errors import InputError, NotFittedError
from gem_ood.features import as_features, as_labels, chunks, refuse_non_finite, rows_per_chunk
from gem_ood.scores import softmax

__all__ = ["HeadDetector", "LogitDetector", "Part", "SummedDetector", "names_found"]

#: By how much a score that is a difference of larger terms may move between batches of different size, relative to
#: the usual size of these scores.
FEATURE_ROUNDING = 1e-10


class Part(NamedTuple):
    """A chunk of checked rows: its features, their logits, and the places of its labels among the logits if needed."""

    features: NDArray[Any]
    logits: NDArray[np.float64]
    places: NDArray[np.intp] | None


class HeadDetector(Detector):
    """What detectors of logits share: reading features through the head, in chunks, and the names of the logits."""

    #: Whether the score is one of features and logits together, so that it cannot be had from logits alone.
    needs_head: ClassVar[bool] = False

    head: Head | None
    classes_: NDArray[Any]
    _labels: set[Any]

    @abstractmethod
    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Score checked rows; the logits are a working copy where a head gave them, and the caller's otherwise."""

    @property
    def reads_logits(self) -> bool:
        """Whether X is logits: so it is without a head."""
        return self.head is None and not self.needs_head

    def _check_options(self) -> None:
        if not isinstance(self.head, Head | None):
            raise InputError(f"head is a {type(self.head).__name__}; pass Head(weight, bias)")
        if self.needs_head and self.head is None:
            raise InputError(
                f"{type(self).__name__} scores features together with their logits but has no head; pass "
                f"head=Head(weight, bias), the classifier's last layer"
            )

    def _check_head(self, n_features: int) -> None:
        if self.head is not None and self.head.n_features != n_features:
            raise InputError(
                f"features has {n_features} columns but the head takes {self.head.n_features}; "
                f"pass the features that this head reads"
            )

    def _n_logits(self, n_features: int) -> int:
        return n_features if self.head is None else self.head.n_classes

    def _name_logits(self, names: list[Any], n_classes: int) -> None:
        """Labels name the logits, in their order, only if there is one for each."""
        self._labels = set(names)
        self.classes_ = np.array(names) if len(names) == n_classes else np.arange(n_classes)

    def _class_names(self, n_features: int) -> NDArray[Any]:
        if "classes_" in self.__dict__:
            return self.classes_
        return np.arange(self._n_logits(n_features))

    def _join_names(self, in_order: list[Any], names: set[Any], n_classes: int) -> None:
        """Name the logits by these labels; where they are those already known, their order stays."""
        self._name_logits(in_order if set(in_order) == names else sorted(names), n_classes)

    def _logits(self, features: NDArray[Any]) -> NDArray[Any]:
        return features if self.head is None else self.head.logits(features)

    def _scores(self, features: NDArray[Any], nearest: NDArray[np.intp] | None = None) -> NDArray[np.float64]:
        scores = np.empty(len(features))
        width = features.shape[1] + (0 if self.head is None else self.head.n_classes)
        for rows in chunks(len(features), rows_per_chunk(width)):
            refuse_non_finite(features[rows], first_row=rows.start)
            logits = self._logits(features[rows])
            if nearest is not None:
                np.argmax(logits, axis=1, out=nearest[rows])
            scores[rows] = self._row_scores(features[rows], logits)
        return scores

    def _details(self, features: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        return softmax(self._logits(features)), None

    def _parts(
        self, batches: Batches, n_features: int, names: NDArray[Any] | None = None, found: set[Any] | None = None
    ) -> Iterator[Part]:
        """Yield checked chunks of rows with their logits and, where labels are used, the places these name."""
        n_logits, first_row = self._n_logits(n_features), 0
        for X, y in batches:
            features = as_features(X)
            self._check_width(features, n_features)
            labels = None if y is None else as_labels(y, len(features))
            if labels is None and self.uses_labels:
                raise InputError(f"{type(self).__name__} learns from labelled rows; pass labels")
            if labels is not None and found is not None:
                found |= set(np.unique(labels).tolist())
            places = _places(labels, names, n_logits) if self.uses_labels and labels is not None else None
            for rows in chunks(len(features), rows_per_chunk(n_features + n_logits)):
                refuse_non_finite(features[rows], first_row=first_row + rows.start)
                yield Part(features[rows], self._logits(features[rows]), None if places is None else places[rows])
            first_row += len(features)

    def _mergeable(self, other: Self) -> None:
        if type(other) is not type(self):
            raise InputError(f"cannot merge a {type(other).__name__} into a {type(self).__name__}; merge equal kinds")
        for part in (self, other):
            if "n_features_in_" not in part.__dict__:
                raise NotFittedError(f"this {type(part).__name__} is not fitted yet; call fit(features, labels) first")
        if other.n_features_in_ != self.n_features_in_:
            raise InputError(
                f"one fit has {self.n_features_in_} features and the other {other.n_features_in_}; merge fits of equal "
                f"features"
            )

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        return {}, {"classes": self.classes_.tolist(), "labels": sorted(self._labels)}

    def _restore(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        self.classes_ = class_names(values["classes"])
        if self.head is not None:
            self.n_features_in_ = self.head.n_features
        self._labels = set(values["labels"])


class LogitDetector(HeadDetector):
    """A detector with nothing to learn: it can be calibrated and used without `fit`, which only takes class names."""

    @abstractmethod
    def _row_scores(self, features: NDArray[Any], logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Score checked rows."""

    def _learn(self, batches: Batches, *, n_features: int, classes: NDArray[Any] | None) -> None:
        self._check_head(n_features)
        found: set[Any] = set()
        first_row = 0
        for X, labels in batches:
            features = as_features(X)
            for rows in chunks(len(features), rows_per_chunk(n_features)):
                refuse_non_finite(features[rows], first_row=first_row + rows.start)
            first_row += len(features)
            if labels is not None and classes is None:
                found |= set(np.unique(as_labels(labels, len(features))).tolist())
        self._name_logits(sorted(found) if classes is None else classes.tolist(), self._n_logits(n_features))

    def partial_fit(self, X: ArrayLike, y: ArrayLike | None = None, *, classes: ArrayLike | None = None) -> Self:
        """Take the class names of one more batch; there is nothing else to learn. The threshold is forgotten."""
        self._check_options()
        seen, in_order = (self._labels, self.classes_.tolist()) if "classes_" in self.__dict__ else (set(), [])
        with self._all_or_nothing():
            is_first = "n_features_in_" not in self.__dict__
            features = as_features(X) if is_first else self._checked(X)
            validate_data(self, X, reset=is_first, skip_check_array=True)
            self.n_features_in_ = features.shape[1]
            names = None if classes is None else np.asarray(classes)
            self._learn([(features, y)], n_features=self.n_features_in_, classes=names)
            if names is None:
                self._join_names(in_order, self._labels | seen, len(self.classes_))
            self._forget_calibration()
        return self

    def merge(self, other: Self) -> Self:
        """Return a new, uncalibrated detector that knows the class names of both."""
        self._mergeable(other)
        joined: Self = clone(self)
        joined.n_features_in_ = self.n_features_in_
        joined._join_names(self.classes_.tolist(), self._labels | other._labels, len(self.classes_))
        return joined

    def _require_fit(self) -> None:
        """Nothing is learned, so nothing is missing."""

    def _checked(self, X: ArrayLike) -> NDArray[Any]:
        if "n_features_in_" in self.__dict__:
            return super()._checked(X)
        self._check_options()
        features = as_features(X)
        if self.head is not None and features.shape[1] != self.head.n_features:
            raise InputError(
                f"X has {features.shape[1]} features, but the head of this {type(self).__name__} is expecting "
                f"{self.head.n_features} features as input; pass the features that this head reads"
            )
        return features

    def calibrate(self, X: ArrayLike | None = None, **options: Any) -> Self:
        """Set the threshold from held-out rows, as `Detector.calibrate`; no fit is needed before."""
        if X is not None and "n_features_in_" not in self.__dict__:
            self.fit(X)
        return super().calibrate(X, **options)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags


class SummedDetector(HeadDetector):
    """A detector that learns from sums over the rows: batches add up, so it streams, and two fits merge by adding.

    A subclass says what a chunk of rows adds (`_terms`) and what scoring makes of the totals (`_settle`).
    """

    _sums: dict[str, NDArray[np.float64]] | None = None
    _settled: Any = None

    @abstractmethod
    def _terms(self, part: Part) -> dict[str, NDArray[np.float64]]:
        """Return what these rows add to the sums: float64 arrays whose shapes do not depend on the rows."""

    @abstractmethod
    def _settle(self, sums: dict[str, NDArray[np.float64]]) -> Any:
        """Return what scoring needs, from the totals; raise InputError where rows are lacking."""

    @property
    def _learned(self) -> Any:
        """What `_settle` made of all rows so far; after `partial_fit` it is made when first asked for."""
        if self._settled is None:
            if self._sums is None:
                raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit(features, labels) first")
            self._settled = self._settle(self._sums)
        return self._settled

    def _learn(self, batches: Batches, *, n_features: int, classes: NDArray[Any] | None) -> None:
        self._check_head(n_features)
        names = classes
        if names is None and self.uses_labels:
            names = names_found(batches)
        self._sums = self._settled = None
        found = self._add_batches(batches, n_features, names)
        self._name_logits(sorted(found) if names is None else names.tolist(), self._n_logits(n_features))
        self._settled = self._settle(self._sums or {})

    def partial_fit(self, X: ArrayLike, y: ArrayLike | None = None, *, classes: ArrayLike | None = None) -> Self:
        """Add a batch of rows to what was learned; the threshold, if any, is forgotten.

        Args:
            X: Rows of features, or of logits where there is no head.
            y: Their labels, where the detector uses them or they name the logits.
            classes: All class names in the order of the logits, in the first call, where they are not 0 to k − 1.
        """
        self._check_options()
        is_first = self._sums is None
        names = None if classes is None else np.asarray(classes)
        if names is None and not is_first and self._labels:
            names = self.classes_ if self.uses_labels else None
        with self._all_or_nothing():
            features = as_features(X) if is_first else self._checked(X)
            validate_data(self, X, reset=is_first, skip_check_array=True)
            self.n_features_in_ = features.shape[1]
            self._check_head(self.n_features_in_)
            if names is None and self.uses_labels:
                names = names_found([(features, y)])
            seen = set() if is_first else self._labels
            found = self._add_batches([(features, y)], self.n_features_in_, names)
            joined = sorted(found | seen) if names is None else names.tolist()
            self._name_logits(joined, self._n_logits(self.n_features_in_))
            self._forget_calibration()
        return self

    def merge(self, other: Self) -> Self:
        """Return a new, uncalibrated detector fitted to the rows of both; neither of the two changes."""
        self._mergeable(other)
        joined: Self = clone(self)
        joined.n_features_in_ = self.n_features_in_
        mine, theirs = self._sums or {}, other._sums or {}
        joined._sums = {name: mine[name] + theirs[name] for name in mine}
        joined._join_names(self.classes_.tolist(), self._labels | other._labels, len(self.classes_))
        joined._settled = joined._settle(joined._sums)
        return joined

    def _add_batches(self, batches: Batches, n_features: int, names: NDArray[Any] | None) -> set[Any]:
        """Add the terms of all rows to the sums, and return the labels met; sums are replaced, never changed."""
        found: set[Any] = set()
        for part in self._parts(batches, n_features, names, found):
            terms = self._terms(part)
            totals = self._sums
            self._sums = terms if totals is None else {name: totals[name] + terms[name] for name in terms}
        self._settled = None
        return found

    def _slack(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        sizes = np.abs(scores)
        return np.asarray(FEATURE_ROUNDING * np.maximum(sizes, np.median(sizes)))

    def _state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        tensors, values = super()._state()
        return tensors | {f"sums.{name}": total for name, total in (self._sums or {}).items()}, values

    def _restore(self, tensors: dict[str, NDArray[Any]], values: dict[str, Any]) -> None:
        super()._restore(tensors, values)
        n_logits = len(self.classes_)
        row = np.zeros((1, n_logits if self.head is None else self.head.n_features))
        pattern = self._terms(Part(row, self._logits(row), np.zeros(1, dtype=np.intp)))
        self._sums = {name: take(tensors, f"sums.{name}", zero.shape) for name, zero in pattern.items()}
        self._settled = self._settle(self._sums)


def names_found(batches: Batches) -> NDArray[Any] | None:
    """Return the labels of all batches, sorted, or None where some batch has none.

    >>> names_found([([[0.0], [1.0]], ["b", "a"])])
    array(['a', 'b'], dtype='<U1')
    """
    found: set[Any] = set()
    for X, y in batches:
        if y is None:
            return None
        found |= set(np.unique(as_labels(y, len(as_features(X)))).tolist())
    return np.array(sorted(found))


def _places(labels: NDArray[Any], names: NDArray[Any] | None, n_logits: int) -> NDArray[np.intp]:
    """Return which logit each label names: by the names of all logits, or, for whole numbers, the label itself."""
    if names is not None and len(names) == n_logits:
        order = np.argsort(names)
        at = np.minimum(np.searchsorted(names, labels, sorter=order), n_logits - 1)
        places = order[at]
        unknown = names[places] != labels
    elif labels.dtype.kind == "i":
        places, unknown = labels.astype(np.intp), (labels < 0) | (labels >= n_logits)
    else:
        n_names = 0 if names is None else len(names)
        raise InputError(
            f"labels has {n_names} names but the classifier has {n_logits} logits; pass classes, all names in the "
            f"order of the logits, or labels that number them from 0"
        )
    if unknown.any():
        raise InputError(
            f"label {labels[int(np.argmax(unknown))]!r} names none of the {n_logits} logits; pass classes, all names "
            f"in the order of the logits, or labels that number them from 0"
        )
    return places
